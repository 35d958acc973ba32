//! Heads and bodies, well and badly formed; every one at every cut.

mod bodies;
mod properties;
mod requests;
mod responses;
mod written;

use super::*;
use crate::fields::FieldList;

const NO_BODY: &str = "\r\n";

fn read(input: &[u8]) -> Result<Option<(usize, RequestHead)>, HeadError> {
    let mut head = RequestHead::default();
    let len = head.read(input, &mut HeadEnd::default(), &HttpLimits::default())?;
    Ok(len.map(|len| (len, head)))
}

fn read_response(input: &[u8], is_head: bool) -> Result<Option<(usize, ResponseHead)>, HeadError> {
    let mut head = ResponseHead::default();
    let len = head.read(input, &mut HeadEnd::default(), is_head, &HttpLimits::default())?;
    Ok(len.map(|len| (len, head)))
}

/// As [`read`], but the input comes byte by byte.
fn read_slowly(input: &[u8]) -> Result<Option<(usize, RequestHead)>, HeadError> {
    let (mut head, mut end) = (RequestHead::default(), HeadEnd::default());
    for cut in 0..=input.len() {
        if let Some(len) = head.read(&input[..cut], &mut end, &HttpLimits::default())? {
            return Ok(Some((len, head)));
        }
    }
    Ok(None)
}

fn refusal(input: &str) -> HeadError {
    let error = read(input.as_bytes()).expect_err(input);
    assert_eq!(read_slowly(input.as_bytes()).expect_err(input), error, "{input:?}");
    error
}

fn request(fields: &str) -> RequestHead {
    let text = format!("POST /path?query HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    read(text.as_bytes()).expect(fields).expect("whole").1
}

fn refused(fields: &str) -> HeadError {
    refusal(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"))
}

fn response(text: &str) -> ResponseHead {
    read_response(text.as_bytes(), false).expect(text).expect("whole").1
}

/// Takes a body that comes in pieces of `step` bytes: its data, its trailers, and how much of the input was
/// its own.
fn decode(
    length: BodyLength,
    input: &[u8],
    step: usize,
) -> Result<Option<(Vec<u8>, FieldList, usize)>, BodyError> {
    decode_by(BodyDecoder::new(length), input, step)
}

fn decode_by(
    mut decoder: BodyDecoder,
    input: &[u8],
    step: usize,
) -> Result<Option<(Vec<u8>, FieldList, usize)>, BodyError> {
    let (mut data, limits) = (Vec::new(), HttpLimits::default());
    let (mut start, mut end) = (0, 0);
    loop {
        match decoder.next(&input[start..end], &limits)? {
            Piece::Data { skip, len } => {
                assert!(len > 0, "a piece of data without data, after {start} bytes");
                data.extend_from_slice(&input[start + skip..start + skip + len]);
                start += skip + len;
            }
            Piece::End { skip } => return Ok(Some((data, decoder.trailers, start + skip))),
            Piece::More { skip } => {
                start += skip;
                if end == input.len() {
                    return Ok(None);
                }
                end = (end + step).min(input.len());
            }
        }
    }
}

fn chunked(input: &str) -> Result<Option<(String, usize)>, BodyError> {
    chunked_by(&BodyDecoder::new(BodyLength::Chunked), input)
}

fn chunked_by(decoder: &BodyDecoder, input: &str) -> Result<Option<(String, usize)>, BodyError> {
    let whole = decode_by(decoder.clone(), input.as_bytes(), input.len().max(1));
    let slow = decode_by(decoder.clone(), input.as_bytes(), 1);
    assert_eq!(whole.as_ref().err(), slow.as_ref().err(), "{input:?}");
    let (whole, slow) = (whole?, slow?);
    let told = |body: Option<(Vec<u8>, FieldList, usize)>| {
        body.map(|(data, _, len)| (String::from_utf8(data).unwrap(), len))
    };
    let (whole, slow) = (told(whole), told(slow));
    assert_eq!(whole, slow, "{input:?}");
    Ok(whole)
}
