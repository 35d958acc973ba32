//! What nftables and iptables would do to a session's packets: translated ones pass no netfilter on their way
//! between the two ends. So a session stays in user space if a rule could do more than accept its later
//! packets.
//!
//! The packets of a session that lasts are those of an established connection. A chain that accepts these
//! before it asks for anything else does nothing to them, nor do chains of `nat` and `forward`.

mod rule;
mod ruleset;

use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;

use rustix::io::Errno;
use truepeer_sys::CallError;
use truepeer_sys::netlink::RawMessage;
use truepeer_sys::notices::{Family, Notices, list};

use self::ruleset::{Id, Ruleset};

/// The bit of NFNLGRP_NFTABLES.
const GROUP: u32 = 1 << 6;
/// NFNL_SUBSYS_NFTABLES, the upper half of a message's type.
const SUBSYSTEM: u8 = 10;
const NFTABLES: u16 = 10 << 8;
/// NFT_MSG_GETCHAIN, GETRULE, GETSETELEM.
const GET_CHAINS: u16 = NFTABLES | 4;
const GET_RULES: u16 = NFTABLES | 7;
const GET_ELEMENTS: u16 = NFTABLES | 13;
/// Lists have the order of the rules.
const APPENDED: u16 = 0x800;
/// `struct nfgenmsg`.
const HEADER_LEN: usize = 4;
/// Those of iptables before nftables (`iptables-legacy`), which tells nobody of a change. A name is in the
/// list from the first use of its table.
const LEGACY: [&str; 2] = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];

/// The firewall of a network namespace. Its list needs CAP_NET_ADMIN, so it is read once; later changes are
/// heard of.
#[derive(Debug)]
pub(super) struct Firewall {
    /// Of the packets.
    protocol: u8,
    nftables: Nftables,
    legacy: Legacy,
    /// Nothing could be done to packets between any two ends, as it was last found.
    is_free: bool,
}

#[derive(Debug)]
enum Nftables {
    /// This kernel has none.
    Never,
    /// It can't be read.
    Unknown,
    Known(Notices, Ruleset),
}

impl Firewall {
    pub(super) fn open(protocol: u8) -> Self {
        let legacy = Legacy { files: LEGACY.map(|path| File::open(path).ok()), are_used: Some(false) };
        let mut firewall = Self { protocol, nftables: Nftables::open(protocol), legacy, is_free: false };
        firewall.legacy.look();
        firewall.look();
        firewall
    }

    /// Notes what has changed. True: something has.
    pub(super) fn hear(&mut self) -> bool {
        let mut has_changed = self.legacy.look();
        if let Nftables::Known(notices, ruleset) = &mut self.nftables {
            let are_whole = notices.read(|message| has_changed |= note(ruleset, message, message.flags));
            if !are_whole {
                // A confined process can't list them.
                self.nftables = Nftables::open(self.protocol);
                has_changed = true;
            }
        }
        if has_changed {
            self.look();
        }
        has_changed
    }

    fn look(&mut self) {
        let is_free = match &self.nftables {
            Nftables::Never => true,
            Nftables::Unknown => false,
            Nftables::Known(_, ruleset) => !ruleset.may_act(None),
        };
        self.is_free = is_free && self.legacy.are_used == Some(false);
    }

    /// Whether no rule could do anything to any session's later packets.
    pub(super) fn is_free(&self) -> bool {
        self.is_free
    }

    /// Whether a rule could do something to later packets between these ends. `None`: it is unknown.
    pub(super) fn may_act(&self, ends: &[SocketAddr]) -> Option<bool> {
        match &self.nftables {
            _ if self.is_free => Some(false),
            _ if self.legacy.are_used? => Some(true),
            Nftables::Never => Some(false),
            Nftables::Unknown => None,
            Nftables::Known(_, ruleset) => Some(ruleset.may_act(Some(ends))),
        }
    }
}

#[derive(Debug)]
struct Legacy {
    /// Opened while the process may open them.
    files: [Option<File>; 2],
    /// `None`: it can't be read.
    are_used: Option<bool>,
}

impl Legacy {
    /// True: it has changed.
    fn look(&mut self) -> bool {
        let are_used = self.read();
        std::mem::replace(&mut self.are_used, are_used) != are_used
    }

    fn read(&mut self) -> Option<bool> {
        for (file, path) in self.files.iter_mut().zip(LEGACY) {
            let names = match file {
                Some(file) => file,
                None => match File::open(path) {
                    Ok(opened) => file.insert(opened),
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(_) => return None,
                },
            };
            let mut text = [0; 256];
            let length = names.read_at(&mut text, 0).ok()?;
            let mut names = text[..length].split(|byte| *byte == b'\n').filter(|name| !name.is_empty());
            if names.any(|name| name != b"nat") {
                return Some(true);
            }
        }
        Some(false)
    }
}

impl Nftables {
    fn open(protocol: u8) -> Self {
        // Before the lists are read: whatever changes meanwhile is heard of.
        let notices = match Notices::of(Family::Netfilter, GROUP) {
            Ok(notices) => notices,
            Err(error) if error.errno == Errno::PROTONOSUPPORT => return Self::Never,
            Err(_) => return Self::Unknown,
        };
        match Ruleset::list(protocol) {
            Ok(ruleset) => Self::Known(notices, ruleset),
            Err(_) => Self::Unknown,
        }
    }
}

impl Ruleset {
    fn list(protocol: u8) -> Result<Self, CallError> {
        let mut all = Self::of(protocol);
        for query in [GET_CHAINS, GET_RULES] {
            all = all.with_list(query, &[0; HEADER_LEN])?;
        }
        for id in all.wanted_sets() {
            all = all.with_list(GET_ELEMENTS, &elements_of(&id))?;
        }
        Ok(all)
    }

    fn with_list(mut self, query: u16, body: &[u8]) -> Result<Self, CallError> {
        let listed = list(Family::Netfilter, query, body, |all: &mut Vec<Vec<u8>>, message| {
            all.push(message.bytes.to_vec());
        });
        let messages = listed.or_else(|error| match error.errno {
            // nftables is not loaded: if it is later, the notices say so. Or a set has gone meanwhile, and
            // its rule with it.
            Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT => Ok(Vec::new()),
            _ => Err(error),
        })?;
        for bytes in &messages {
            let message = RawMessage::of(bytes);
            message.iter().for_each(|message| _ = note(&mut self, message, APPENDED));
        }
        Ok(self)
    }
}

fn elements_of(Id { family, table, name }: &Id) -> Vec<u8> {
    let mut query = vec![*family, 0, 0, 0];
    for (attribute, text) in [(1_u16, table), (2, name)] {
        let length = u16::try_from(text.len() + 5).unwrap_or(u16::MAX);
        query.extend([length.to_ne_bytes(), attribute.to_ne_bytes()].concat());
        query.extend(text.bytes().chain([0]));
        query.resize(query.len().next_multiple_of(4), 0);
    }
    query
}

/// True: it matters.
fn note(ruleset: &mut Ruleset, message: &RawMessage<'_>, flags: u16) -> bool {
    let [kind, subsystem] = message.kind.to_le_bytes();
    let (Some(family), Some(body)) = (message.body.first(), message.body.get(HEADER_LEN..)) else {
        return false;
    };
    subsystem == SUBSYSTEM && ruleset.note(kind, flags, *family, body)
}
