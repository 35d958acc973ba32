//! Routing rules (ip-rule(8)): whether they ask for more than addresses.

use truepeer_sys::CallError;
use truepeer_sys::notices::{Family, attributes, list, word};

/// RTM_GETRULE.
const GET_RULE: u16 = 34;
/// The length of `struct fib_rule_hdr`.
const HEADER_LEN: usize = 12;
/// linux/fib_rules.h: FRA_*.
const IN_DEVICE: u16 = 3;
const MARK: u16 = 10;
const MARK_MASK: u16 = 16;
const PROTOCOL: u16 = 21;
const IP_PROTOCOL: u16 = 22;
/// Priority, target, table, realm, suppressors, padding and VRFs: they select nothing, or by addresses and
/// device. With destination and source.
const BY_ADDRESSES: [u16; 12] = [1, 2, 4, 6, 11, 13, 14, 15, 18, 19, IN_DEVICE, PROTOCOL];
/// `proto` of the rules that truepeer adds, in `routes::found::Tag`: those are for answers of backends, not
/// for segments of its own sockets.
const OURS: [u8; 2] = [123, 124];

/// The rules that decide by more than addresses, each as the kernel writes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(pub(super) Vec<Vec<u8>>);

impl Rules {
    /// Reads them, of both families, as far as they concern packets of this protocol.
    ///
    /// # Errors
    /// If netlink is forbidden or fails.
    pub(super) fn read(protocol: u8) -> Result<Self, CallError> {
        let mut rules = Self::default();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut query = [0; HEADER_LEN];
            query[0] = u8::try_from(family).unwrap_or_default();
            let found = list(Family::Route, GET_RULE, &query, |found: &mut Vec<Vec<u8>>, message| {
                if decides_by_more(message.body, protocol) {
                    found.push(message.body.to_vec());
                }
            });
            match found {
                Ok(found) => rules.0.extend(found),
                // A kernel without IPv6 has no rules for it.
                Err(CallError { errno, .. }) if is_without(errno) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(rules)
    }

    pub(super) fn decide_by_more_than_addresses(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether there is any that was not among those `before`.
    pub(super) fn have_more_than(&self, before: &Self) -> bool {
        self.0.iter().any(|rule| !before.0.contains(rule))
    }
}

fn is_without(errno: rustix::io::Errno) -> bool {
    [rustix::io::Errno::AFNOSUPPORT, rustix::io::Errno::OPNOTSUPP].contains(&errno)
}

/// Whether two packets with the same addresses may be answered differently by this rule: a socket's own
/// packet has a mark, ports and a user, while the route of a translated one is looked up without. An
/// attribute that is unknown here may select anything.
pub(super) fn decides_by_more(rule: &[u8], protocol: u8) -> bool {
    let (Some(tos), Some(attributes_at)) = (rule.get(3), rule.get(HEADER_LEN..)) else { return true };
    let is_ours = attributes(attributes_at)
        .any(|(kind, value)| kind == PROTOCOL && value.first().is_some_and(|proto| OURS.contains(proto)));
    let is_of_others = attributes(attributes_at).any(|(kind, value)| match kind {
        IP_PROTOCOL => value.first() != Some(&protocol),
        // Only packets that this host sends itself come from lo.
        IN_DEVICE => value != b"lo\0",
        _ => false,
    });
    // `not`: FIB_RULE_INVERT.
    let is_inverted = word(rule, 8).is_none_or(|flags| flags & 2 != 0);
    if is_ours || (is_of_others && !is_inverted) {
        return false;
    }
    let selects = |(kind, value): (u16, &[u8])| match kind {
        MARK => word(value, 0) != Some(0),
        // Without a mark, only a mask that is not whole selects.
        MARK_MASK => !matches!(word(value, 0), Some(0 | u32::MAX)),
        kind => !BY_ADDRESSES.contains(&kind),
    };
    *tos != 0 || attributes(attributes_at).any(selects)
}
