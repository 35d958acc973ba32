//! Heads of responses, as in `http1_requests`. The first byte selects whether the request was HEAD.
#![no_main]

#[allow(dead_code, reason = "not every target uses all of it")]
mod plain;

use libfuzzer_sys::fuzz_target;
use truepeer_http::{BodyLength, HeadEnd, HeadError, HttpLimits, HttpVersion, ResponseHead, write};

fuzz_target!(|bytes: &[u8]| {
    let [first, bytes @ ..] = bytes else { return };
    let (is_head, limits) = (first % 2 == 1, HttpLimits::default());
    let mut head = ResponseHead::default();
    let whole = head.read(bytes, &mut HeadEnd::default(), is_head, &limits);
    piecewise(bytes, is_head, whole);
    let Ok(Some(len)) = whole else { return };
    let plainly = plain::head(bytes).expect("a plain head");
    assert_eq!(plainly.len, len);
    let ours: Vec<_> = head.fields.iter().map(|field| (field.spelt, field.value)).collect();
    assert_eq!(ours, plainly.fields);
    assert!((100..1000).contains(&head.status));
    assert_eq!(plainly.first_line[9..12], *head.status.to_string().as_bytes());
    let has_no_body = is_head || head.status < 200 || head.status == 204 || head.status == 304;
    let expected = match plainly.framing().expect("one length at most") {
        _ if has_no_body => BodyLength::None,
        plain::Framing::Nothing => BodyLength::UntilClose,
        plain::Framing::Length(length) => BodyLength::Known(length),
        plain::Framing::Chunked => BodyLength::Chunked,
    };
    assert_eq!(head.length, expected);
    written_again(&head, is_head, &limits);
});

fn piecewise(bytes: &[u8], is_head: bool, whole: Result<Option<usize>, HeadError>) {
    let (mut head, mut end) = (ResponseHead::default(), HeadEnd::default());
    let step = 1 + bytes.len() / 64;
    let cuts = (0..bytes.len()).step_by(step).chain([bytes.len()]);
    for cut in cuts {
        match head.read(&bytes[..cut], &mut end, is_head, &HttpLimits::default()) {
            Ok(None) => {}
            Ok(Some(len)) => return assert_eq!(whole, Ok(Some(len))),
            // With several faults, another one may be found first.
            Err(_) => return assert!(whole.is_err()),
        }
    }
    assert_eq!(whole, Ok(None));
}

fn written_again(head: &ResponseHead, is_head: bool, limits: &HttpLimits) {
    let mut out = Vec::new();
    // As exchanges do: a body that ends with the origin's connection is sent on in chunks.
    let length = if head.length == BodyLength::UntilClose { BodyLength::Chunked } else { head.length };
    match head.status {
        101 => write::switching(&mut out, head),
        100..200 => write::interim(&mut out, head),
        _ => {
            let answer =
                write::ResponseFraming { length, version: HttpVersion::Http11, keep_alive: head.keep_alive };
            write::response(&mut out, head, answer);
        }
    }
    let plainly = plain::head(&out).expect("a plain head");
    assert_eq!(plainly.len, out.len());
    let mut again = ResponseHead::default();
    match again.read(&out, &mut HeadEnd::default(), is_head, limits) {
        Ok(len) => {
            assert_eq!(len, Some(out.len()));
            assert_eq!((again.status, again.length), (head.status, length));
        }
        Err(error) => assert!(matches!(error, HeadError::TooManyFields | HeadError::TooLong), "{error}"),
    }
}
