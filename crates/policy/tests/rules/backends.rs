//! Where a client is led: to the backend of its family, or to the destination of its header.

use truepeer_policy::{Dynamic, Refusal, Source};
use truepeer_proto::{Addresses, Command, Version};

use crate::common::{BACKEND_4, BACKEND_6, addr, claim, claim_to, header, policy, route, sender, to};
use crate::reason;

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
fn a_client_of_a_family_without_a_backend_is_refused() {
    let mut policy = policy();
    policy.delivery.backends.ipv6 = None;
    let from_ipv6 = policy.route(sender("[::1]:1"), Some(&header(Command::Local, Addresses::Unspecified)));
    assert!(matches!(from_ipv6, Err(Refusal::NoBackend { .. })), "{from_ipv6:?}");
    assert!(
        policy.route(sender("127.0.0.1:1"), Some(&header(Command::Local, Addresses::Unspecified))).is_ok()
    );
}
