//! Whom a header may name.

use std::net::IpAddr;

use truepeer_policy::{HostAddresses, OnConflict, Origin, PrefixSet, Refusal, Source, SpecialRange};
use truepeer_proto::{Addresses, Command, Transport};

use crate::common::{BACKEND_4, BACKEND_6, addr, claim, claim_to, header, inet, policy, route, sender, to};
use crate::{reason, set};

#[test]
fn a_claim_is_the_client_with_its_port() {
    let route = route(&policy(), &claim_to("192.0.2.9:65432", "198.51.100.1:25")).expect("routed");
    assert_eq!(route.client.get(), addr("192.0.2.9:65432"));
    assert_eq!(route.source, Some(addr("192.0.2.9:65432")));
    assert_eq!(route.destination, Some(addr("198.51.100.1:25")));
    assert_eq!((route.origin, route.special, route.send_proxy), (Origin::Header, None, None));
    let any_port = crate::common::route(&policy(), &claim("192.0.2.9:0")).expect("routed");
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
