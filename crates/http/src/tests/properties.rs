//! Properties of the parsers: with any message, and with any bytes.

use proptest::prelude::*;

use super::*;
use crate::fields::FieldName;

/// Pieces of which requests are made, good and bad.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "GET",
        "POST",
        " ",
        "/",
        "/a?b",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "Host: a\r\n",
        "Host: b:1\r\n",
        "\r\n",
        "\n",
        "\r",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "X: y\r\n",
        " folded\r\n",
        "5\r\nhello\r\n",
        "0\r\n",
        "hello",
        "\0",
        "http://a/",
        "*",
        "OPTIONS",
        ": ",
        "Expect: 100-continue\r\n",
    ])
}

fn pieces() -> impl Strategy<Value = String> {
    let line = prop::sample::select(vec!["GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\n", ""]);
    (line, prop::collection::vec(piece(), 0..12))
        .prop_map(|(line, pieces)| format!("{line}{}\r\n\r\n", pieces.concat()))
}

proptest! {
    #[test]
    fn pieces_do_not_change_what_is_read(text in pieces()) {
        let (whole, slow) = (read(text.as_bytes()), read_slowly(text.as_bytes()));
        match (whole, slow) {
            (Ok(Some((len, head))), Ok(Some((slow_len, slow_head)))) => {
                prop_assert_eq!(len, slow_len);
                prop_assert_eq!(head.target(), slow_head.target());
                prop_assert_eq!(head.length, slow_head.length);
            }
            (whole, slow) => prop_assert_eq!(whole.map(|_| ()), slow.map(|_| ())),
        }
    }

    /// A written message is parsed back with the same meaning: nothing in it changes its framing.
    #[test]
    fn what_is_written_says_the_same(text in pieces()) {
        let Ok(Some((_, head))) = read(text.as_bytes()) else { return Ok(()) };
        let forwarding = fields::forwarded::Forwarding {
            client: "2001:db8::1".parse().unwrap(), proto: "https", host: head.host(), client_subject: None, is_trusted: true, tells_the_client: true,
        };
        let mut out = Vec::new();
        write::request(&mut out, &head, &forwarding, head.length);
        if head.version == HttpVersion::Http10 && head.host().is_empty() { return Ok(()); }
        let (len, again) = read(&out).unwrap().unwrap();
        prop_assert_eq!(len, out.len());
        prop_assert_eq!((again.method(), again.target(), again.host()), (head.method(), head.target(), head.host()));
        prop_assert_eq!(again.length, head.length);
        prop_assert!(again.fields.values(FieldName::Forwarded).count() == 1);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let _ = read_response(&bytes, false);
        let whole = decode(BodyLength::Chunked, &bytes, bytes.len().max(1)).map(|body| body.map(|(data, _, len)| (data, len)));
        let slow = decode(BodyLength::Chunked, &bytes, 1).map(|body| body.map(|(data, _, len)| (data, len)));
        prop_assert_eq!(whole, slow);
    }

    #[test]
    fn chunks_of_any_sizes_are_put_together(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..8), step in 1_usize..40) {
        let mut input = Vec::new();
        for chunk in &chunks {
            write::chunk_start(&mut input, chunk.len());
            input.extend_from_slice(chunk);
            input.extend_from_slice(b"\r\n");
        }
        write::chunks_end(&mut input, &FieldList::default());
        let (data, _, len) = decode(BodyLength::Chunked, &input, step).unwrap().unwrap();
        prop_assert_eq!(data, chunks.concat());
        prop_assert_eq!(len, input.len());
    }
}
