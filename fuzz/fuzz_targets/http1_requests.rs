//! Heads of requests: no panic; what truepeer accepts, a plain parser accepts with the same meaning; what
//! truepeer writes has the same meaning again.
#![no_main]

#[allow(dead_code, reason = "not every target uses all of it")]
mod plain;

use libfuzzer_sys::fuzz_target;
use truepeer_http::fields::forwarded::Forwarding;
use truepeer_http::{BodyLength, HeadEnd, HeadError, HttpLimits, HttpVersion, RequestHead, write};

fuzz_target!(|bytes: &[u8]| {
    let limits = HttpLimits::default();
    let mut head = RequestHead::default();
    let whole = head.read(bytes, &mut HeadEnd::default(), &limits);
    piecewise(bytes, whole);
    let Ok(Some(len)) = whole else { return };
    let plainly = plain::head(bytes).expect("a plain head");
    assert_eq!(plainly.len, len);
    let words: Vec<_> = plainly.first_line.split(|&byte| byte == b' ').collect();
    let [method, target, version] = words[..] else { panic!("{words:?}") };
    assert_eq!(head.method(), method);
    assert!(target.ends_with(head.target()) || target.starts_with(b"http") || !target.starts_with(b"/"));
    // HTTP/1.2 and later are served as 1.1 (RFC 9110, 2.5).
    let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ b'0'..=b'9'] = version else {
        panic!("{}", version.escape_ascii())
    };
    assert_eq!(*minor == b'0', head.version == HttpVersion::Http10);
    let ours: Vec<_> = head.fields.iter().map(|field| (field.spelt, field.value)).collect();
    assert_eq!(ours, plainly.fields);
    assert!(plainly.values("host").len() <= 1);
    assert_eq!(plainly.framing(), Some(framing(head.length)));
    assert!(head.length != BodyLength::Chunked || head.version == HttpVersion::Http11);
    if !head.host().is_empty() {
        written_again(&head, &limits);
    }
});

fn framing(length: BodyLength) -> plain::Framing {
    match length {
        BodyLength::None | BodyLength::UntilClose => plain::Framing::Nothing,
        BodyLength::Known(length) => plain::Framing::Length(length),
        BodyLength::Chunked => plain::Framing::Chunked,
    }
}

/// However the bytes are cut, the result is the same, and never before the end of a head.
fn piecewise(bytes: &[u8], whole: Result<Option<usize>, HeadError>) {
    let (mut head, mut end) = (RequestHead::default(), HeadEnd::default());
    let step = 1 + bytes.len() / 64;
    let cuts = (0..bytes.len()).step_by(step).chain([bytes.len()]);
    for cut in cuts {
        match head.read(&bytes[..cut], &mut end, &HttpLimits::default()) {
            Ok(None) => {}
            Ok(Some(len)) => return assert_eq!(whole, Ok(Some(len))),
            // With several faults, another one may be found first.
            Err(_) => return assert!(whole.is_err()),
        }
    }
    assert_eq!(whole, Ok(None));
}

/// The request to the origin is one head with the same meaning, whatever arrived.
fn written_again(head: &RequestHead, limits: &HttpLimits) {
    let forwarding = Forwarding {
        client: std::net::Ipv6Addr::LOCALHOST.into(),
        proto: "https",
        host: head.host(),
        client_subject: None,
        is_trusted: head.fields.len() % 2 == 0,
        tells_the_client: true,
    };
    let mut out = Vec::new();
    write::request(&mut out, head, &forwarding, head.length);
    let plainly = plain::head(&out).expect("a plain head");
    assert_eq!(plainly.len, out.len());
    assert_eq!(plainly.framing(), Some(framing(head.length)));
    assert_eq!(plainly.values("host"), [head.host()]);
    // Each family at most once, and one of them at least; a stranger's words are replaced in both.
    let lists = [plainly.values("forwarded").len(), plainly.values("x-forwarded-for").len()];
    assert!(lists.contains(&1) && lists.iter().all(|count| *count <= 1));
    assert!(forwarding.is_trusted || lists == [1, 1]);
    assert!(plainly.first_line == [head.method(), b" ", head.target(), b" HTTP/1.1"].concat());
    // truepeer's parser accepts it, too, unless it has become longer than the limit.
    let mut again = RequestHead::default();
    match again.read(&out, &mut HeadEnd::default(), limits) {
        Ok(len) => {
            assert_eq!(len, Some(out.len()));
            assert_eq!((again.method(), again.target()), (head.method(), head.target()));
            assert_eq!((again.host(), again.length), (head.host(), head.length));
        }
        Err(error) => assert!(matches!(error, HeadError::TooManyFields | HeadError::TooLong), "{error}"),
    }
}
