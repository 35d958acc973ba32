//! Limits to the last byte: what has exactly their size passes, and one byte more is refused.

use super::*;

fn request(text: &str, limits: &HttpLimits) -> Result<bool, HeadError> {
    RequestHead::default().read(text.as_bytes(), &mut HeadEnd::default(), limits).map(|len| len.is_some())
}

#[test]
fn a_head_may_have_as_many_bytes_as_its_limit() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let exact = HttpLimits { head_bytes: head.len(), ..HttpLimits::default() };
    let less = HttpLimits { head_bytes: head.len() - 1, ..exact };
    assert_eq!(request(head, &exact), Ok(true));
    assert_eq!(request(head, &less), Err(HeadError::TooLong));
    // The empty line before it doesn't count.
    assert_eq!(request(&format!("\r\n{head}"), &exact), Ok(true));
    assert_eq!(request(&format!("\r\n{head}"), &less), Err(HeadError::TooLong));
    // Nor does what follows.
    assert_eq!(request(&format!("{head}{head}"), &exact), Ok(true));
}

#[test]
fn a_head_without_end_may_have_as_many_bytes_as_its_limit() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nX";
    let exact = HttpLimits { head_bytes: head.len(), ..HttpLimits::default() };
    assert_eq!(request(head, &exact), Ok(false));
    assert_eq!(request(&format!("\r\n{head}"), &exact), Ok(false));
    assert_eq!(request(&format!("{head}x"), &exact), Err(HeadError::TooLong));
}

#[test]
fn a_target_may_have_as_many_bytes_as_its_limit() {
    let limits = HttpLimits { target_bytes: 5, ..HttpLimits::default() };
    assert_eq!(request("GET /abcd HTTP/1.1\r\nHost: a\r\n\r\n", &limits), Ok(true));
    assert_eq!(request("GET /abcde HTTP/1.1\r\nHost: a\r\n\r\n", &limits), Err(HeadError::TargetTooLong));
}

fn end_of_body(body: &str, limits: &HttpLimits) -> Result<usize, BodyError> {
    let (mut decoder, mut at) = (BodyDecoder::new(BodyLength::Chunked), 0);
    loop {
        match decoder.next(&body.as_bytes()[at..], limits)? {
            Piece::Data { skip, len } => at += skip + len,
            Piece::End { skip } => return Ok(at + skip),
            Piece::More { .. } => panic!("{body:?} has no end"),
        }
    }
}

#[test]
fn chunk_extensions_may_have_as_many_bytes_as_their_limit_in_all_chunks_together() {
    let limits = HttpLimits { chunk_extension_bytes: 6, ..HttpLimits::default() };
    let exact = "1;abc\r\nx\r\n0;def\r\n\r\n";
    assert_eq!(end_of_body(exact, &limits), Ok(exact.len()));
    assert_eq!(end_of_body("1;abc\r\nx\r\n0;defg\r\n\r\n", &limits), Err(BodyError::ChunkExtensionsTooLong));
}

#[test]
fn trailers_may_have_as_many_bytes_and_fields_as_their_limits() {
    let trailers = "A: b\r\nC: d\r\n\r\n";
    let body = format!("0\r\n{trailers}");
    let exact = HttpLimits { trailer_bytes: trailers.len(), fields: 2, ..HttpLimits::default() };
    assert_eq!(end_of_body(&body, &exact), Ok(body.len()));
    for less in [HttpLimits { trailer_bytes: trailers.len() - 1, ..exact }, HttpLimits { fields: 1, ..exact }]
    {
        assert_eq!(end_of_body(&body, &less), Err(BodyError::TrailersTooLong));
    }
}
