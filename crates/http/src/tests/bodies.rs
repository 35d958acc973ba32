//! Bodies, and their trailers.

use super::*;

#[test]
fn chunks_are_put_together() {
    for (input, data) in [
        ("0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\nGET", "hello"),
        ("1\r\na\r\nA\r\n0123456789\r\n00\r\n\r\n", "a0123456789"),
        ("3;a=\"b\" ;c\r\nabc\r\n0;last\r\nA: b\r\n\r\n", "abc"),
    ] {
        let (found, len) = chunked(input).unwrap().expect(input);
        assert_eq!(found, data);
        assert!(input[len..].is_empty() || &input[len..] == "GET", "{input:?}");
    }
}

#[test]
fn unfinished_bodies_have_no_end() {
    let whole = "5;x\r\nhello\r\n0\r\nA: b\r\n\r\n";
    for cut in 0..whole.len() {
        assert_eq!(chunked(&whole[..cut]), Ok(None), "{cut}");
    }
}

#[test]
fn chunks_that_could_be_read_in_two_ways_are_refused() {
    for (input, error) in [
        ("\r\n", BodyError::ChunkSize),
        ("x\r\n", BodyError::ChunkSize),
        ("+1\r\na", BodyError::ChunkSize),
        ("-1\r\na", BodyError::ChunkSize),
        (" 1\r\na", BodyError::ChunkSize),
        ("1 \r\na", BodyError::ChunkSize),
        ("1 ;x\r\na", BodyError::ChunkSize),
        ("0x1\r\na", BodyError::ChunkSize),
        ("1\na", BodyError::ChunkSize),
        ("1\rX", BodyError::ChunkSize),
        (";x\r\n", BodyError::ChunkSize),
        ("8000000000000000\r\n", BodyError::ChunkSize),
        ("10000000000000000\r\n", BodyError::ChunkSize),
        ("00000000000000001\r\n", BodyError::ChunkSize),
        ("1;a\nb\r\n", BodyError::ChunkExtension),
        ("1;\0\r\n", BodyError::ChunkExtension),
        ("1;\u{7f}\r\n", BodyError::ChunkExtension),
        ("1;a\rb", BodyError::ChunkSize),
        ("1\r\nab\r\n", BodyError::ChunkEnd),
        ("1\r\na\n0\r\n", BodyError::ChunkEnd),
        ("1\r\na\rX", BodyError::ChunkEnd),
        ("0\r\nA : b\r\n\r\n", BodyError::Trailers),
        ("0\r\nA: b\n\n", BodyError::Trailers),
        ("0\r\nGET / HTTP/1.1\r\n\r\n", BodyError::Trailers),
    ] {
        assert_eq!(chunked(input), Err(error), "{input:?}");
    }
}

#[test]
fn only_responses_may_pad_their_sizes() {
    let padded = |input: &str| chunked_by(&BodyDecoder::of_response(BodyLength::Chunked), input);
    for whole in [
        "5 \t \r\nhello\r\n0   \r\n\r\n",
        "5\t\r\nhello\r\n0\r\n\r\n",
        "5 ;x=y\r\nhello\r\n0 \r\nA: b\r\n\r\n",
        "0005    \r\nhello\r\n000 \r\n\r\n",
    ] {
        assert_eq!(padded(whole), Ok(Some(("hello".to_owned(), whole.len()))), "{whole:?}");
        assert_eq!(chunked(whole), Err(BodyError::ChunkSize), "{whole:?}");
        (0..whole.len()).for_each(|cut| assert_eq!(padded(&whole[..cut]), Ok(None), "{cut}"));
    }
    let zeros = format!("{0}5\r\nhello\r\n{0}\r\n\r\n", "0".repeat(30));
    assert_eq!(padded(&zeros), Ok(Some(("hello".to_owned(), zeros.len()))));
    assert_eq!(padded(&format!("{}5\r\n", "0".repeat(5000))), Err(BodyError::ChunkExtensionsTooLong));
    for input in [" 5\r\n", "5 5\r\n", "5 \n", "5\u{b}\r\n", " \r\n", "5 \rx", "5 x\r\n", "5\u{a0}\r\n"] {
        assert_eq!(padded(input), Err(BodyError::ChunkSize), "{input:?}");
    }
    assert_eq!(padded(&format!("1{}\r\n", " ".repeat(5000))), Err(BodyError::ChunkExtensionsTooLong));
    for chunk in ["1 \r\na\r\n", "1       \r\na\r\n", "1;x=0123456789\r\na\r\n"] {
        let many = format!("{}0\r\n\r\n", chunk.repeat(10_000));
        assert_eq!(padded(&many), Ok(Some(("a".repeat(10_000), many.len()))), "{chunk:?}");
    }
}

#[test]
fn what_surrounds_chunks_has_limits() {
    let long = "x".repeat(5000);
    assert_eq!(chunked(&format!("1;{long}\r\na\r\n")), Err(BodyError::ChunkExtensionsTooLong));
    assert_eq!(chunked(&"1;0123456789\r\na\r\n".repeat(500)), Err(BodyError::ChunkExtensionsTooLong));
    assert_eq!(chunked(&format!("0\r\nA: {long}{long}")), Err(BodyError::TrailersTooLong));
    assert_eq!(chunked(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(257))), Err(BodyError::TrailersTooLong));
}

#[test]
fn trailers_may_not_say_what_heads_say() {
    let input = b"0\r\nX-Sum: 1\r\nContent-Length: 5\r\nHost: b\r\nX-Forwarded-For: 1\r\nCookie: x\r\nDigest: y\r\n\r\n";
    let (_, trailers, _) = decode(BodyLength::Chunked, input, input.len()).unwrap().unwrap();
    let names: Vec<_> = trailers.iter().map(|field| field.spelt).collect();
    assert_eq!(names, [b"X-Sum".as_slice(), b"Digest"]);
}

#[test]
fn bodies_of_known_length_end_there() {
    assert_eq!(decode(BodyLength::Known(3), b"abcGET", 6).unwrap().unwrap().0, b"abc");
    assert_eq!(decode(BodyLength::None, b"GET", 3).unwrap().unwrap().2, 0);
    assert!(decode(BodyLength::Known(4), b"abc", 1).unwrap().is_none());
    assert!(decode(BodyLength::UntilClose, b"abc", 1).unwrap().is_none());
    assert!(BodyDecoder::new(BodyLength::UntilClose).ends_with_the_stream());
    assert!(!BodyDecoder::new(BodyLength::Chunked).ends_with_the_stream());
}
