//! Each rule as a table: who may send headers and where, and what a refusal says.

mod backends;
mod bans;
mod claims;
#[path = "../common/mod.rs"]
mod common;
mod proofs;

use common::{addr, claim, policy, route, sender};
use truepeer_policy::{ClientAddr, HeaderRule, Origin, PrefixSet, Refusal, Senders, SpecialRange};

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
fn every_reason_is_listed_once() {
    let from = sender("127.0.0.1:1");
    let client = ClientAddr::new(addr("192.0.2.1:1"));
    let backend = truepeer_policy::BackendAddr::new(addr("192.0.2.2:2"));
    let why = truepeer_policy::UnusableDestination::PortZero;
    let all = [
        Refusal::SenderNotAllowed { sender: from },
        Refusal::HeaderMissing { sender: from },
        Refusal::HeaderForbidden { sender: from },
        Refusal::HeaderUnproved { sender: from, why: truepeer_policy::Unproved::Version1 },
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
