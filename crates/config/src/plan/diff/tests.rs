use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::plan::key::ListenerKey;
use crate::plan::listener::DynamicConfig;
use crate::plan::tls::OriginTlsConfig;
use crate::plan::{Checked, Config, ListenerConfig};
use crate::spec::Protocol;

type Listeners = Vec<Arc<CheckedListener>>;

fn plan(binds: &[&str], change: impl Fn(&mut ListenerConfig)) -> Listeners {
    let listener = |bind: &&str| {
        let mut listener = ListenerConfig { bind: bind.parse().unwrap(), ..ListenerConfig::default() };
        change(&mut listener);
        listener
    };
    checked(binds.iter().map(listener).collect())
}

fn checked(listeners: Vec<ListenerConfig>) -> Listeners {
    let Checked { listeners } = Config { listeners, ..Config::default() }.check().unwrap();
    listeners
}

/// The changes in words.
fn words(old: &[Arc<CheckedListener>], new: &[Arc<CheckedListener>]) -> Vec<String> {
    let word = |change: &Change| match change {
        Change::Open(one) => format!("open {}", one.key),
        Change::Close(one) => format!("close {}", one.key),
        Change::SetRules(one, parts) => {
            let parts: Vec<_> = parts.iter().map(Part::to_string).collect();
            format!("rules of {}: {}", one.key, parts.join(", "))
        }
    };
    diff(old, new).iter().map(word).collect()
}

#[test]
fn listeners_are_opened_and_closed_by_their_address() {
    let old = plan(&["127.0.0.1:1", "127.0.0.1:2"], |_| ());
    let new = plan(&["127.0.0.1:2", "127.0.0.1:3"], |_| ());
    assert_eq!(words(&old, &new), ["open 127.0.0.1:3", "close 127.0.0.1:1"]);
}

#[test]
fn a_listener_in_the_way_of_another_closes_first() {
    for (old, new) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "127.0.0.1:1"), ("127.0.0.1:1", "[::]:1")] {
        let (old, new) = (plan(&[old, "127.0.0.1:9"], |_| ()), plan(&[new], |_| ()));
        let said = words(&old, &new);
        let closed = format!("close {}", old[0].key);
        assert_eq!(said, [closed, format!("open {}", new[0].key), "close 127.0.0.1:9".to_owned()]);
    }
}

/// A socket can't change the families that it takes.
#[test]
fn the_wildcard_of_ipv6_is_opened_anew_when_a_listener_takes_its_port_for_ipv4() {
    let (alone, both) = (plan(&["[::]:1"], |_| ()), plan(&["[::]:1", "0.0.0.0:1"], |_| ()));
    assert_eq!(words(&alone, &both), ["close [::]:1", "open [::]:1", "open 0.0.0.0:1"]);
    assert_eq!(words(&both, &alone), ["close [::]:1", "close 0.0.0.0:1", "open [::]:1"]);
    assert_eq!(words(&plan(&["0.0.0.0:1"], |_| ()), &both), ["open [::]:1"]);
}

#[test]
fn other_sockets_are_opened_anew_and_all_else_is_swapped() {
    type Edit = fn(&mut ListenerConfig);
    let old = plan(&["127.0.0.1:1"], |_| ());
    let cases: [(&str, Edit); 6] = [
        ("sockets", |l| l.sockets = NonZeroU16::new(4).unwrap()),
        ("transparent", |l| l.transparent = true),
        ("TLS", |l| l.origin_tls = Some(unverified())),
        ("allow", |l| l.senders.allow = "10.0.0.0/8".parse().unwrap()),
        ("backend", |l| l.backends.ipv4 = "127.0.0.1:9".parse().ok()),
        ("timeout", |l| l.timeouts.idle = Some(Duration::from_secs(9))),
    ];
    for (name, change) in cases {
        let said = words(&old, &plan(&["127.0.0.1:1"], change)).join("; ");
        let expected = match name {
            "sockets" | "transparent" | "TLS" => "close 127.0.0.1:1; open 127.0.0.1:1",
            "allow" => "rules of 127.0.0.1:1: options, lists",
            "backend" => "rules of 127.0.0.1:1: options, backends' addresses",
            _ => "rules of 127.0.0.1:1: options",
        };
        assert_eq!(said, expected, "{name}");
    }
}

#[test]
fn tcp_and_udp_on_one_address_are_two_listeners() {
    let both = |allow: &str| {
        let tcp = ListenerConfig { bind: "127.0.0.1:53".parse().unwrap(), ..ListenerConfig::default() };
        let mut udp = ListenerConfig { protocol: Protocol::Udp, ..tcp.clone() };
        udp.senders.allow = allow.parse().unwrap();
        checked(vec![tcp, udp])
    };
    assert_eq!(words(&both("10.0.0.1"), &both("10.0.0.2")), ["rules of 127.0.0.1:53 (UDP): options, lists"]);
}

/// A header may not lead to them.
#[test]
fn whose_headers_choose_destinations_learns_of_other_listeners() {
    let chosen = |l: &mut ListenerConfig| {
        l.dynamic = Some(DynamicConfig { allow: "127.0.0.0/8".parse().unwrap() });
    };
    let (one, two) = (plan(&["127.0.0.1:1"], chosen), plan(&["127.0.0.1:1", "127.0.0.1:2"], chosen));
    assert_eq!(words(&one, &two), ["open 127.0.0.1:2", "rules of 127.0.0.1:1: own listeners"]);
    assert_eq!(words(&two, &one), ["rules of 127.0.0.1:1: own listeners", "close 127.0.0.1:2"]);
}

#[test]
fn a_list_that_was_edited_changes_the_rules() {
    let path = std::env::temp_dir().join(format!("truepeer-diff-{}", std::process::id()));
    let with_list = || plan(&["127.0.0.1:1"], |l| l.senders.allow_files = vec![path.clone().into()]);
    std::fs::write(&path, "192.0.2.1\n").unwrap();
    let old = with_list();
    assert_eq!(diff(&old, &with_list()), []);
    std::fs::write(&path, "# another comment\n192.0.2.1\n").unwrap();
    assert_eq!(diff(&old, &with_list()), []);
    std::fs::write(&path, "192.0.2.2\n").unwrap();
    assert_eq!(words(&old, &with_list()), ["rules of 127.0.0.1:1: lists"]);
    std::fs::remove_file(&path).unwrap();
}

fn unverified() -> OriginTlsConfig {
    OriginTlsConfig { name: "site.test".to_owned(), insecure: true, ..OriginTlsConfig::default() }
}

fn listener() -> impl Strategy<Value = ListenerConfig> {
    let ip = prop::sample::select(vec!["0.0.0.0", "127.0.0.1", "::", "::1"]);
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp]);
    let allow = prop::sample::select(vec!["10.0.0.0/8", "192.0.2.0/24"]);
    (ip, 0_u16..3, protocol, 1_u16..3, allow, any::<bool>()).prop_map(
        |(ip, port, protocol, sockets, allow, has_tls)| {
            let mut listener = ListenerConfig {
                bind: SocketAddr::new(ip.parse().unwrap(), port),
                protocol,
                sockets: NonZeroU16::new(sockets).unwrap(),
                origin_tls: (has_tls && protocol == Protocol::Tcp).then(unverified),
                ..ListenerConfig::default()
            };
            listener.senders.allow = allow.parse().unwrap();
            listener
        },
    )
}

fn listeners() -> impl Strategy<Value = Listeners> {
    prop::collection::vec(listener(), 1..8).prop_map(|mut all| {
        let mut seen = Vec::new();
        all.retain(|one| {
            let key = ListenerKey { protocol: one.protocol, address: one.bind, copy: 0 };
            let is_new =
                one.bind.port() == 0 || !seen.iter().any(|other| *other == key || key.is_within(other));
            if is_new {
                seen.push(key);
            }
            is_new
        });
        checked(all)
    })
}

fn sorted(mut listeners: Listeners) -> Listeners {
    listeners.sort_by_key(|one| one.key);
    listeners
}

proptest! {
    #[test]
    fn the_changes_lead_from_any_plan_to_any_other(old in listeners(), new in listeners()) {
        let mut running = old.clone();
        for change in diff(&old, &new) {
            match &change {
                Change::Open(one) => {
                    prop_assert!(running.iter().all(|other| other.key != one.key));
                    let mut leftovers = running.iter().filter(|other| !new.contains(other) && old.contains(other));
                    let is_in_the_way = |other: &&Arc<CheckedListener>| {
                        other.key.conflicts(&one.key) && !new.iter().any(|kept| kept.key == other.key)
                    };
                    prop_assert!(!leftovers.any(|other| is_in_the_way(&other)));
                }
                Change::Close(one) => prop_assert!(running.contains(one)),
                Change::SetRules(one, parts) => {
                    let before = running.iter().find(|other| other.key == one.key);
                    prop_assert!(!parts.is_empty() && before.is_some_and(|before| before.has_same_sockets(one)));
                }
            }
            change.apply_to(&mut running);
        }
        prop_assert_eq!(sorted(running), sorted(new));
    }

    #[test]
    fn equal_plans_need_no_change(plan in listeners()) {
        prop_assert_eq!(diff(&plan, &plan), []);
        let again = checked(plan.iter().map(|one| one.config.clone()).collect());
        prop_assert_eq!(diff(&plan, &again), []);
    }
}

/// A name that leads elsewhere now is no change of the options.
#[test]
fn other_origins_that_have_moved_are_other_backends() {
    let old = plan(&["127.0.0.1:1"], |_| ());
    let mut moved = Arc::into_inner(plan(&["127.0.0.1:1"], |_| ()).remove(0)).unwrap();
    moved.read.origins = vec![moved.read.backends];
    assert_eq!(words(&old, &[Arc::new(moved)]), ["rules of 127.0.0.1:1: backends' addresses"]);
}
