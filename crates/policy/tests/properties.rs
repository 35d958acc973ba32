//! Properties for all addresses, lists and headers.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use common::{header, inet, policy};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use truepeer_policy::{
    ClientAddr, Destinations, Dynamic, HeaderRule, Nat64Prefix, Origin, Policy, PrefixSet, SenderAddr,
    Senders, Source, SpecialRange, pseudo_ipv4,
};
use truepeer_proto::{Addresses, Command, Header, Transport, Version};

/// Half of the addresses are near the borders of special ranges, or mapped.
fn ip() -> impl Strategy<Value = IpAddr> {
    let ipv4 = prop_oneof![
        any::<Ipv4Addr>(),
        (any::<u32>(), prop::sample::select(vec![0u8, 10, 127, 192, 224, 240, 255]))
            .prop_map(|(low, first)| Ipv4Addr::from_bits(u32::from(first) << 24 | low & 0x0003_0003)),
    ];
    let ipv6 = prop_oneof![
        any::<Ipv6Addr>(),
        any::<u16>().prop_map(|low| Ipv6Addr::from_bits(u128::from(low & 3))),
        any::<u16>().prop_map(|low| Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(low))),
        any::<Ipv4Addr>().prop_map(|ip| ip.to_ipv6_mapped()),
    ];
    prop_oneof![ipv4.prop_map(IpAddr::V4), ipv6.prop_map(IpAddr::V6)]
}

fn socket_addr() -> impl Strategy<Value = SocketAddr> {
    let port = prop_oneof![4 => any::<u16>(), 1 => Just(8443), 1 => Just(0)];
    (ip(), port).prop_map(SocketAddr::from)
}

fn prefix() -> impl Strategy<Value = IpNet> {
    (ip(), any::<u8>()).prop_map(|(ip, length)| match ip {
        IpAddr::V4(ip) => IpNet::V4(Ipv4Net::new(ip, length % 33).expect("valid")),
        IpAddr::V6(ip) => IpNet::V6(Ipv6Net::new(ip, length % 129).expect("valid")),
    })
}

fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
    prop::collection::vec(prefix(), 0..12)
}

fn claimed() -> impl Strategy<Value = Header<'static>> {
    let transport = prop_oneof![Just(Transport::Stream), Just(Transport::Dgram)];
    let command = prop_oneof![4 => Just(Command::Proxy), 1 => Just(Command::Local)];
    let addresses = prop_oneof![
        1 => Just(Addresses::Unspecified),
        8 => (transport, socket_addr(), socket_addr()).prop_map(|(transport, from, to)| inet(transport, from, to)),
    ];
    (command, addresses).prop_map(|(command, addresses)| header(command, addresses))
}

/// The simplest way to check whether a list contains an address.
fn naive_contains(prefixes: &[IpNet], ip: IpAddr) -> bool {
    let in_one = |prefix: &IpNet| match (prefix, ip) {
        (IpNet::V6(v6), IpAddr::V4(ip)) => v6.prefix_len() >= 96 && v6.contains(&ip.to_ipv6_mapped()),
        (prefix, ip) => prefix.contains(&ip),
    };
    prefixes.iter().any(in_one)
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (prefixes(), prefixes(), prefixes(), flags).prop_map(
        |(allow, claims, deny, (nat64, pseudo, send, dynamic))| {
            let mut policy = policy();
            policy.senders = Senders::new(
                allow.into_iter().chain(["0.0.0.0/1".parse().expect("valid")]).collect(),
                HeaderRule::Optional,
            );
            policy.claims.allow = claims.into_iter().collect();
            policy.claims.deny = deny.into_iter().collect();
            policy.delivery.nat64_prefix = nat64.then(|| "64:ff9b::/96".parse().expect("valid"));
            policy.delivery.pseudo_ipv4 = pseudo;
            policy.delivery.send_proxy = send.then_some(Version::V2);
            policy.delivery.source = if send { Source::Any } else { Source::Client };
            policy.delivery.own_listeners = vec!["0.0.0.0:8443".parse().expect("valid")];
            policy.delivery.dynamic = dynamic.then(|| Dynamic { allow: Destinations::any() });
            policy
        },
    )
}

proptest! {
    #[test]
    fn a_set_agrees_with_a_plain_search(list in prefixes(), ip in ip()) {
        let set: PrefixSet = list.iter().copied().collect();
        let asked = SenderAddr::new(SocketAddr::new(ip, 1)).ip();
        prop_assert_eq!(set.contains(asked), naive_contains(&list, asked), "{:?} {}", set, asked);
        let read: Vec<PrefixSet> = set.iter().map(|prefix| prefix.to_string().parse().expect("valid")).collect();
        prop_assert!(!set.contains(asked) || read.iter().any(|one| one.contains(asked)));
    }

    #[test]
    fn only_listed_senders_are_admitted(list in prefixes(), from in socket_addr()) {
        let mut policy = policy();
        policy.senders.allow = list.iter().copied().collect();
        let sender = SenderAddr::new(from);
        prop_assert_eq!(policy.admit(sender).is_ok(), naive_contains(&list, sender.ip()));
    }

    /// The rule on which everything else depends.
    #[test]
    fn no_header_makes_a_special_address_the_client(policy in any_policy(), from in socket_addr(), header in claimed()) {
        let sender = SenderAddr::new(from);
        let Ok(route) = policy.route(sender, Some(&header)) else { return Ok(()) };
        prop_assert!(policy.senders.allow.contains(sender.ip()));
        prop_assert!(!policy.claims.deny.contains(route.client.ip()));
        if route.origin == Origin::Header {
            let is_special = SpecialRange::of(route.client.ip()).is_some();
            prop_assert!(!is_special || policy.claims.allow.contains(route.client.ip()));
            prop_assert_eq!(route.special.is_some(), is_special);
        } else {
            prop_assert_eq!(route.client.get(), sender.get());
            prop_assert_eq!(route.destination, None);
        }
    }

    #[test]
    fn what_is_bound_has_the_backends_family_and_the_clients_port(
        policy in any_policy(), from in socket_addr(), header in claimed()
    ) {
        let Ok(route) = policy.route(SenderAddr::new(from), Some(&header)) else { return Ok(()) };
        if let Some(source) = route.source {
            prop_assert_eq!(source.is_ipv4(), route.backend.get().is_ipv4());
            prop_assert_eq!(source.port(), route.client.get().port());
            prop_assert!(source.is_ipv4() != route.client.get().is_ipv4() || source == route.client.get());
            prop_assert_eq!(policy.delivery.source, Source::Client);
        }
        prop_assert!(route.backend.get().is_ipv6() || route.backend.get().port() != 8443);
        prop_assert!(route.backend.get().port() != 0);
        prop_assert!(route.client.get().is_ipv4() || route.client.ip().to_canonical().is_ipv6());
    }

    /// A dual-stack listener reports IPv4 senders as ::ffff:a.b.c.d, an IPv4 listener as a.b.c.d: the result must
    /// be the same.
    #[test]
    fn a_mapped_sender_is_the_plain_one(policy in any_policy(), ip in any::<Ipv4Addr>(), port: u16, header in claimed()) {
        let plain = SenderAddr::new(SocketAddr::from((ip, port)));
        let mapped = SenderAddr::new(SocketAddr::from((ip.to_ipv6_mapped(), port)));
        prop_assert_eq!(plain, mapped);
        prop_assert_eq!(policy.route(plain, Some(&header)), policy.route(mapped, Some(&header)));
        prop_assert_eq!(ClientAddr::new(plain.get()), ClientAddr::new(SocketAddr::from((ip.to_ipv6_mapped(), port))));
    }

    #[test]
    fn every_refusal_explains_itself_in_one_line(policy in any_policy(), from in socket_addr(), header in claimed()) {
        if let Err(refusal) = policy.route(SenderAddr::new(from), Some(&header)) {
            let text = refusal.to_string();
            prop_assert!(!text.contains('\n') && text.contains(|c: char| c.is_ascii_digit()));
            prop_assert!(truepeer_policy::Refusal::REASONS.contains(&refusal.reason()));
        }
    }

    #[test]
    fn a_pseudo_address_is_class_e_and_of_the_network(client: u128, host: u64) {
        let pseudo = pseudo_ipv4(Ipv6Addr::from_bits(client));
        prop_assert!(pseudo.octets()[0] >= 240 && !pseudo.is_broadcast());
        let neighbour = client >> 64 << 64 | u128::from(host);
        prop_assert_eq!(pseudo_ipv4(Ipv6Addr::from_bits(neighbour)), pseudo);
    }

    #[test]
    fn a_nat64_address_stays_in_its_prefix_and_tells_clients_apart(
        network: u128, length in prop::sample::select(vec![32u8, 40, 48, 56, 64, 96]), one: Ipv4Addr, other: Ipv4Addr
    ) {
        let net = Ipv6Net::new(Ipv6Addr::from_bits(network & !(0xff << 56)), length).expect("valid").trunc();
        let prefix: Nat64Prefix = net.to_string().parse().expect("valid");
        prop_assert!(net.contains(&prefix.embed(one)));
        prop_assert_eq!(prefix.embed(one).octets()[8], 0);
        prop_assert_eq!(prefix.embed(one) == prefix.embed(other), one == other);
    }

    #[test]
    fn destinations_print_as_they_are_read(
        entries in prop::collection::vec((prefix(), prop::collection::vec((1u16.., 0u16..9), 0..3)), 0..5),
        asked in socket_addr()
    ) {
        let mut all = Destinations::default();
        for (prefix, ports) in &entries {
            let ports = ports.iter().map(|(first, more)| format!("{first}-{}", first.saturating_add(*more)));
            let ports = ports.collect::<Vec<_>>().join(",");
            let text = if ports.is_empty() { prefix.to_string() } else { format!("[{prefix}]:{ports}") };
            all.extend(&text.parse().expect("an entry"));
        }
        let mut read = Destinations::default();
        all.to_string().split_whitespace().for_each(|entry| read.extend(&entry.parse().expect("printed")));
        prop_assert_eq!(&read, &all);
        let asked = ClientAddr::new(asked).get();
        let is_in = |(prefix, ports): &(IpNet, Vec<(u16, u16)>)| naive_contains(&[*prefix], asked.ip())
            && (ports.is_empty() || ports.iter().any(|(first, more)| (*first..=first.saturating_add(*more)).contains(&asked.port())));
        prop_assert_eq!(all.contains(asked), entries.iter().any(is_in));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "[\\PC\n]{0,40}|[0-9a-f:./#,\\[\\]-]{0,40}") {
        let _ = (text.parse::<PrefixSet>(), text.parse::<Destinations>(), text.parse::<Nat64Prefix>());
        if let Err(error) = PrefixSet::parse_file(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.lines().count());
        }
    }
}
