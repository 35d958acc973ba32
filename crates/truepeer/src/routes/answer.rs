//! Puts the kernel's answer to one netlink request together from its datagrams: pure.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage as Message;

/// `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// The error number at the start of an error or of a dump's end.
const CODE_LEN: usize = 4;
/// `NLMSGERR_ATTR_MSG`: the reason in words.
const ATTRIBUTE_MESSAGE: u16 = 1;

/// What an answer ends with.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Everything that was asked for.
    Whole(Vec<Message>),
    /// The list changed while the kernel wrote it: entries may be missing or there twice.
    Interrupted,
    /// The request failed.
    Refused {
        /// The error number.
        source: io::Error,
        /// The kernel's own words, where it gives any.
        reason: Option<String>,
    },
}

/// An answer that is still coming.
#[derive(Debug)]
pub(crate) struct Answer {
    sequence: u32,
    /// Whether an acknowledgement, an error or the end of a dump closes the answer; otherwise the first message does.
    ends_with_verdict: bool,
    found: Vec<Message>,
    is_interrupted: bool,
}

impl Answer {
    /// Expects the answer to the request with this sequence number.
    pub(crate) fn to(sequence: u32, ends_with_verdict: bool) -> Self {
        Self { sequence, ends_with_verdict, found: Vec::new(), is_interrupted: false }
    }

    /// Takes one datagram. Returns the verdict once the answer is complete.
    pub(crate) fn on_datagram(&mut self, datagram: &[u8]) -> Option<Verdict> {
        for bytes in Parts(datagram) {
            if let Some(verdict) = self.on_part(bytes) {
                return Some(verdict);
            }
        }
        (!self.ends_with_verdict && !self.found.is_empty()).then(|| self.whole())
    }

    fn on_part(&mut self, bytes: &[u8]) -> Option<Verdict> {
        let header = NetlinkBuffer::new_checked(bytes).ok()?;
        if header.sequence_number() != self.sequence {
            return None;
        }
        self.is_interrupted |= header.flags() & NLM_F_DUMP_INTR != 0;
        match header.message_type() {
            NLMSG_ERROR | NLMSG_DONE => Some(self.close(bytes, header.message_type(), header.flags())),
            _ => {
                // A message that the library can't read describes somebody else's unusual rule or route, none of truepeer's.
                let message = NetlinkMessage::<Message>::deserialize(bytes);
                if let Ok(NetlinkMessage { payload: NetlinkPayload::InnerMessage(inner), .. }) = message {
                    self.found.push(inner);
                }
                None
            }
        }
    }

    fn close(&mut self, bytes: &[u8], kind: u16, flags: u16) -> Verdict {
        let body = bytes.get(HEADER_LEN..).unwrap_or_default();
        match code(body) {
            0 if self.is_interrupted => Verdict::Interrupted,
            0 => self.whole(),
            code => Verdict::Refused {
                source: io::Error::from_raw_os_error(code.saturating_neg()),
                reason: reason(body, kind, flags),
            },
        }
    }

    fn whole(&mut self) -> Verdict {
        Verdict::Whole(std::mem::take(&mut self.found))
    }
}

/// The error number (negative), 0 for success. The end of a dump has none before Linux 2.6.
fn code(body: &[u8]) -> i32 {
    body.first_chunk::<CODE_LEN>().map_or(0, |bytes| i32::from_ne_bytes(*bytes))
}

/// The words of an extended acknowledgement (`NETLINK_EXT_ACK`, Linux 4.12).
fn reason(body: &[u8], kind: u16, flags: u16) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let after_code = body.get(CODE_LEN..)?;
    // An error repeats the request, or its header alone if the answer is capped.
    let repeated = match kind {
        NLMSG_ERROR if flags & NLM_F_CAPPED != 0 => HEADER_LEN,
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

/// The messages of one datagram.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(NetlinkBuffer::new_checked(self.0).ok()?.length()).ok()?;
        let (part, rest) = self.0.split_at_checked(length)?;
        let padding = length.next_multiple_of(4) - length;
        self.0 = rest.get(padding..).unwrap_or_default();
        (!part.is_empty()).then_some(part)
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_MULTIPART;
    use netlink_packet_route::rule::RuleMessage;

    use super::*;

    const SEQUENCE: u32 = 7;

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER_LEN + body.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes()].concat();
        bytes.extend([sequence.to_ne_bytes(), 0_u32.to_ne_bytes()].concat());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn rule(flags: u16, sequence: u32) -> Vec<u8> {
        let mut message = NetlinkMessage::from(Message::NewRule(RuleMessage::default()));
        message.header.flags = flags | NLM_F_MULTIPART;
        message.header.sequence_number = sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
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

    fn verdict(datagrams: &[Vec<u8>]) -> Option<Verdict> {
        let mut answer = Answer::to(SEQUENCE, true);
        datagrams.iter().find_map(|datagram| answer.on_datagram(datagram))
    }

    #[test]
    fn a_dump_is_whole_at_its_end() {
        let first = [rule(0, SEQUENCE), rule(0, SEQUENCE), rule(0, SEQUENCE - 1)].concat();
        assert!(verdict(std::slice::from_ref(&first)).is_none());
        let found = verdict(&[first, rule(0, SEQUENCE), done(0, 0, &[])]);
        assert!(matches!(found, Some(Verdict::Whole(found)) if found.len() == 3));
    }

    #[test]
    fn a_dump_that_was_interrupted_is_read_to_its_end_and_not_used() {
        for parts in [
            [rule(NLM_F_DUMP_INTR, SEQUENCE), rule(0, SEQUENCE), done(0, 0, &[])],
            [rule(0, SEQUENCE), rule(0, SEQUENCE), done(NLM_F_DUMP_INTR, 0, &[])],
        ] {
            assert!(verdict(&parts[..2]).is_none());
            assert!(matches!(verdict(&parts), Some(Verdict::Interrupted)));
        }
    }

    #[test]
    fn a_dump_that_ends_with_an_error_is_refused() {
        let end = done(NLM_F_ACK_TLVS, -2, &words("ipv4: FIB table does not exist"));
        let Some(Verdict::Refused { source, reason }) = verdict(&[rule(0, SEQUENCE), end]) else {
            panic!("it was to be refused")
        };
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
        assert_eq!(reason.as_deref(), Some("ipv4: FIB table does not exist"));
    }

    #[test]
    fn the_kernels_words_stand_behind_the_request_that_it_repeats() {
        let request = rule(0, SEQUENCE);
        for (flags, repeated) in [(0, &request[..]), (NLM_F_CAPPED, &request[..HEADER_LEN])] {
            // Another attribute (the offset of the wrong one) may stand before the words.
            let offset = [8, 0, 2, 0, 0, 0, 0, 0];
            let body = [&(-22_i32).to_ne_bytes()[..], repeated, &offset, &words("Invalid prefix")].concat();
            let error = message(NLMSG_ERROR, flags | NLM_F_ACK_TLVS, SEQUENCE, &body);
            let Some(Verdict::Refused { source, reason }) = verdict(&[error]) else { panic!("an error") };
            assert_eq!(source.raw_os_error(), Some(22));
            assert_eq!(reason.as_deref(), Some("Invalid prefix"), "flags {flags:#x}");
        }
    }

    #[test]
    fn broken_datagrams_are_survived() {
        let body = [&(-22_i32).to_ne_bytes()[..], &rule(0, SEQUENCE), &words("x")].concat();
        let error = message(NLMSG_ERROR, NLM_F_ACK_TLVS, SEQUENCE, &body);
        for cut in 0..error.len() {
            let mut bytes = error[..cut].to_vec();
            let _ = verdict(std::slice::from_ref(&bytes));
            if cut >= 4 {
                bytes[..4].copy_from_slice(&u32::try_from(cut).unwrap().to_ne_bytes());
                let _ = verdict(std::slice::from_ref(&bytes));
            }
        }
        for place in 0..error.len() {
            let mut bytes = error.clone();
            bytes[place] = 0xff;
            let _ = verdict(&[bytes]);
        }
    }
}
