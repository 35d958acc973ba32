//! Who is banned, from when until when.

use std::num::NonZeroU16;
use std::sync::Arc;

use truepeer_policy::{Ban, BannedPrefix, Bans, BansAt, ClientAddr, HeaderRule, Lifted, PrefixSet, Senders};
use truepeer_proto::{Addresses, Command};

use crate::common::{claim, header, policy, route, sender};
use crate::reason;

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
    assert_eq!(bans.lift("192.0.2.66".parse().unwrap(), Lifted::default()), 0);
    assert_eq!(bans.lift("192.0.2.64/26".parse().unwrap(), Lifted::default()), 1);
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
    assert_eq!((bans.lift(client, Lifted { port: at, why: None }), bans.len()), (1, 1));
    assert!(route(&policy, &claim("192.0.2.66:1")).is_ok());
    bans.set(vec![ban("192.0.2.66")]).unwrap();
    assert_eq!((bans.lift(client, Lifted::default()), bans.len()), (2, 0));
}

#[test]
fn two_who_ban_one_client_lift_only_their_own() {
    let (policy, bans) = with_bans();
    let is_banned = || route(&policy, &claim("192.0.2.66:1")).is_err();
    let by = |why: &str, until| vec![Ban { until, why: why.into(), ..ban("192.0.2.66") }];
    let lift = |why| bans.lift("192.0.2.66".parse().unwrap(), Lifted { port: None, why: Some(why) });
    bans.set(by("a week", Some(700))).unwrap();
    assert_eq!(bans.set(by("ten minutes", Some(10))), Ok(0));
    assert_eq!((bans.next_expiry(), lift("ten minutes"), is_banned()), (Some(700), 0, true));
    bans.set(by("for ever", None)).unwrap();
    assert_eq!((bans.next_expiry(), lift("a week"), is_banned()), (None, 0, true));
    bans.set(by("for ever", Some(5))).unwrap();
    assert_eq!((bans.next_expiry(), lift("for ever"), is_banned()), (Some(5), 1, false));
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
    assert_eq!((bans.lift("10.0.0.7".parse().unwrap(), Lifted::default()), bans.len()), (1, Bans::MOST - 1));
    assert!(bans.set(vec![ban("10.0.0.0/24")]).is_ok());
    assert_eq!(bans.wider("10.0.0.7".parse().unwrap()), Some("10.0.0.0/24".parse().unwrap()));
}
