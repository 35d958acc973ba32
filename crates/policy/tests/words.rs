//! Rules as they are written and printed.

use std::time::Duration;

use truepeer_policy::{
    Claims, ClientAddr, Destinations, DestinationsError, Dialect, HeaderError, HeaderReader, HeaderRule,
    HeaderTimes, HostAddresses, Nat64Prefix, OnConflict, Opening, PrefixSet, Senders, SpecialRange,
};
use truepeer_proto::{DecodeErrorKind, Limits};

fn reader(limits: Limits) -> HeaderReader {
    HeaderReader { rule: HeaderRule::Require, limits, times: HeaderTimes::default() }
}

fn destinations(text: &str) -> Destinations {
    text.parse().expect(text)
}

#[test]
fn dialects_are_called_by_their_names() {
    use Dialect::{Every, First, Spp, Standalone};
    for dialect in [Every, First, Standalone, Spp] {
        assert_eq!(dialect.to_string().parse(), Ok(dialect));
        assert_eq!(dialect.has_bare_datagrams(), matches!(dialect, First | Standalone));
        // The receiver forgets before the sender; a sender of ours, before the receiver.
        assert!(dialect.default_silence_sending() <= dialect.default_silence());
    }
    assert_eq!(First.default_silence(), Duration::from_secs(28));
    assert_eq!(Every.default_silence(), Duration::from_secs(60));
    assert_eq!(Standalone.default_silence_sending(), Duration::from_secs(20));
    let error = "each".parse::<Dialect>().expect_err("no dialect");
    assert_eq!(
        error.to_string(),
        "expected every (dnsdist, udppp), first (frp since 0.67, NGINX), standalone (Cloudflare Spectrum) or spp (Simple Proxy Protocol)"
    );
}

#[test]
fn rules_are_called_by_their_names() {
    for rule in [HeaderRule::Require, HeaderRule::Optional, HeaderRule::Forbid] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    let error = "maybe".parse::<HeaderRule>().expect_err("no rule").to_string();
    assert_eq!(error, "\"maybe\" is not a header rule: expected require, optional or forbid");
    for rule in [OnConflict::Ephemeral, OnConflict::Refuse] {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    let error = "fail".parse::<OnConflict>().expect_err("no rule").to_string();
    assert_eq!(error, "\"fail\" is not a conflict rule: expected ephemeral or refuse");
}

#[test]
fn prefixes_are_printed_as_they_are_written() {
    let set = PrefixSet::parse_file("192.0.2.0/24\n2001:db8::/32\n").expect("prefixes");
    assert_eq!(set.to_string(), "192.0.2.0/24 2001:db8::/32");
    assert_eq!(set, PrefixSet::parse_file(&set.to_string().replace(' ', "\n")).expect("prefixes"));
    assert_eq!(format!("{set:?}"), "{192.0.2.0/24, 2001:db8::/32}");
    assert_ne!(set, PrefixSet::any());
    assert!(PrefixSet::default().is_empty() && !set.is_empty());
    assert_eq!("64:ff9b::/96".parse::<Nat64Prefix>().expect("a prefix").to_string(), "64:ff9b::/96");
    let client = ClientAddr::new("192.0.2.1:7".parse().expect("an address"));
    assert_eq!(
        (client.to_string(), format!("{client:?}")),
        ("192.0.2.1:7".to_owned(), "ClientAddr(192.0.2.1:7)".to_owned())
    );
}

#[test]
fn a_set_of_destinations_has_each_prefix_with_each_of_its_ports() {
    let mut all = Destinations::default();
    assert!(all.is_empty() && all.iter().next().is_none());
    all.extend(&destinations("192.0.2.0/24:80,8000-8010"));
    all.extend(&destinations("2001:db8::/32"));
    assert!(!all.is_empty());
    let listed: Vec<String> =
        all.iter().map(|(prefix, ports)| format!("{prefix} {}-{}", ports.start(), ports.end())).collect();
    assert_eq!(listed, ["192.0.2.0/24 80-80", "192.0.2.0/24 8000-8010", "2001:db8::/32 0-65535"]);
    for (address, is_in) in [
        ("192.0.2.7:80", true),
        ("192.0.2.7:8010", true),
        ("192.0.2.7:8011", false),
        ("[2001:db8::1]:1", true),
        ("192.0.3.7:80", false),
    ] {
        assert_eq!(all.contains(address.parse().expect(address)), is_in, "{address}");
    }
    assert_eq!(format!("{:?}", destinations("192.0.2.0/24:80")), "Destinations(192.0.2.0/24:80)");
}

#[test]
fn destinations_are_printed_as_they_are_written() {
    let mut all = destinations("192.0.2.0/24:80,8000-8010");
    all.extend(&destinations("[2001:db8::/32]:443"));
    all.extend(&destinations("2001:db9::/32"));
    assert_eq!(all.to_string(), "192.0.2.0/24:80,8000-8010 [2001:db8::/32]:443 2001:db9::/32");
    assert_eq!(destinations("[2001:db8::1]").to_string(), "2001:db8::1/128");
    assert_eq!(destinations("192.0.2.1:65535"), destinations("192.0.2.1/32:65535-65535"));
    assert_ne!(destinations("192.0.2.1:80"), destinations("192.0.2.1:81"));
}

#[test]
fn wrong_destinations_are_refused_by_their_wrong_part() {
    for text in
        ["", "192.0.2.256:80", "[2001:db8::1]x", "[2001:db8::1", "2001:db8::/32:443", "host.example:80"]
    {
        assert_eq!(text.parse::<Destinations>(), Err(DestinationsError::Prefix(text.to_owned())), "{text}");
    }
    for ports in ["", "0", "0-9", "9-8", "80,", "80-", "-80", "65536", "http"] {
        let text = format!("192.0.2.1:{ports}");
        assert_eq!(text.parse::<Destinations>(), Err(DestinationsError::Ports(ports.to_owned())), "{text}");
    }
}

#[test]
fn each_special_range_says_what_it_is() {
    for (address, said) in [
        ("127.0.0.1", "a loopback address"),
        ("::", "an unspecified address"),
        ("ff02::1", "a multicast address"),
        ("255.255.255.255", "the broadcast address"),
        ("240.0.0.1", "a class E address"),
        ("::7", "an IPv4-compatible IPv6 address"),
    ] {
        let range = SpecialRange::of(address.parse().expect(address)).expect(address);
        assert_eq!(range.to_string(), said, "{address}");
    }
    assert_eq!(SpecialRange::Host.to_string(), "an address of this host");
    assert_eq!(SpecialRange::of("192.0.2.1".parse().expect("an address")), None);
}

#[test]
fn what_is_debugged_names_no_function() {
    let claims = Claims::default();
    assert!(format!("{claims:?}").contains("HostAddresses"), "{claims:?}");
    assert_eq!(format!("{:?}", HostAddresses::default()), "HostAddresses");
    let senders = format!("{:?}", Senders::default());
    assert!(senders.contains("127.0.0.0/8") && senders.contains("Require"), "{senders}");
}

#[test]
fn only_what_was_a_header_is_complained_of() {
    let reader = reader(Limits::default());
    let complaint = |opening| match opening {
        Opening::Refused(error) => error.complaint(),
        other => panic!("{other:?}"),
    };
    assert_eq!(complaint(reader.on_end(b"")), None);
    assert_eq!(complaint(Opening::Refused(reader.on_reset())), None);
    assert_eq!(complaint(reader.on_end(b"PROXY TC")), Some("header_cut_short"));
    assert_eq!(complaint(reader.on_bytes(b"GET / HTTP/1.1\r\n")), Some(DecodeErrorKind::NotProxy.as_str()));
    let late = reader.on_timeout(b"PROXY TC", reader.times.timeout);
    assert_eq!(complaint(late), Some("header_timeout"));
}

#[test]
fn a_header_that_is_only_too_long_is_told_apart() {
    let reader = reader(Limits { max_len: 32, ..Limits::default() });
    let long = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x02\x00";
    let Opening::Refused(error) = reader.on_bytes(long) else { panic!("{:?}", reader.on_bytes(long)) };
    assert!(error.is_too_long(), "{error}");
    assert!(!HeaderError::Absent.is_too_long());
}
