//! The fields that name the client: what an origin is told, by HTTP/1's writer, compared with the rules as a
//! table.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use truepeer_http::fields::forwarded::Forwarding;
use truepeer_http::fields::{FieldList, FieldName, auth, hop};
use truepeer_http::{is_valid_host, query};

fuzz_target!(|bytes: &[u8]| {
    let Some((&[how, a, b], rest)) = bytes.split_first_chunk() else { return };
    let (host, rest) = rest.split_at(usize::from(a & 31).min(rest.len()));
    let fields = fields(rest);
    let forwarding = Forwarding {
        client: if how & 1 == 0 {
            Ipv4Addr::new(192, 0, 2, b).into()
        } else {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, b.into()).into()
        },
        proto: "https",
        host: if is_valid_host(host) { host } else { b"" },
        client_subject: (how & 2 != 0).then_some("CN=ann"),
        is_trusted: how & 4 != 0,
        tells_the_client: how & 8 != 0,
    };
    host_is_one(host);
    query_is_read(host);
    told(&forwarding, &fields);
    let _ = auth::binds_the_connection(&fields);
});

/// One field a line, `name:value`; what is no field is left out.
fn fields(bytes: &[u8]) -> FieldList {
    const NAMES: [&str; 14] = [
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "X-Real-IP",
        "Remote-User",
        "Client-Cert",
        "X-SSL-Client-Verify",
        "Connection",
        "X_Forwarded_For",
        "TE",
        "Accept",
        "Authorization",
        "X-Forwarded-Port",
    ];
    let mut list = FieldList::default();
    for line in bytes.split(|&byte| byte == b'\n') {
        let Some((&first, rest)) = line.split_first() else { continue };
        let is_value =
            |value: &[u8]| value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f));
        if let Some(name) = NAMES.get(usize::from(first)) {
            if is_value(rest) {
                list.push(name.as_bytes(), rest.trim_ascii());
            }
        } else if let Some(colon) = line.iter().position(|&byte| byte == b':') {
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            let is_name =
                name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte));
            if is_name && !name.is_empty() && is_value(value) {
                list.push(name, value.trim_ascii());
            }
        }
    }
    list
}

fn told(forwarding: &Forwarding<'_>, fields: &FieldList) {
    let mut out = Vec::new();
    for field in hop::onward(fields).filter(|field| forwarding.keeps(field)) {
        assert!(forwarding.is_trusted || !field.name.names_the_client(), "{}", field.spelt.escape_ascii());
        assert_ne!(field.name, FieldName::LookAlike);
        out.extend_from_slice(&[field.spelt, b": ", field.value, b"\r\n"].concat());
    }
    let kept = out.len();
    forwarding.write(fields, &mut out);
    let written = lines(&out[kept..]);
    let all = lines(&out);
    let values = |lines: &[(Vec<u8>, Vec<u8>)], name: &str| -> Vec<Vec<u8>> {
        let of = lines.iter().filter(|(spelt, _)| spelt.eq_ignore_ascii_case(name.as_bytes()));
        of.map(|(_, value)| value.clone()).collect()
    };
    // Only truepeer writes the fields of certificates.
    for name in ["X-SSL-Client-Verify", "X-SSL-Client-S-DN"] {
        assert_eq!(values(&all, name).len(), usize::from(forwarding.client_subject.is_some()));
    }
    let protos = values(&all, "X-Forwarded-Proto");
    assert!(forwarding.is_trusted || protos == [b"https"]);
    if !forwarding.tells_the_client {
        assert!(values(&written, "Forwarded").is_empty() && values(&written, "X-Forwarded-For").is_empty());
        return;
    }
    let (chains, lists) = (values(&all, "X-Forwarded-For"), values(&all, "Forwarded"));
    assert!(chains.len() <= 1 && lists.len() <= 1);
    if !forwarding.is_trusted {
        assert_eq!(chains, [forwarding.client.to_string().into_bytes()]);
        assert_eq!(lists, [element(forwarding)]);
        assert_eq!(values(&all, "X-Forwarded-Host").len(), usize::from(!forwarding.host.is_empty()));
        return;
    }
    // A trusted sender's words are kept, and it is appended to a family at least. A list of the other family
    // stays as it came, or is not begun.
    let said = |name| fields.values(name).any(|value| !value.is_empty());
    let last = |chain: &Vec<u8>| {
        chain.split(|&byte| byte == b',').next_back().map(|last| address(last.trim_ascii()))
    };
    let is_in_chain = chains.first().and_then(last) == Some(Some(forwarding.client));
    let is_in_list = lists.first().is_some_and(|list| list.ends_with(&element(forwarding)));
    assert!(is_in_chain || is_in_list);
    assert!(is_in_chain || chains.is_empty() && !said(FieldName::XForwardedFor));
    assert!(is_in_list || lists.is_empty() || said(FieldName::Forwarded));
}

fn lines(out: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text = out.strip_suffix(b"\r\n").unwrap_or(out);
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            assert!(!line.contains(&b'\r'));
            let colon = line.windows(2).position(|two| two == b": ").expect("a field");
            (line[..colon].to_vec(), line[colon + 2..].to_vec())
        })
        .collect()
}

fn address(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// RFC 7239 section 4.
fn element(forwarding: &Forwarding<'_>) -> Vec<u8> {
    let client = match forwarding.client {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("\"[{ip}]\""),
    };
    let host = match forwarding.host {
        b"" => Vec::new(),
        host => [b";host=\"", host, b"\""].concat(),
    };
    [format!("for={client}").as_bytes(), &host, b";proto=https"].concat()
}

/// A valid host is one host for everybody: no separator, and a port of digits.
fn host_is_one(host: &[u8]) {
    if !is_valid_host(host) {
        return;
    }
    let text = std::str::from_utf8(host).expect("ASCII");
    assert!(!text.contains([' ', ',', '/', '?', '#', '@', '\\', '"', ';']) && !text.is_empty());
    let port = match text.strip_prefix('[') {
        Some(inside) => inside.split_once(']').map(|(ip, port)| {
            assert!(ip.parse::<Ipv6Addr>().is_ok());
            port.strip_prefix(':').unwrap_or(port)
        }),
        None => text.split_once(':').map(|(_, port)| port),
    };
    assert!(port.unwrap_or_default().bytes().all(|byte| byte.is_ascii_digit()));
}

/// As many pairs as there are texts between `&`; nothing grows but by bytes that are not UTF-8.
fn query_is_read(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let pairs: Vec<_> = query::pairs(&text).collect();
    assert_eq!(pairs.len(), text.split('&').filter(|pair| !pair.is_empty()).count());
    assert!(pairs.iter().all(|(_, value)| value.len() <= 3 * text.len()));
}
