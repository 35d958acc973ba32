//! The start of a connection, in any pieces, with an end, a reset or a time-out at any moment: the same
//! decision as for all bytes at once, and never one that a later byte contradicts.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use truepeer_policy::{HeaderError, HeaderReader, HeaderRule, HeaderTimes, Opening};
use truepeer_proto::{DecodeErrorKind, Decoded, Limits, Versions, decode};

fuzz_target!(|bytes: &[u8]| {
    let Some((&[how, pieces, times], bytes)) = bytes.split_first_chunk() else { return };
    let reader = HeaderReader { rule: rule(how), limits: limits(how >> 2), times: header_times(times) };
    let (mut at, mut step) = (0, usize::from(pieces));
    loop {
        let opening = reader.on_bytes(&bytes[..at]);
        check(&opening, &plainly(&reader, &bytes[..at]));
        check_end(&reader, &bytes[..at], &opening);
        if opening != Opening::NeedMore {
            return check_later(&reader.on_bytes(bytes), &plainly(&reader, &bytes[..at]));
        }
        if at == bytes.len() {
            return;
        }
        step = step.wrapping_mul(5).wrapping_add(1) % 64;
        at = (at + 1 + step % (1 + usize::from(pieces))).min(bytes.len());
    }
});

fn rule(how: u8) -> HeaderRule {
    [HeaderRule::Require, HeaderRule::Optional, HeaderRule::Forbid, HeaderRule::Optional]
        [usize::from(how & 3)]
}

fn limits(how: u8) -> Limits {
    let versions = [Versions::BOTH, Versions::V1, Versions::V2, Versions::BOTH][usize::from(how & 3)];
    Limits { versions, ..Limits::default() }
}

fn header_times(times: u8) -> HeaderTimes {
    HeaderTimes {
        timeout: Duration::from_secs(u64::from(times & 15) + 1),
        wait: Duration::from_secs(u64::from(times >> 4)),
    }
}

/// The decision, without what it says in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plainly {
    NeedMore,
    Header(usize),
    NoHeader,
    Refused(DecodeErrorKind),
}

/// docs/senders.md, with the decoder as the judge of headers.
fn plainly(reader: &HeaderReader, bytes: &[u8]) -> Plainly {
    match (reader.rule, decode(bytes, reader.limits)) {
        (HeaderRule::Forbid, _) => Plainly::NoHeader,
        (_, Ok(Decoded::NeedMore { .. })) => Plainly::NeedMore,
        (_, Ok(Decoded::Done { consumed, .. })) => Plainly::Header(consumed),
        (rule, Err(error)) => match error.kind {
            DecodeErrorKind::NotProxy | DecodeErrorKind::VersionNotAccepted
                if rule == HeaderRule::Optional =>
            {
                Plainly::NoHeader
            }
            kind => Plainly::Refused(kind),
        },
    }
}

fn check(opening: &Opening<'_>, plainly: &Plainly) {
    assert_eq!(told(opening), *plainly);
}

/// No byte that follows changes a decision. Only the reason of a refusal may become more exact: before the
/// signature of an excluded version is whole, the bytes are no header.
fn check_later(opening: &Opening<'_>, earlier: &Plainly) {
    match (told(opening), earlier) {
        (
            Plainly::Refused(DecodeErrorKind::VersionNotAccepted),
            Plainly::Refused(DecodeErrorKind::NotProxy),
        ) => {}
        (later, earlier) => assert_eq!(later, *earlier),
    }
}

fn told(opening: &Opening<'_>) -> Plainly {
    match opening {
        Opening::NeedMore => Plainly::NeedMore,
        Opening::Header { consumed, .. } => Plainly::Header(*consumed),
        Opening::NoHeader => Plainly::NoHeader,
        Opening::Refused(error @ HeaderError::Invalid { error: cause, .. }) => {
            assert!(!error.to_string().is_empty());
            Plainly::Refused(cause.kind)
        }
        Opening::Refused(error) => panic!("bytes alone can't be {error}"),
    }
}

/// The sender ends or the time is up when these bytes have come.
fn check_end(reader: &HeaderReader, bytes: &[u8], opening: &Opening<'_>) {
    let (ended, late) = (reader.on_end(bytes), reader.on_timeout(bytes, reader.deadline(bytes.len())));
    if *opening != Opening::NeedMore {
        return assert_eq!(ended, *opening);
    }
    let (received, waited) = (bytes.len(), reader.times.timeout);
    let may_say_nothing = received == 0 && reader.rule == HeaderRule::Optional;
    if may_say_nothing {
        assert_eq!((ended, late), (Opening::NoHeader, Opening::NoHeader));
    } else {
        let cut = if received == 0 { HeaderError::Absent } else { HeaderError::CutShort { received } };
        assert_eq!(ended, Opening::Refused(cut));
        assert_eq!(late, Opening::Refused(HeaderError::Late { waited, received }));
    }
    let least = if may_say_nothing { reader.times.wait.min(waited) } else { waited };
    assert_eq!(reader.deadline(received), least);
    if let Some(before) = least.checked_sub(Duration::from_nanos(1)) {
        assert_eq!(reader.on_timeout(bytes, before), Opening::NeedMore);
    }
}
