//! Why a session stays in user space.

use truepeer_bpf::ArmError;
use truepeer_sys::CallError;

macro_rules! reasons {
    ($($reason:ident $label:literal: $meaning:literal)*) => {
        /// Why a session stays in user space, as it is counted. docs/splice.md explains each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Reason {
            $(#[doc = $meaning] $reason,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// For counters and machines.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$reason => $label,)*
                }
            }

            /// For people, behind the label.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => $meaning,)*
                }
            }
        }
    };
}

reasons! {
    SegmentSizes "segment_sizes": "segments of one side don't fit through the other's path"
    WindowScale "window_scale": "an end's windows are too narrow for the scale that the other end was told"
    Timestamps "timestamps": "one connection has them, the other has not"
    Sack "sack": "one connection has it, the other has not"
    Ecn "ecn": "one connection has it, the other has not; or a connection has accurate ECN (RFC 9768)"
    Families "families": "one connection is IPv4, the other IPv6"
    Ended "ended": "one side had ended"
    Urgent "urgent": "a byte was marked as urgent"
    Offers "offers": "one end was offered more than the other takes, for two seconds"
    Unsent "unsent": "an end has taken nothing for two seconds"
    PacketsNotSeen "packets_not_seen": "they pass other devices than the programs are attached to"
    Rules "routing_rules": "a routing rule (ip rule) asks for more than addresses: a mark, a port, a user, a device"
    Ipsec "ipsec": "there are IPsec policies (ip xfrm policy), which translated packets would bypass"
    Firewall "firewall": "a rule of nftables or iptables could do more than accept its later packets"
    Device "device_changed": "a device of its packets was deleted, made anew or made a port at that moment"
    BigTcp "big_tcp": "a device that its packets pass has BIG TCP (a gso or gro size above 65536)"
    WaysUnknown "ways_unknown": "truepeer can't ask the kernel for rules and IPsec policies by netlink"
    TableFull "table_full": "no room in the table of sessions"
    AddressesInUse "addresses_in_use": "another session has these addresses"
    Chained "chained": "its other end is another session of this truepeer"
    Mark "mark": "translated packets would not have its --mark"
    NotBuilt "not_built": "this truepeer was built without the kernel's programs"
    NoPrivileges "no_privileges": "truepeer started without the privileges to load the programs"
    NoBpfFilesystem "no_bpf_filesystem": "no BPF file system was mounted when truepeer started"
    NoDevice "no_device": "no Ethernet or loopback device was up with an address when truepeer started"
    OtherTruepeer "other_truepeer": "other truepeers of this network namespace have the tables"
    OtherVersion "other_version": "the tables of another version of truepeer are in the kernel"
    NotLoaded "not_loaded": "the programs are not loaded: truepeer status says why"
    KeeperGone "keeper_gone": "the repair keeper has ended, or did not answer: see the log"
    Header "header": "datagrams have headers with TLVs, or none, or come merged: each has to be read"
    SendProxy "send_proxy": "the backend gets a header"
    Address "address": "an address is link-local, or one of many hosts"
    SenderMoves "sender_moves": "its sender's address has changed eight times"
    OldKernel "old_kernel": "UDP flows leave user space on Linux 6.6 and later"
    NumbersChanged "numbers_changed": "the kernel said something unexpected"
    Failed "failed": "the kernel said something unexpected"
}

impl Reason {
    /// Whether a peer may do later what it did not do in time, or a device is there again.
    #[must_use]
    pub fn may_pass(self) -> bool {
        matches!(self, Self::WindowScale | Self::Offers | Self::Unsent | Self::Device)
    }
}

/// Why a session stays in user space, with its cause.
#[derive(Debug, thiserror::Error)]
pub enum StaysHere {
    /// One side has ended.
    #[error("one side has ended")]
    Ended,
    /// Addresses of IPv4 and IPv6.
    #[error("one connection is IPv4 and the other IPv6")]
    Families,
    /// On one connection only.
    #[error("only one connection has timestamps")]
    Timestamps,
    /// On one connection only.
    #[error("only one connection has SACK")]
    Sack,
    /// On one connection only, or accurate.
    #[error("only one connection has ECN, or one has accurate ECN")]
    Ecn,
    /// Segments of one side don't fit through the other's path.
    #[error("segments of one side are too long for the other's path")]
    SegmentSizes,
    /// A routing rule.
    #[error("a routing rule asks for more than addresses")]
    Rules,
    /// IPsec.
    #[error("there are IPsec policies")]
    Ipsec,
    /// The firewall.
    #[error("a rule of the firewall could do something to its packets")]
    Firewall,
    /// A device that is gone, was made anew or has become a port of another one meanwhile.
    #[error("a device has changed")]
    Device,
    /// Packets of more than 64 KiB.
    #[error("a device has BIG TCP")]
    BigTcp,
    /// Netlink is forbidden.
    #[error("rules and IPsec policies can't be read")]
    WaysUnknown,
    /// The table.
    #[error(transparent)]
    Table(#[from] ArmError),
    /// The kernel.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl StaysHere {
    /// As it is counted.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Ended => Reason::Ended,
            Self::Families => Reason::Families,
            Self::Timestamps => Reason::Timestamps,
            Self::Sack => Reason::Sack,
            Self::Ecn => Reason::Ecn,
            Self::SegmentSizes => Reason::SegmentSizes,
            Self::Rules => Reason::Rules,
            Self::Ipsec => Reason::Ipsec,
            Self::Firewall => Reason::Firewall,
            Self::Device => Reason::Device,
            Self::BigTcp => Reason::BigTcp,
            Self::WaysUnknown => Reason::WaysUnknown,
            Self::Table(ArmError::Full) => Reason::TableFull,
            Self::Table(ArmError::AddressesInUse) => Reason::AddressesInUse,
            Self::Table(ArmError::Chained) => Reason::Chained,
            Self::Table(ArmError::Table { .. }) | Self::Call(_) => Reason::Failed,
        }
    }
}
