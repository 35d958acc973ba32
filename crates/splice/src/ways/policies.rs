//! IPsec policies (ip-xfrm(8)): translated packets bypass them.

use std::collections::BTreeSet;

use rustix::io::Errno;
use truepeer_sys::netlink::RawMessage;
use truepeer_sys::notices::{Family, Notices, attributes, list, word};

/// linux/xfrm.h: XFRM_MSG_*.
const NEW: u16 = 0x13;
const DELETED: u16 = 0x14;
const GET: u16 = 0x15;
const UPDATED: u16 = 0x19;
const EXPIRED: u16 = 0x1b;
const FLUSHED: u16 = 0x1d;
/// The bit of XFRMNLGRP_POLICY.
const GROUP: u32 = 1 << 3;
/// `struct xfrm_userpolicy_info`: its index, and the length of `struct xfrm_userpolicy_id`, behind which the
/// kernel repeats the former.
const INDEX_AT: usize = 156;
const ID_LEN: usize = 64;
/// XFRMA_POLICY.
const POLICY: u16 = 7;
/// XFRM_POLICY_MAX: the lower bits of an index are its direction. Higher ones belong to single sockets, such
/// as those of key daemons.
const DIRECTIONS: u32 = 3;

/// The policies of a network namespace. The list needs CAP_NET_ADMIN, so it is read once; later changes are
/// heard of.
#[derive(Debug)]
pub(super) enum Policies {
    /// This kernel has none.
    Never,
    /// They can't be read.
    Unknown,
    /// By index.
    Known(Notices, BTreeSet<u32>),
}

impl Policies {
    pub(super) fn open() -> Self {
        let notices = match Notices::of(Family::Xfrm, GROUP) {
            Ok(notices) => notices,
            Err(error) if error.errno == Errno::PROTONOSUPPORT => return Self::Never,
            Err(_) => return Self::Unknown,
        };
        let listed = list(Family::Xfrm, GET, &[0; ID_LEN], |found: &mut BTreeSet<u32>, message| {
            found.extend(word(message.body, INDEX_AT).filter(|index| is_of_all(*index)));
        });
        listed.map_or(Self::Unknown, |found| Self::Known(notices, found))
    }

    /// `None`: they can't be read.
    pub(super) fn are_any(&self) -> Option<bool> {
        match self {
            Self::Never => Some(false),
            Self::Unknown => None,
            Self::Known(_, policies) => Some(!policies.is_empty()),
        }
    }

    /// Notes what has changed. True: there is a new one.
    pub(super) fn hear(&mut self) -> bool {
        let Self::Known(notices, policies) = self else { return false };
        let mut is_new = false;
        let are_whole = notices.read(|message| is_new |= note(message, policies));
        if !are_whole {
            *self = Self::Unknown;
            return true;
        }
        is_new
    }
}

fn note(message: &RawMessage<'_>, policies: &mut BTreeSet<u32>) -> bool {
    let body = message.body;
    match message.kind {
        NEW | UPDATED => {
            let index = word(body, INDEX_AT).filter(|index| is_of_all(*index));
            index.is_some_and(|index| policies.insert(index))
        }
        DELETED => {
            let mut repeated = attributes(body.get(ID_LEN..).unwrap_or_default());
            let index =
                repeated.find(|(kind, _)| *kind == POLICY).and_then(|(_, policy)| word(policy, INDEX_AT));
            if let Some(index) = index {
                policies.remove(&index);
            }
            false
        }
        EXPIRED => {
            // `struct xfrm_user_polexpire` begins with the policy. A soft limit (`hard` is 0) removes
            // nothing.
            let is_hard = body.get(INDEX_AT + 12).is_some_and(|hard| *hard != 0);
            if let Some(index) = word(body, INDEX_AT).filter(|_| is_hard) {
                policies.remove(&index);
            }
            false
        }
        FLUSHED => {
            policies.clear();
            false
        }
        _ => false,
    }
}

fn is_of_all(index: u32) -> bool {
    index & 7 < DIRECTIONS
}
