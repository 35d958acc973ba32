//! Chunked bodies: no panic, bounded work, the same data however they are cut, and the same as a plain
//! decoder's.
#![no_main]

#[allow(dead_code, reason = "not every target uses all of it")]
mod plain;

use libfuzzer_sys::fuzz_target;
use truepeer_http::fields::FieldList;
use truepeer_http::{BodyDecoder, BodyError, BodyLength, HttpLimits, Piece, write};

/// The outcome of a body.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// Its data, and its encoded length.
    Whole(Vec<u8>, usize),
    Unfinished,
    Refused,
}

fuzz_target!(|bytes: &[u8]| {
    let [step, bytes @ ..] = bytes else { return };
    let whole = decode(bytes, bytes.len().max(1));
    assert_eq!(decode(bytes, 1 + usize::from(*step % 16)), whole);
    let limits = HttpLimits::default();
    match (whole, plain::chunked(bytes)) {
        (Outcome::Whole(data, len), plainly) => {
            assert_eq!(plainly, Some((data.clone(), len)));
            written_again(&data, usize::from(*step) + 1);
        }
        // It exceeded a limit.
        (_, Some((data, len))) => {
            assert!(len - data.len() > limits.chunk_extension_bytes.min(limits.fields), "{data:x?}");
        }
        (Outcome::Unfinished | Outcome::Refused, None) => {}
    }
});

/// As exchanges read: pieces arrive, used bytes are removed.
fn decode(bytes: &[u8], step: usize) -> Outcome {
    let (limits, mut decoder) = (HttpLimits::default(), BodyDecoder::new(BodyLength::Chunked));
    let (mut data, mut used, mut come) = (Vec::new(), 0, 0);
    let mut work = 2 * bytes.len() + 2;
    loop {
        work = work.checked_sub(1).expect("work is bounded by the bytes");
        match decoder.next(&bytes[used..come], &limits) {
            Ok(Piece::Data { skip, len }) => {
                assert!(len > 0);
                data.extend_from_slice(&bytes[used + skip..used + skip + len]);
                used += skip + len;
            }
            Ok(Piece::More { skip }) => {
                used += skip;
                if come == bytes.len() {
                    return Outcome::Unfinished;
                }
                come = (come + step).min(bytes.len());
            }
            Ok(Piece::End { skip }) => {
                used += skip;
                assert!(used <= come);
                return Outcome::Whole(data, used);
            }
            Err(BodyError::Trailers | BodyError::TrailersTooLong) => return Outcome::Refused,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return Outcome::Refused;
            }
        }
    }
}

fn written_again(data: &[u8], size: usize) {
    let mut out = Vec::new();
    for chunk in data.chunks(size) {
        write::chunk_start(&mut out, chunk.len());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    write::chunks_end(&mut out, &FieldList::default());
    assert_eq!(decode(&out, out.len()), Outcome::Whole(data.to_vec(), out.len()));
}
