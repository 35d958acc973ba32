//! The structs shared with the programs: `c/attach/layout.h` asserts the same sizes.

use aya::Pod;

/// Must be raised when a struct or a map of the programs changes: pinned maps of another layout are not used.
pub(crate) const LAYOUT: u32 = 15;

/// How many ports can be attached at a time in one network namespace.
pub(crate) const MAX_PORTS: u16 = 4096;

/// How many ports and ranges of ports have counters of their own.
pub(crate) const MAX_SLOTS: u16 = 64;

/// `SLOT_OF_NO_PORT`: the counters of packets whose port is unknown.
pub(crate) const SLOT_OF_NO_PORT: u16 = MAX_SLOTS;

/// An address; IPv4 as `::ffff:a.b.c.d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct Address(pub(crate) [u8; 16]);

/// `struct port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Port {
    pub(crate) counters: u16,
    pub(crate) state: u8,
    pub(crate) group: u8,
}

/// `struct udp_port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawUdpPort {
    pub(crate) port: Port,
    pub(crate) backend_port: [u8; 2],
    pub(crate) dialect: u8,
    pub(crate) unused: u8,
}

/// `struct backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Backend {
    pub(crate) counters: u16,
    pub(crate) kind: u8,
    pub(crate) group: u8,
}

/// `struct udp_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(4))]
pub(crate) struct UdpKey {
    pub(crate) client: Address,
    pub(crate) local: Address,
    pub(crate) client_port: [u8; 2],
    pub(crate) backend_port: [u8; 2],
}

/// `struct udp_flow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct UdpFlow {
    pub(crate) seen_ns: u64,
    pub(crate) ticket: u64,
    pub(crate) version: u64,
    pub(crate) sender: Address,
    pub(crate) local: Address,
    pub(crate) proxy: Address,
    pub(crate) device: u32,
    pub(crate) sender_port: [u8; 2],
    pub(crate) port: [u8; 2],
    pub(crate) proxy_port: [u8; 2],
    pub(crate) said_client_port: [u8; 2],
    pub(crate) counters: u16,
    pub(crate) is_spp: u8,
    pub(crate) needs_slot: u8,
    pub(crate) edition: u32,
    pub(crate) group: u32,
}

/// `struct settings`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Settings {
    pub(crate) edition: u32,
    pub(crate) validated: u32,
    pub(crate) begins_again: u32,
    /// [`crate::programs::fingerprint`]; 0: of a truepeer that did not write it.
    pub(crate) programs: u32,
    pub(crate) netns: u64,
    /// `enum bans`.
    pub(crate) bans: u32,
    pub(crate) unused: u32,
}

/// `struct terms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Terms {
    pub(crate) header_timeout_ns: u64,
    pub(crate) header_wait_ns: u64,
    pub(crate) header_max: u32,
    pub(crate) udp_silence_s: u32,
    pub(crate) refuse_unshowable: u32,
    pub(crate) shows_destination: u32,
}

/// `struct flow_key`. Ports in network byte order; words, for an alignment of 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub(crate) struct FlowKey {
    pub(crate) remote: Address,
    pub(crate) local: Address,
    pub(crate) remote_port: [u8; 2],
    pub(crate) local_port: [u8; 2],
}

/// `struct flow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawFlow {
    pub(crate) client: Address,
    pub(crate) delta: i32,
    pub(crate) client_port: [u8; 2],
    pub(crate) client_version: u8,
    pub(crate) header: u8,
}

/// `struct ban_key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub(crate) struct BanKey {
    pub(crate) port: [u8; 2],
    pub(crate) zero: [u8; 2],
    pub(crate) client: Address,
}

/// `struct ban`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawBan {
    pub(crate) until_ns: u64,
    pub(crate) own_until_ns: u64,
    pub(crate) since_s: u32,
    pub(crate) by: u32,
    pub(crate) why: [u8; 32],
}

/// `struct pending`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawPending {
    pub(crate) born_ns: u64,
    pub(crate) isn: u32,
    pub(crate) guess: u32,
    pub(crate) have: u32,
    pub(crate) our_isn: u32,
    pub(crate) ts_recent: u32,
    pub(crate) tsval_first: u32,
    pub(crate) tsval_synack: u32,
    pub(crate) tsval_newest: u32,
    pub(crate) device: u32,
    pub(crate) stage: u8,
    pub(crate) is_answered: u8,
    pub(crate) is_by_cookie: u8,
    pub(crate) has_timestamps: u8,
    pub(crate) start: [u8; 108],
    pub(crate) is_busy: u32,
    pub(crate) clock_offset: u32,
    pub(crate) mss: u16,
    pub(crate) snd_wscale: u8,
    pub(crate) rcv_wscale: u8,
    pub(crate) agreed: u8,
    pub(crate) is_ours: u8,
    pub(crate) is_proved: u8,
    pub(crate) listener: u8,
    pub(crate) walk: u32,
}

impl RawPending {
    /// Of an established one: what it will be. It is at the start of the union.
    pub(crate) fn flow(&self) -> RawFlow {
        let at = &self.start;
        let mut client = [0; 16];
        client.copy_from_slice(&at[..16]);
        RawFlow {
            client: Address(client),
            delta: i32::from_ne_bytes([at[16], at[17], at[18], at[19]]),
            client_port: [at[20], at[21]],
            client_version: at[22],
            header: at[23],
        }
    }
}

const _: () = assert!(size_of::<Address>() == 16);
const _: () = assert!(size_of::<Port>() == 4);
const _: () = assert!(size_of::<RawUdpPort>() == 8);
const _: () = assert!(size_of::<Backend>() == 4);
const _: () = assert!(size_of::<UdpKey>() == 36);
const _: () = assert!(size_of::<UdpFlow>() == 96);
const _: () = assert!(size_of::<Settings>() == 32);
const _: () = assert!(size_of::<Terms>() == 32);
const _: () = assert!(size_of::<FlowKey>() == 36);
const _: () = assert!(size_of::<RawFlow>() == 24);
const _: () = assert!(size_of::<RawPending>() == 176);
const _: () = assert!(size_of::<BanKey>() == 20);
const _: () = assert!(size_of::<RawBan>() == 56);

// SAFETY: invariant of `Pod`: any bytes are a valid value, and none is padding. Each is `repr(C)`, of
// integers and byte arrays only, and its size (asserted above) is the sum of its fields'.
unsafe impl Pod for Address {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for Port {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for RawUdpPort {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for Backend {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for UdpKey {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for UdpFlow {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for Settings {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for Terms {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for FlowKey {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for RawFlow {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for RawPending {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for BanKey {}
// SAFETY: `Pod`: `repr(C)`, integers and byte arrays only, no padding (size asserted above): any bytes are a
// valid value.
unsafe impl Pod for RawBan {}
