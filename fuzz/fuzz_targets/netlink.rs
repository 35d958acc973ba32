//! The kernel's answers on netlink sockets: the end of an answer, its messages, and sockets in them
//! (sock_diag).
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_sys::netlink::{NetlinkAnswer, NetlinkEnd};
use truepeer_sys::sock_diag::read_any;

const SEQUENCE: u32 = 7;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const DUMP_INTERRUPTED: u16 = 0x10;

fuzz_target!(|bytes: &[u8]| {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let (first, second) = bytes.split_at((usize::from(cut) * 8).min(bytes.len()));
    let (mut answer, mut found, mut end) = (NetlinkAnswer::to(SEQUENCE), Vec::new(), None);
    let (mut expected, mut expected_end, mut is_interrupted) = (Vec::new(), None, false);
    for datagram in [first, second] {
        if end.is_none() {
            end = answer.on_datagram(datagram, |message| found.push((message.kind, message.body.to_vec())));
        }
        for (kind, flags, body) in messages(datagram) {
            is_interrupted |= expected_end.is_none() && flags & DUMP_INTERRUPTED != 0;
            match kind {
                _ if expected_end.is_some() => {}
                ERROR | DONE => expected_end = Some(code(body)),
                _ => expected.push((kind, body.to_vec())),
            }
        }
    }
    assert_eq!(found, expected);
    match (end, expected_end) {
        (None, None) => {}
        (Some(NetlinkEnd::Whole), Some(0..)) => assert!(!is_interrupted),
        (Some(NetlinkEnd::Interrupted), Some(0..)) => assert!(is_interrupted),
        (Some(NetlinkEnd::Refused { errno, reason }), Some(code @ ..0)) => {
            assert!(errno.raw_os_error() == code.wrapping_neg() || code < -4095);
            assert!(reason.is_none_or(|words| words.len() <= 3 * bytes.len()));
        }
        (end, code) => panic!("{end:?} for {code:?}"),
    }
    found.iter().for_each(|(_, body)| socket(body));
    socket(bytes);
});

/// netlink(7), as simply as possible: what belongs to the answer.
fn messages(mut bytes: &[u8]) -> Vec<(u16, u16, &[u8])> {
    let mut found = Vec::new();
    while let Some((header, _)) = bytes.split_first_chunk::<16>() {
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let length = word(0) as usize;
        if length < 16 || length > bytes.len() {
            break;
        }
        if word(8) == SEQUENCE {
            found.push((half(4), half(6), &bytes[16..length]));
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn code(body: &[u8]) -> i32 {
    body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code))
}

/// `struct inet_diag_msg` has 72 bytes; the ports stand from the fifth on, in network order.
fn socket(body: &[u8]) {
    let (connection, listener) = read_any(body);
    if let Some(connection) = connection {
        assert!(body.len() >= 72 && body[1] != 6);
        assert_eq!(connection.local().port(), u16::from_be_bytes([body[4], body[5]]));
        assert_eq!(connection.sender().port(), u16::from_be_bytes([body[6], body[7]]));
        assert_eq!(connection.local().is_ipv4(), body[0] == 2);
    }
    assert_eq!(listener.is_some(), body.len() >= 72);
    if let Some(listener) = listener {
        assert_eq!(listener.local.port(), u16::from_be_bytes([body[4], body[5]]));
    }
}
