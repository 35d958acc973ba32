//! Reads the kernel's answers on a netlink(7) socket: pure.

use rustix::io::Errno;

/// Flags and types of linux/netlink.h.
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
/// The length of `struct nlmsghdr`.
pub(crate) const HEADER_LEN: usize = 16;
/// The length of the error number at the start of an error or of a dump's end.
const CODE_LEN: usize = 4;
/// `NLMSGERR_ATTR_MSG`: the reason in words.
const ATTRIBUTE_MESSAGE: u16 = 1;

/// How an answer ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetlinkEnd {
    /// Everything that was asked for has come.
    Whole,
    /// The list changed while the kernel wrote it: entries may be missing, or there twice.
    Interrupted,
    /// The request failed.
    Refused {
        /// The error number.
        errno: Errno,
        /// The kernel's own words, where it gives any.
        reason: Option<String>,
    },
}

/// An answer that is still coming.
#[derive(Debug)]
pub struct NetlinkAnswer {
    sequence: u32,
    is_interrupted: bool,
}

impl NetlinkAnswer {
    /// Expects the answer to the request with this sequence number.
    #[must_use]
    pub fn to(sequence: u32) -> Self {
        Self { sequence, is_interrupted: false }
    }

    /// Takes one datagram: shows the messages of the answer to `found`, and returns its end once that has
    /// come.
    pub fn on_datagram(
        &mut self,
        datagram: &[u8],
        mut found: impl FnMut(&RawMessage<'_>),
    ) -> Option<NetlinkEnd> {
        for message in Messages(datagram).filter(|message| message.sequence == self.sequence) {
            self.is_interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                // The end of a dump that the kernel can't make has an error number, too.
                NLMSG_DONE | NLMSG_ERROR => {
                    return Some(match outcome(message.body) {
                        Ok(()) if self.is_interrupted => NetlinkEnd::Interrupted,
                        Ok(()) => NetlinkEnd::Whole,
                        Err(errno) => NetlinkEnd::Refused { errno, reason: reason(&message) },
                    });
                }
                _ => found(&message),
            }
        }
        None
    }
}

/// `nlmsgerr.error`, and what a dump ends with: 0, or an error number below zero.
pub(crate) fn outcome(body: &[u8]) -> Result<(), Errno> {
    match body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code)) {
        0.. => Ok(()),
        code @ -4095.. => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::BADMSG),
    }
}

/// The words of an extended acknowledgement (`NETLINK_EXT_ACK`, Linux 4.12).
fn reason(message: &RawMessage<'_>) -> Option<String> {
    if message.flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let after_code = message.body.get(CODE_LEN..)?;
    // An error repeats the request, or its header alone if the answer is capped.
    let repeated = match message.kind {
        NLMSG_ERROR if message.flags & NLM_F_CAPPED != 0 => HEADER_LEN,
        NLMSG_ERROR => usize::try_from(u32::from_ne_bytes(*after_code.first_chunk::<4>()?)).ok()?,
        _ => 0,
    };
    let mut attributes = after_code.get(repeated.checked_next_multiple_of(4)?..)?;
    while let [low, high, kind_low, kind_high, ..] = attributes {
        let length = usize::from(u16::from_ne_bytes([*low, *high]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([*kind_low, *kind_high]) == ATTRIBUTE_MESSAGE {
            let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
            return Some(String::from_utf8_lossy(text).into_owned());
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// One message.
#[derive(Debug)]
pub struct RawMessage<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    pub(crate) sequence: u32,
    /// What follows `struct nlmsghdr`.
    pub body: &'a [u8],
    /// The whole message.
    pub bytes: &'a [u8],
}

impl<'a> RawMessage<'a> {
    /// The first message in these bytes.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        Messages(bytes).next()
    }
}

/// The messages of one datagram.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = RawMessage<'a>;

    fn next(&mut self) -> Option<RawMessage<'a>> {
        let (header, _) = self.0.split_first_chunk::<HEADER_LEN>()?;
        let &[l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = header;
        let length = usize::try_from(u32::from_ne_bytes([l0, l1, l2, l3])).ok()?;
        let bytes = self.0.get(..length)?;
        let body = bytes.get(HEADER_LEN..)?;
        // The last message need not be padded.
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(RawMessage {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            body,
            bytes,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SEQUENCE: u32 = 7;
    /// `RTM_NEWRULE`.
    const RULE: u16 = 32;

    pub(crate) fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER_LEN + body.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
        bytes.extend([sequence.to_ne_bytes(), 0_u32.to_ne_bytes()].concat());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn rule(flags: u16, sequence: u32) -> Vec<u8> {
        message(RULE, flags, sequence, &[0; 12])
    }

    fn done(flags: u16, code: i32, attributes: &[u8]) -> Vec<u8> {
        message(NLMSG_DONE, flags, SEQUENCE, &[&code.to_ne_bytes()[..], attributes].concat())
    }

    fn words(text: &str) -> Vec<u8> {
        let length = u16::try_from(4 + text.len() + 1).unwrap();
        let mut bytes =
            [&length.to_ne_bytes()[..], &ATTRIBUTE_MESSAGE.to_ne_bytes(), text.as_bytes()].concat();
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn read(datagrams: &[Vec<u8>]) -> (Option<NetlinkEnd>, usize) {
        let (mut answer, mut found) = (NetlinkAnswer::to(SEQUENCE), 0);
        let end = datagrams.iter().find_map(|datagram| answer.on_datagram(datagram, |_| found += 1));
        (end, found)
    }

    #[test]
    fn a_dump_is_whole_at_its_end() {
        let foreign = message(NLMSG_DONE, 0, SEQUENCE - 1, &[0; 4]);
        let first = [rule(0, SEQUENCE), foreign, rule(0, SEQUENCE), rule(0, SEQUENCE - 1)].concat();
        assert_eq!(read(std::slice::from_ref(&first)), (None, 2));
        assert_eq!(read(&[first, rule(0, SEQUENCE), done(0, 0, &[])]), (Some(NetlinkEnd::Whole), 3));
    }

    #[test]
    fn a_dump_that_was_interrupted_is_read_to_its_end_and_not_used() {
        for flags in [[NLM_F_DUMP_INTR, 0, 0], [0, NLM_F_DUMP_INTR, 0], [0, 0, NLM_F_DUMP_INTR]] {
            let [first, second, last] = flags;
            let parts = [rule(first, SEQUENCE), rule(second, SEQUENCE), done(last, 0, &[])];
            assert_eq!(read(&parts[..2]).0, None);
            assert_eq!(read(&parts).0, Some(NetlinkEnd::Interrupted), "{flags:?}");
        }
    }

    #[test]
    fn a_dump_that_ends_with_an_error_is_refused() {
        let text = "ipv4: FIB table does not exist";
        let end = done(NLM_F_ACK_TLVS, -2, &words(text));
        let refused = NetlinkEnd::Refused { errno: Errno::NOENT, reason: Some(text.to_owned()) };
        assert_eq!(read(&[rule(0, SEQUENCE), end]).0, Some(refused));
    }

    #[test]
    fn the_kernels_words_stand_behind_the_request_that_it_repeats() {
        let request = rule(0, SEQUENCE);
        for (flags, repeated) in [(0, &request[..]), (NLM_F_CAPPED, &request[..HEADER_LEN])] {
            // Another attribute (the offset of the wrong one) may stand before the words.
            let offset = [8, 0, 2, 0, 0, 0, 0, 0];
            let body = [&(-22_i32).to_ne_bytes()[..], repeated, &offset, &words("Invalid prefix")].concat();
            let error = message(NLMSG_ERROR, flags | NLM_F_ACK_TLVS, SEQUENCE, &body);
            let refused = NetlinkEnd::Refused { errno: Errno::INVAL, reason: Some("Invalid prefix".into()) };
            assert_eq!(read(&[error]).0, Some(refused), "flags {flags:#x}");
        }
    }

    #[test]
    fn broken_datagrams_are_survived() {
        let body = [&(-22_i32).to_ne_bytes()[..], &rule(0, SEQUENCE), &words("x")].concat();
        let error = message(NLMSG_ERROR, NLM_F_ACK_TLVS, SEQUENCE, &body);
        for cut in 0..error.len() {
            let mut bytes = error[..cut].to_vec();
            let _ = read(std::slice::from_ref(&bytes));
            if cut >= 4 {
                bytes[..4].copy_from_slice(&u32::try_from(cut).unwrap().to_ne_bytes());
                let _ = read(std::slice::from_ref(&bytes));
            }
            let mut broken = error.clone();
            broken[cut] = 0xff;
            let _ = read(&[broken]);
        }
    }
}
