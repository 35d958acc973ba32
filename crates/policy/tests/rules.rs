//! Each rule as a table.

mod common;

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use common::{BACKEND_4, BACKEND_6, addr, claim, claim_to, header, inet, policy, route, sender, to};
use truepeer_policy::{
    Ban, BannedPrefix, Bans, BansAt, ClientAddr, Dynamic, HeaderRule, HostAddresses, OnConflict, Origin,
    PrefixSet, Refusal, Senders, Source, SpecialRange,
};
use truepeer_proto::{Addresses, Command, Transport, Version};

fn set(text: &str) -> PrefixSet {
    text.parse().expect(text)
}

fn reason<T: std::fmt::Debug>(result: Result<T, Refusal>) -> &'static str {
    result.map_or_else(|refusal| refusal.reason(), |route| panic!("{route:?}"))
}

#[test]
fn only_loopback_may_send_by_default() {
    for (from, is_admitted) in [
        ("127.0.0.1:1", true),
        ("127.9.9.9:1", true),
        ("[::1]:1", true),
        ("[::ffff:127.0.0.1]:1", true),
        ("10.0.0.7:1", false),
        ("[::ffff:10.0.0.7]:1", false),
        ("[fd00::1]:1", false),
        ("[::127.0.0.1]:1", false),
    ] {
        assert_eq!(policy().admit(sender(from)).is_ok(), is_admitted, "{from}");
    }
}

#[test]
fn an_empty_allow_list_admits_nobody() {
    let mut policy = policy();
    policy.senders = Senders::new(PrefixSet::new(), HeaderRule::Require);
    for from in ["127.0.0.1:1", "[::1]:1", "192.0.2.1:1"] {
        assert_eq!(reason(policy.admit(sender(from))), "sender_not_allowed");
        assert_eq!(reason(policy.route(sender(from), Some(&claim("192.0.2.9:9")))), "sender_not_allowed");
    }
}

#[test]
fn the_longest_prefix_decides_whether_a_header_is_expected() {
    let mut senders = Senders::new(PrefixSet::any(), HeaderRule::Require);
    senders.set_rule(&set("10.0.0.0/8"), HeaderRule::Forbid);
    senders.set_rule(&set("10.1.0.0/16"), HeaderRule::Optional);
    senders.set_rule(&set("10.1.1.1"), HeaderRule::Require);
    senders.set_rule(&set("2001:db8::/32"), HeaderRule::Forbid);
    for (from, rule) in [
        ("192.0.2.1:1", HeaderRule::Require),
        ("10.0.0.1:1", HeaderRule::Forbid),
        ("[::ffff:10.0.0.1]:1", HeaderRule::Forbid),
        ("10.1.0.1:1", HeaderRule::Optional),
        ("10.1.1.1:1", HeaderRule::Require),
        ("[2001:db8::1]:1", HeaderRule::Forbid),
        ("[2001:db9::1]:1", HeaderRule::Require),
    ] {
        assert_eq!(senders.rule(sender(from)), rule, "{from}");
    }
}

#[test]
fn a_rule_for_senders_does_not_admit_them() {
    let mut policy = policy();
    policy.senders.set_rule(&set("10.0.0.0/8"), HeaderRule::Optional);
    assert_eq!(reason(policy.admit(sender("10.0.0.1:1"))), "sender_not_allowed");
}

#[test]
fn a_header_is_where_it_must_be_and_nowhere_else() {
    let claim = claim("192.0.2.9:9");
    for (rule, has_header, outcome) in [
        (HeaderRule::Require, true, Ok(Origin::Header)),
        (HeaderRule::Require, false, Err("header_missing")),
        (HeaderRule::Optional, true, Ok(Origin::Header)),
        (HeaderRule::Optional, false, Ok(Origin::NoHeader)),
        (HeaderRule::Forbid, true, Err("header_forbidden")),
        (HeaderRule::Forbid, false, Ok(Origin::NoHeader)),
    ] {
        let mut policy = policy();
        policy.senders = Senders::new(PrefixSet::any(), rule);
        let decided = policy.route(sender("192.0.2.1:1"), has_header.then_some(&claim));
        assert_eq!(
            decided.map(|route| route.origin).map_err(|refusal| refusal.reason()),
            outcome,
            "{rule} {has_header}"
        );
    }
}

#[test]
fn a_claim_is_the_client_with_its_port() {
    let route = route(&policy(), &claim_to("192.0.2.9:65432", "198.51.100.1:25")).expect("routed");
    assert_eq!(route.client.get(), addr("192.0.2.9:65432"));
    assert_eq!(route.source, Some(addr("192.0.2.9:65432")));
    assert_eq!(route.destination, Some(addr("198.51.100.1:25")));
    assert_eq!((route.origin, route.special, route.send_proxy), (Origin::Header, None, None));
    let any_port = common::route(&policy(), &claim("192.0.2.9:0")).expect("routed");
    assert_eq!(any_port.source, Some(addr("192.0.2.9:0")));
}

#[test]
fn headers_that_name_nobody_keep_the_senders_address() {
    let tcp = inet(Transport::Stream, addr("192.0.2.9:9"), addr("192.0.2.8:8"));
    let udp = inet(Transport::Dgram, addr("192.0.2.9:9"), addr("192.0.2.8:8"));
    let unix = Addresses::Unix { transport: Transport::Stream, source: &[0; 108], destination: &[0; 108] };
    let mut policy = policy();
    policy.senders.allow = PrefixSet::any();
    for (header, origin) in [
        (header(Command::Local, Addresses::Unspecified), Origin::Local),
        (header(Command::Local, tcp), Origin::Local),
        (header(Command::Proxy, Addresses::Unspecified), Origin::Unknown),
        (header(Command::Proxy, unix), Origin::Unknown),
        (header(Command::Proxy, udp), Origin::Unknown),
    ] {
        for from in ["10.0.0.7:41000", "[2001:db8::7]:41000", "127.0.0.1:41000"] {
            let route = policy.route(sender(from), Some(&header)).expect("routed");
            assert_eq!((route.client.get(), route.origin), (addr(from), origin), "{from} {header:?}");
            assert_eq!((route.source, route.destination), (Some(addr(from)), None), "{from} {header:?}");
        }
    }
}

#[test]
fn a_header_for_the_listeners_own_transport_names_the_client() {
    let mut policy = policy();
    policy.transport = Transport::Dgram;
    let udp = header(Command::Proxy, inet(Transport::Dgram, addr("192.0.2.9:9"), addr("192.0.2.8:8")));
    assert_eq!(route(&policy, &udp).expect("routed").origin, Origin::Header);
    assert_eq!(route(&policy, &claim("192.0.2.9:9")).expect("routed").origin, Origin::Unknown);
}

/// On this machine its own tuple is always in use, so no rule can require it.
#[test]
fn a_sender_that_stands_for_itself_may_always_have_another_port() {
    let mut policy = policy();
    policy.delivery.on_conflict = OnConflict::Refuse;
    let local = header(Command::Local, Addresses::Unspecified);
    assert_eq!(route(&policy, &local).expect("routed").on_conflict, OnConflict::Ephemeral);
    assert_eq!(route(&policy, &claim("192.0.2.9:9")).expect("routed").on_conflict, OnConflict::Refuse);
}

/// A backend elsewhere can't answer 127.0.0.1: there, this machine's own address is the sender's.
#[test]
fn a_loopback_sender_that_stands_for_itself_is_spoofed_on_loopback_only() {
    let local = header(Command::Local, Addresses::Unspecified);
    let far = route(&to("192.0.2.1:443", BACKEND_6), &local).expect("routed");
    assert_eq!((far.client.get(), far.source), (addr("127.0.0.1:50000"), None));
    let near = route(&policy(), &local).expect("routed");
    assert_eq!(near.source, Some(addr("127.0.0.1:50000")));
}

const IMPOSSIBLE: [(&str, SpecialRange); 12] = [
    ("127.0.0.1:9", SpecialRange::Loopback),
    ("127.1.2.3:9", SpecialRange::Loopback),
    ("[::1]:9", SpecialRange::Loopback),
    ("[::ffff:127.0.0.1]:9", SpecialRange::Loopback),
    ("[64:ff9b::127.0.0.1]:9", SpecialRange::Loopback),
    ("0.0.0.0:9", SpecialRange::Unspecified),
    ("[::]:9", SpecialRange::Unspecified),
    ("224.0.0.1:9", SpecialRange::Multicast),
    ("[ff02::1]:9", SpecialRange::Multicast),
    ("255.255.255.255:9", SpecialRange::Broadcast),
    ("240.0.0.1:9", SpecialRange::ClassE),
    ("[::127.0.0.1]:9", SpecialRange::Ipv4Compatible),
];

#[test]
fn nobody_becomes_localhost_or_who_cannot_be() {
    let mut policy = policy();
    policy.senders.allow = PrefixSet::any();
    for (source, range) in IMPOSSIBLE {
        for from in ["127.0.0.1:1", "[::1]:1", "192.0.2.1:1"] {
            match policy.route(sender(from), Some(&claim(source))) {
                Err(Refusal::ClaimRefused { range: said, .. }) => {
                    assert_eq!(said, range, "{source} by {from}")
                }
                other => panic!("{source} by {from}: {other:?}"),
            }
        }
    }
}

#[test]
fn allowed_claims_pass_with_a_warning() {
    for (source, range) in IMPOSSIBLE {
        let mut policy = policy();
        let Err(Refusal::ClaimRefused { client, .. }) = route(&policy, &claim(source)) else {
            panic!("{source} is not refused");
        };
        policy.claims.allow = set(&client.ip().to_string());
        assert_eq!(route(&policy, &claim(source)).expect("routed").special, Some(range), "{client}");
    }
    let mut policy = policy();
    policy.claims.allow = set("loopback");
    assert_eq!(reason(route(&policy, &claim("0.0.0.0:1"))), "claim_refused");
}

/// This host in the tests: 10.0.0.9 and 2001:db8::9.
fn host(ip: IpAddr) -> bool {
    ip == IpAddr::from([10, 0, 0, 9]) || ip == IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 9])
}

const OWN: [&str; 4] = ["10.0.0.9:1", "[2001:db8::9]:1", "[::ffff:10.0.0.9]:1", "[64:ff9b::10.0.0.9]:1"];

#[test]
fn nobody_becomes_this_host() {
    let mut policy = policy();
    policy.senders.allow = PrefixSet::any();
    policy.claims.host = HostAddresses::new(host);
    for source in OWN {
        for from in ["127.0.0.1:1", "10.0.0.8:1", "192.0.2.1:1"] {
            let refusal = policy.route(sender(from), Some(&claim(source))).expect_err(source);
            let Refusal::ClaimRefused { range: SpecialRange::Host, client, .. } = refusal else {
                panic!("{source} by {from}: {refusal:?}");
            };
            let mut open = policy.clone();
            open.claims.allow = set(&client.ip().to_string());
            let route = open.route(sender(from), Some(&claim(source))).expect("routed");
            assert_eq!(route.special, Some(SpecialRange::Host), "{client}");
        }
    }
    assert_eq!(route(&policy, &claim("10.0.0.8:1")).expect("routed").special, None);
}

#[test]
fn a_sender_on_this_host_may_stand_for_itself() {
    let mut policy = policy();
    policy.senders.allow = PrefixSet::any();
    policy.claims.host = HostAddresses::new(host);
    let local = header(Command::Local, Addresses::Unspecified);
    for header in [local, claim("10.0.0.9:2")] {
        assert_eq!(policy.route(sender("10.0.0.9:1"), Some(&header)).expect("routed").special, None);
    }
    assert_eq!(reason(policy.route(sender("127.0.0.1:1"), Some(&claim("127.0.0.1:2")))), "claim_refused");
}

#[test]
fn where_the_host_is_not_told_its_addresses_are_like_others() {
    assert_eq!(route(&policy(), &claim("10.0.0.9:1")).expect("routed").special, None);
}

/// A socket that is bound and connected to the same address is connected to itself.
#[test]
fn a_client_at_the_backends_own_address_and_port_is_refused() {
    for (backends, client) in [
        ((BACKEND_4, BACKEND_6), BACKEND_4),
        ((BACKEND_4, BACKEND_6), BACKEND_6),
        (("0.0.0.0:443", "[::]:443"), BACKEND_4),
        (("0.0.0.0:443", "[::]:443"), BACKEND_6),
        (("10.0.0.9:443", BACKEND_6), "10.0.0.9:443"),
        (("10.0.0.9:443", BACKEND_6), "[::ffff:10.0.0.9]:443"),
        ((BACKEND_4, "[2001:db8::9]:443"), "[2001:db8::9]:443"),
    ] {
        let mut policy = to(backends.0, backends.1);
        policy.claims.allow = PrefixSet::any();
        assert_eq!(reason(route(&policy, &claim(client))), "client_is_backend", "{backends:?} {client}");
        let mut beside = addr(client);
        beside.set_port(444);
        assert!(route(&policy, &claim(&beside.to_string())).is_ok(), "{beside}");
        // If the kernel chooses the source, the upstream socket is not bound to the client's address.
        policy.delivery.source = Source::Any;
        assert!(route(&policy, &claim(client)).is_ok(), "{client}");
    }
}

#[test]
fn a_header_that_is_optional_for_everybody_is_caught_however_it_is_written() {
    let senders = |allow: &str, header, exceptions: &str| {
        let mut all = PrefixSet::new();
        allow.split_whitespace().for_each(|prefix| all.extend(&set(prefix)));
        let mut senders = Senders::new(all, header);
        for exception in exceptions.split_whitespace() {
            let (prefix, rule) = exception.split_once('=').expect("PREFIX=RULE");
            senders.set_rule(&set(prefix), rule.parse().expect(rule));
        }
        senders.check()
    };
    use HeaderRule::{Forbid, Optional, Require};
    for (allow, header, exceptions) in [
        ("any", Optional, ""),
        ("any", Require, "0.0.0.0/0=optional"),
        ("any", Require, "::/0=optional"),
        ("0.0.0.0/0", Optional, ""),
        ("::/0", Optional, ""),
        ("any", Forbid, "any=optional"),
        ("0.0.0.0/1 128.0.0.0/1", Optional, ""),
        ("::/1 8000::/1", Optional, ""),
        ("any", Require, "0.0.0.0/1=optional 128.0.0.0/1=optional"),
        ("any", Optional, "10.0.0.0/8=require ::/0=require"),
        ("any", Require, "::ffff:0.0.0.0/96=optional"),
        ("any", Require, "0.0.0.0/2=optional 64.0.0.0/2=optional 128.0.0.0/2=optional"),
        ("0.0.0.0/1 128.0.0.0/24", Optional, ""),
        ("::/1 8000::/64", Optional, ""),
    ] {
        assert!(senders(allow, header, exceptions).is_err(), "{allow} {header} {exceptions}");
    }
    for (allow, header, exceptions) in [
        ("any", Require, ""),
        ("any", Forbid, ""),
        ("private loopback", Optional, ""),
        // Half of all addresses, and no more.
        ("0.0.0.0/1", Optional, ""),
        ("128.0.0.0/1", Optional, ""),
        ("::/1", Optional, ""),
        ("8000::/1", Optional, ""),
        ("any", Require, "10.0.0.0/8=optional"),
        ("10.0.0.0/8", Require, "0.0.0.0/0=optional"),
        ("any", Optional, "0.0.0.0/0=require ::/0=forbid"),
        ("any", Require, "0.0.0.0/0=optional 0.0.0.0/1=require 128.0.0.0/1=require"),
    ] {
        assert_eq!(senders(allow, header, exceptions), Ok(()), "{allow} {header} {exceptions}");
    }
}

#[test]
fn denied_clients_are_refused_whoever_names_them() {
    let mut policy = policy();
    policy.claims.deny = set("192.0.2.0/24");
    assert_eq!(reason(route(&policy, &claim("192.0.2.66:1"))), "client_denied");
    assert_eq!(reason(route(&policy, &claim("[::ffff:192.0.2.66]:1"))), "client_denied");
    assert!(route(&policy, &claim("192.0.3.1:1")).is_ok());
    policy.senders = Senders::new(PrefixSet::any(), HeaderRule::Forbid);
    assert_eq!(reason(policy.route(sender("192.0.2.66:1"), None)), "client_denied");
}

/// The policy of a listener on port 443, and the table that it obeys.
fn with_bans() -> (truepeer_policy::Policy, Arc<Bans>) {
    let (policy, bans) = (policy(), Arc::<Bans>::default());
    policy.bans.set(BansAt::new(Arc::clone(&bans), 443)).expect("the first table");
    (policy, bans)
}

fn ban(clients: &str) -> Ban {
    let (clients, why) = (clients.parse().expect(clients), Arc::from(""));
    Ban { clients, port: None, since: 0, until: None, by: None, why }
}

#[test]
fn a_ban_counts_at_once_and_until_it_is_lifted() {
    let (policy, bans) = with_bans();
    assert!(route(&policy, &claim("192.0.2.66:1")).is_ok());
    bans.set(vec![ban("192.0.2.64/26"), ban("2001:db8:7::/48")]).unwrap();
    for client in ["192.0.2.66:1", "[::ffff:192.0.2.66]:1", "[64:ff9b::192.0.2.66]:1", "[2001:db8:7::1]:1"] {
        assert_eq!(reason(route(&policy, &claim(client))), "client_banned", "{client}");
    }
    assert!(route(&policy, &claim("192.0.2.1:1")).is_ok());
    assert!(route(&policy, &claim("[2001:db8:8::1]:1")).is_ok());
    assert_eq!(bans.lift("192.0.2.66".parse().unwrap(), None), 0);
    assert_eq!(bans.lift("192.0.2.64/26".parse().unwrap(), None), 1);
    assert!(route(&policy, &claim("192.0.2.66:1")).is_ok());
    assert_eq!((bans.len(), bans.clear()), (1, 1));
    assert!(route(&policy, &claim("[2001:db8:7::1]:1")).is_ok());
}

#[test]
fn a_ban_ends_by_itself_and_a_second_one_replaces_it() {
    let (policy, bans) = with_bans();
    let until = |until| vec![Ban { until, ..ban("192.0.2.66") }];
    let is_banned = || route(&policy, &claim("192.0.2.66:1")).is_err();
    bans.set(until(Some(10))).unwrap();
    bans.set(until(Some(20))).unwrap();
    assert_eq!((bans.next_expiry(), bans.expire(19)), (Some(20), 0));
    assert!(is_banned());
    assert_eq!((bans.expire(u64::MAX), bans.next_expiry(), bans.is_empty()), (1, None, true));
    assert!(!is_banned());
    bans.set(until(Some(10))).unwrap();
    bans.set(until(None)).unwrap();
    assert_eq!((bans.next_expiry(), bans.expire(u64::MAX)), (None, 0));
    assert!(is_banned());
}

#[test]
fn a_ban_may_be_for_a_port() {
    let (policy, bans) = with_bans();
    let (at, elsewhere) = (NonZeroU16::new(443), NonZeroU16::new(80));
    bans.set(vec![Ban { port: elsewhere, ..ban("192.0.2.66") }]).unwrap();
    assert!(route(&policy, &claim("192.0.2.66:1")).is_ok());
    bans.set(vec![Ban { port: at, ..ban("192.0.2.66") }]).unwrap();
    assert!(route(&policy, &claim("192.0.2.66:1")).is_err());
    let client = "192.0.2.66".parse().unwrap();
    assert_eq!((bans.lift(client, at), bans.len()), (1, 1));
    assert!(route(&policy, &claim("192.0.2.66:1")).is_ok());
    bans.set(vec![ban("192.0.2.66")]).unwrap();
    assert_eq!((bans.lift(client, None), bans.len()), (2, 0));
}

/// A load balancer that is banned by mistake names its clients as before, and learns that the backend lives.
#[test]
fn a_sender_that_speaks_for_itself_is_not_banned() {
    let (mut policy, bans) = with_bans();
    bans.set(vec![ban("127.0.0.0/8"), ban("192.0.2.66")]).unwrap();
    policy.claims.allow = PrefixSet::loopback();
    let local = header(Command::Local, Addresses::Unspecified);
    assert!(route(&policy, &local).is_ok());
    assert!(route(&policy, &claim("127.0.0.1:7")).is_ok());
    assert!(route(&policy, &claim("192.0.2.1:1")).is_ok());
    assert_eq!(reason(route(&policy, &claim("127.0.0.2:7"))), "client_banned");
    assert!(policy.has_sender_in("127.0.0.0/8".parse().unwrap()));
    assert!(
        !policy.has_sender_in("127.0.0.1".parse().unwrap())
            && !policy.has_sender_in("8000::/1".parse().unwrap())
    );
    // Without a header, the sender is a client like others.
    policy.senders = Senders::new(PrefixSet::any(), HeaderRule::Forbid);
    assert_eq!(reason(policy.route(sender("192.0.2.66:1"), None)), "client_banned");
    assert_eq!(reason(policy.route(sender("127.0.0.1:1"), None)), "client_banned");
    assert!(!policy.has_sender_in("127.0.0.0/8".parse().unwrap()));
}

#[test]
fn nobody_is_banned_by_what_would_ban_everybody_or_nobody() {
    let said = |text: &str| text.parse::<BannedPrefix>().map_err(|error| error.to_string());
    for (text, part) in [
        ("0.0.0.0/0", "ban everybody"),
        ("::/0", "ban everybody"),
        ("1.2.3.4/0", "ban everybody"),
        ("::ffff:0:0/96", "ban everybody"),
        ("64:ff9b::/96", "ban everybody"),
        ("::/1", "IPv4-mapped"),
        ("::/80", "IPv4-mapped"),
        ("240.1.2.3", "class E"),
        ("224.0.0.1", "a multicast address"),
        ("0.0.0.0", "an unspecified address"),
        ("255.255.255.255", "the broadcast address"),
        ("any", "is not a client"),
        ("", "is not a client"),
        ("192.0.2.300", "is not a client"),
        ("192.0.2.1:443", "is not a client"),
        ("192.0.2.0/33", "is not a client"),
    ] {
        let error = said(text).expect_err(text);
        assert!(error.contains(part) && (text.is_empty() || error.contains(text)), "{text}: {error}");
    }
    for (text, shown) in [
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7/24", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7/120", "192.0.2.0/24"),
        ("64:ff9b::192.0.2.7", "192.0.2.7"),
        ("2001:DB8::1", "2001:db8::1"),
        ("0.0.0.0/1", "0.0.0.0/1"),
    ] {
        assert_eq!(said(text).map(|prefix| prefix.to_string()), Ok(shown.to_owned()), "{text}");
    }
}

#[test]
fn too_many_bans_are_refused_as_a_whole() {
    let bans = Bans::default();
    let host = |n: u32| ban(&std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).to_string());
    let most = u32::try_from(Bans::MOST).unwrap();
    bans.set((0..most).map(host).collect()).unwrap();
    assert!(
        bans.set(vec![host(most)]).unwrap_err().to_string().contains("1048577 bans; 1048576 is the most")
    );
    assert!(bans.set((0..10).map(host).collect()).is_ok(), "they are there already");
    let client = |n: u32| ClientAddr::new((std::net::Ipv4Addr::from_bits(0x0a00_0000 + n), 1).into());
    assert!(bans.has(client(most - 1), 1) && !bans.has(client(most), 1));
    assert_eq!(bans.wider("10.0.0.0/8".parse().unwrap()), None);
    assert_eq!((bans.lift("10.0.0.7".parse().unwrap(), None), bans.len()), (1, Bans::MOST - 1));
    assert!(bans.set(vec![ban("10.0.0.0/24")]).is_ok());
    assert_eq!(bans.wider("10.0.0.7".parse().unwrap()), Some("10.0.0.0/24".parse().unwrap()));
}

#[test]
fn the_clients_family_chooses_the_backend_whatever_the_senders_is() {
    let policy = policy();
    for from in ["127.0.0.1:1", "[::1]:1"] {
        for (source, backend) in
            [("192.0.2.9:9", BACKEND_4), ("[2001:db8::9]:9", BACKEND_6), ("[::ffff:192.0.2.9]:9", BACKEND_4)]
        {
            let route = policy.route(sender(from), Some(&claim(source))).expect("routed");
            assert_eq!(route.backend.get(), addr(backend), "{source} by {from}");
            assert_eq!(route.source, Some(route.client.get()));
        }
    }
}

#[test]
fn an_ipv4_client_reaches_an_ipv6_backend_under_the_nat64_prefix_only() {
    let mut policy = to("[2001:db8::80]:80", BACKEND_6);
    let refusal = route(&policy, &claim("192.0.2.33:9")).expect_err("refused");
    assert_eq!(refusal.reason(), "backend_is_ipv6");
    policy.delivery.nat64_prefix = Some("64:ff9b::/96".parse().expect("prefix"));
    let mapped = route(&policy, &claim("192.0.2.33:9")).expect("routed");
    assert_eq!(mapped.source, Some(addr("[64:ff9b::192.0.2.33]:9")));
    assert_eq!(
        (mapped.client.get(), mapped.backend.get()),
        (addr("192.0.2.33:9"), addr("[2001:db8::80]:80"))
    );
}

#[test]
fn an_ipv6_client_reaches_an_ipv4_backend_as_a_class_e_address_only() {
    let mut policy = to(BACKEND_4, BACKEND_4);
    let refusal = route(&policy, &claim("[2001:db8::1]:9")).expect_err("refused");
    assert_eq!(refusal.reason(), "backend_is_ipv4");
    policy.delivery.pseudo_ipv4 = true;
    let mapped = route(&policy, &claim("[2001:db8::1]:9")).expect("routed");
    assert_eq!(mapped.source, Some(addr("254.237.119.6:9")));
    assert_eq!(mapped.client.get(), addr("[2001:db8::1]:9"));
}

#[test]
fn a_link_local_client_is_refused_unless_a_header_carries_it() {
    let mut policy = policy();
    assert_eq!(reason(route(&policy, &claim("[fe80::1]:9"))), "client_link_local");
    policy.delivery.source = Source::Any;
    assert!(route(&policy, &claim("[fe80::1]:9")).is_ok());
    assert!(route(&self::policy(), &claim("169.254.0.1:9")).is_ok());
}

#[test]
fn where_any_source_will_do_nothing_is_bound_and_any_family_goes() {
    let mut policy = to("[2001:db8::80]:80", "192.0.2.80:80");
    (policy.delivery.source, policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
    for source in ["192.0.2.9:9", "[2001:db8::9]:9"] {
        let route = route(&policy, &claim(source)).expect("routed");
        assert_eq!((route.source, route.send_proxy), (None, Some(Version::V1)));
        assert_eq!(route.client.get(), addr(source));
    }
}

#[test]
fn a_header_leads_only_where_it_may() {
    let mut policy = policy();
    let mut allow = truepeer_policy::Destinations::default();
    for entry in [
        "10.0.0.0/8:80,8000-8100",
        "10.1.0.0/16:22",
        "[2001:db8::/32]:443",
        "192.0.2.7",
        "loopback:9",
        "2001:db9::/32",
    ] {
        allow.extend(&entry.parse().expect(entry));
    }
    policy.delivery.dynamic = Some(Dynamic { allow });
    for (destination, is_allowed) in [
        ("10.2.0.1:80", true),
        ("10.2.0.1:81", false),
        ("10.2.0.1:8000", true),
        ("10.2.0.1:8100", true),
        ("10.2.0.1:8101", false),
        ("10.2.0.1:22", false),
        ("10.1.0.1:22", true),
        // A narrower entry adds to a wider one and does not hide it.
        ("10.1.0.1:80", true),
        ("[2001:db8::1]:443", true),
        ("[2001:db8::1]:80", false),
        ("[2001:db9::1]:80", true),
        ("192.0.2.7:65535", true),
        ("192.0.2.8:80", false),
        ("127.0.0.1:9", true),
        ("[::1]:9", true),
        ("127.0.0.1:10", false),
    ] {
        let client = if destination.starts_with('[') { "[2001:db8::9]:9" } else { "203.0.113.9:9" };
        match route(&policy, &claim_to(client, destination)) {
            Ok(route) => assert!(is_allowed && route.backend.get() == addr(destination), "{destination}"),
            Err(refusal) => {
                assert!(
                    !is_allowed && refusal.reason() == "destination_not_allowed",
                    "{destination}: {refusal}"
                );
                assert!(refusal.to_string().contains(destination), "{refusal}");
            }
        }
    }
}

fn everywhere_but(listeners: &[&str]) -> truepeer_policy::Policy {
    let mut policy = policy();
    policy.delivery.dynamic = Some(Dynamic { allow: truepeer_policy::Destinations::any() });
    policy.delivery.own_listeners = listeners.iter().map(|text| addr(text)).collect();
    policy
}

#[test]
fn our_own_listeners_are_never_a_destination() {
    for (listener, destination, loops) in [
        ("192.0.2.1:8443", "192.0.2.1:8443", true),
        ("192.0.2.1:8443", "192.0.2.1:8444", false),
        ("192.0.2.1:8443", "192.0.2.2:8443", false),
        ("[::ffff:192.0.2.1]:8443", "192.0.2.1:8443", true),
        ("0.0.0.0:8443", "127.0.0.1:8443", true),
        ("0.0.0.0:8443", "198.51.100.1:8443", true),
        ("0.0.0.0:8443", "198.51.100.1:443", false),
        ("0.0.0.0:8443", "[2001:db8::1]:8443", false),
        ("[::]:8443", "[2001:db8::1]:8443", true),
        ("[::]:8443", "192.0.2.1:8443", true),
    ] {
        let client = if destination.starts_with('[') { "[2001:db8::9]:9" } else { "203.0.113.9:9" };
        let decided = route(&everywhere_but(&[listener]), &claim_to(client, destination));
        assert_eq!(decided.is_err(), loops, "{listener} {destination}");
        if let Err(refusal) = decided {
            assert_eq!(refusal.reason(), "destination_loops");
            let is_wildcard = addr(listener).ip().is_unspecified();
            assert_eq!(refusal.to_string().contains("listen on one address"), is_wildcard, "{refusal}");
        }
    }
}

/// One connection to the listener's own port would become as many as there are descriptors.
#[test]
fn a_kept_port_never_leads_to_our_own_listener() {
    for (listener, backend, port, loops) in [
        ("0.0.0.0:8443", "127.0.0.1:0", 8443, true),
        ("127.0.0.1:8443", "127.0.0.1:0", 8443, true),
        ("127.0.0.1:8443", "0.0.0.0:0", 8443, true),
        ("[::]:8443", "127.0.0.1:0", 8443, true),
        ("0.0.0.0:8443", "127.0.0.1:0", 8444, false),
        ("192.0.2.1:8443", "127.0.0.1:0", 8443, false),
    ] {
        let mut policy = to(backend, BACKEND_6);
        policy.delivery.own_listeners = vec![addr(listener)];
        let decided =
            policy.route_at(sender("127.0.0.1:50000"), Some(&claim("203.0.113.9:9")), || Some(port));
        match decided {
            Ok(route) => assert!(!loops && route.backend.get().port() == port, "{listener} {port}"),
            Err(refusal) => assert!(loops && refusal.reason() == "destination_loops", "{refusal}"),
        }
    }
}

/// Linux connects to this machine for 0.0.0.0 and ::, bypassing any list without loopback.
#[test]
fn a_destination_that_is_nobody_is_refused_even_if_everything_is_allowed() {
    for destination in [
        "0.0.0.0:80",
        "[::]:80",
        "224.0.0.1:80",
        "[ff02::1]:80",
        "255.255.255.255:80",
        "[::127.0.0.1]:80",
        "192.0.2.1:0",
    ] {
        let client = if destination.starts_with('[') { "[2001:db8::9]:9" } else { "203.0.113.9:9" };
        let decided = route(&everywhere_but(&[]), &claim_to(client, destination));
        assert_eq!(reason(decided), "destination_unusable", "{destination}");
    }
}

#[test]
fn headers_without_a_destination_go_to_the_fixed_backends() {
    let policy = everywhere_but(&[]);
    for header in
        [header(Command::Local, Addresses::Unspecified), header(Command::Proxy, Addresses::Unspecified)]
    {
        let by = |from: &str| policy.route(sender(from), Some(&header)).expect("routed").backend.get();
        assert_eq!((by("127.0.0.1:1"), by("[::1]:1")), (addr(BACKEND_4), addr(BACKEND_6)));
    }
}

#[test]
fn refusals_say_what_was_wrong_and_what_was_expected() {
    let from = sender("[::ffff:10.0.0.7]:40000");
    let refused = policy().admit(from).expect_err("refused");
    assert_eq!(refused.to_string(), "10.0.0.7:40000 may not send here");
    let mut policy = policy();
    policy.senders.allow = set("10.0.0.7");
    let missing = policy.route(from, None).expect_err("refused").to_string();
    assert!(
        missing.starts_with("no PROXY header from 10.0.0.7:40000;")
            && missing.ends_with("turn on the sender's PROXY protocol")
    );
}

#[test]
fn a_client_of_a_family_without_a_backend_is_refused() {
    let mut policy = policy();
    policy.delivery.backends.ipv6 = None;
    let from_ipv6 = policy.route(sender("[::1]:1"), Some(&header(Command::Local, Addresses::Unspecified)));
    assert!(matches!(from_ipv6, Err(Refusal::NoBackend { .. })), "{from_ipv6:?}");
    assert!(
        policy.route(sender("127.0.0.1:1"), Some(&header(Command::Local, Addresses::Unspecified))).is_ok()
    );
}

#[test]
fn every_reason_is_listed_once() {
    let from = sender("127.0.0.1:1");
    let client = ClientAddr::new(addr("192.0.2.1:1"));
    let backend = truepeer_policy::BackendAddr::new(addr("192.0.2.2:2"));
    let why = truepeer_policy::UnusableDestination::PortZero;
    let all = [
        Refusal::SenderNotAllowed { sender: from },
        Refusal::HeaderMissing { sender: from },
        Refusal::HeaderForbidden { sender: from },
        Refusal::ClaimRefused { sender: from, client, range: SpecialRange::Loopback },
        Refusal::ClientDenied { sender: from, client },
        Refusal::ClientBanned { sender: from, client },
        Refusal::ClientIsBackend { client, backend },
        Refusal::ClientLinkLocal { client },
        Refusal::NoBackend { client },
        Refusal::BackendIsIpv6 { client, backend },
        Refusal::BackendIsIpv4 { client, backend },
        Refusal::DestinationNotAllowed { client, destination: backend },
        Refusal::DestinationUnusable { client, destination: backend, why },
        Refusal::DestinationLoops { client, destination: backend, listener: addr("192.0.2.2:2") },
    ];
    assert_eq!(all.map(|refusal| refusal.reason()), Refusal::REASONS);
}
