//! Which rules of nftables keep sessions in user space, by what the kernel says of them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use truepeer_splice::Ways;
use truepeer_testbed::{Bed, Program};

/// A session of 203.0.113.7 by a sender at 192.0.2.9.
const ENDS: [&str; 4] = ["192.0.2.9:40000", "192.0.2.1:8443", "203.0.113.7:5000", "127.0.0.1:8000"];

/// Rules of a chain at these hooks, each alone. No session leaves beside one. Somebody may read what a rule
/// counts or logs.
const ACT: [&str; 27] = [
    "counter",
    "ct state established,related counter accept",
    "tcp dport 8443 counter",
    "log prefix \"seen\"",
    "drop",
    "counter drop",
    "meta mark set 7",
    "ct mark set 7",
    "meta mark set 7 ct state new accept",
    "limit rate over 10/second drop",
    "quota over 1 mbytes drop",
    "ip saddr @banned drop",
    "ip saddr { 198.51.100.1, 203.0.113.7 } drop",
    "ip saddr 203.0.113.7 drop",
    "ip saddr 203.0.113.0/24 drop",
    "ip daddr 203.0.113.0/26 counter drop",
    "ip saddr != 198.51.100.1 drop",
    "tcp dport 8443 drop",
    "tcp dport 8000-9000 drop",
    "tcp flags & syn == 0 drop",
    "ct state established drop",
    "ct state vmap { established : drop, new : accept }",
    "ip dscp set cs1",
    "add @seen { ip saddr }",
    "meta nfproto ipv4 drop",
    "meta nfproto != ipv6 drop",
    "meta nfproto ipv6 accept; drop",
];

/// Beside these they leave.
const HARMLESS: [&str; 19] = [
    "accept",
    "ct state invalid counter drop",
    "ct state established accept; counter drop",
    "tcp dport 22 counter accept",
    "ct state invalid drop",
    "ct state new drop",
    "ct state { invalid, new } drop",
    "ct state != established drop",
    "ct state vmap { invalid : drop, established : accept, related : accept }",
    "ct state established,related accept; drop",
    "ct state { established, related } accept; ip saddr @banned drop",
    "ip saddr 198.51.100.1 drop",
    "ip saddr 198.51.100.0/25 meta mark set 7",
    "tcp dport 22 drop",
    "udp dport 53 drop",
    "meta nfproto ipv6 drop",
    "meta nfproto ipv4 ct state established accept; drop",
    "ip6 saddr { 2001:db8::1, 2001:db8::7 } counter drop",
    "icmpv6 type nd-neighbor-solicit counter drop",
];

const HOOKS: [&str; 4] = ["prerouting", "input", "output", "postrouting"];

fn nft(bed: &Bed, commands: &str) -> Result<()> {
    let done = Program::new("nft").args(["-f", "-"]).input(commands).run(bed).map(drop);
    done.with_context(|| commands.to_owned())
}

fn chain(kind: &str, hook: &str, rules: &str) -> String {
    let (policy, rules) =
        rules.strip_prefix("policy drop").map_or(("accept", rules), |rules| ("drop", rules));
    let rules = rules.replace("; ", "\n");
    format!(
        "table inet t {{\n set banned {{ type ipv4_addr; elements = {{ 198.51.100.9 }}; }}\n \
         set seen {{ type ipv4_addr; size 99; flags dynamic; }}\n chain c {{\n \
         type {kind} hook {hook} priority 0; policy {policy};\n{rules}\n }}\n}}\n"
    )
}

fn leaves(ways: &Ways) -> Result<bool> {
    let ends: Vec<SocketAddr> = ENDS.iter().map(|end| end.parse()).collect::<Result<_, _>>()?;
    match ways.may_offload(&ends) {
        Ok(_) => Ok(true),
        Err(stays) => {
            ensure!(stays.reason().label() == "firewall", "{stays}");
            Ok(false)
        }
    }
}

/// Both a process that starts beside the rule and one that hears of it.
fn rule(bed: &Bed, kind: &str, hook: &str, rules: &str, expected: bool) -> Result<()> {
    nft(bed, "flush ruleset")?;
    let before = Ways::open();
    ensure!(leaves(&before)?, "stays beside no rule");
    nft(bed, &chain(kind, hook, rules))?;
    let found = [leaves(&before)?, leaves(&Ways::open())?];
    ensure!(found == [expected; 2], "{hook}: {rules}: leaves, as heard of and listed: {found:?}");
    nft(bed, "flush ruleset")?;
    ensure!(leaves(&before)?, "{rules}: stays when the rule has gone");
    Ok(())
}

pub(crate) fn rules_that_could_act_keep_sessions(bed: &Bed) -> Result<()> {
    for hook in HOOKS {
        ACT.iter().try_for_each(|one| rule(bed, "filter", hook, one, false))?;
        rule(bed, "filter", hook, "jump d; }; chain d {; drop", false)?;
        rule(bed, "filter", hook, "jump d; drop; }; chain d {; tcp dport 1 return; accept", true)?;
    }
    for hook in ["input", "output"] {
        rule(bed, "filter", hook, "reject", false)?;
        rule(bed, "filter", hook, "policy drop", false)?;
        rule(bed, "filter", hook, "policy drop; ct state established accept", true)?;
    }
    rule(bed, "filter", "prerouting", "notrack", false)?;
    rule(bed, "route", "output", "meta mark set 7", false)
}

pub(crate) fn rules_that_could_not_act_keep_none(bed: &Bed) -> Result<()> {
    for hook in HOOKS {
        HARMLESS.iter().try_for_each(|one| rule(bed, "filter", hook, one, true))?;
    }
    rule(bed, "filter", "forward", "drop", true)?;
    // These see the first packet of a connection only.
    rule(bed, "nat", "prerouting", "tcp dport 443 redirect to :8443", true)?;
    rule(bed, "nat", "output", "ip daddr 192.0.2.77 dnat ip to 127.0.0.1", true)
}

/// A firewall that is loaded anew, and rules that come and go in its middle.
pub(crate) fn the_order_of_rules_is_followed(bed: &Bed) -> Result<()> {
    let firewall = chain("filter", "input", "tcp dport 22 accept; ct state established accept; drop");
    nft(bed, &firewall)?;
    let ways = Ways::open();
    let expect = |expected: bool, what: &str| -> Result<()> {
        let found = [leaves(&ways)?, leaves(&Ways::open())?];
        ensure!(found == [expected; 2], "{what}: leaves, as heard of and listed: {found:?}");
        Ok(())
    };
    expect(true, "the firewall")?;
    for _ in 0..3 {
        nft(bed, &format!("flush ruleset\n{firewall}"))?;
        expect(true, "loaded anew")?;
    }
    nft(bed, "insert rule inet t c ip saddr @banned drop")?;
    expect(false, "a ban in front")?;
    nft(bed, &format!("flush chain inet t c\n{firewall}"))?;
    expect(true, "without it")?;
    nft(bed, "add rule inet t c ip saddr @banned drop")?;
    expect(true, "a ban behind")?;
    nft(bed, "insert rule inet t c index 1 ip saddr @banned drop")?;
    expect(false, "a ban in the middle")?;
    nft(bed, "delete chain inet t c")?;
    expect(true, "no chain")?;
    nft(bed, &chain("filter", "output", "drop"))?;
    expect(false, "a chain that drops all")?;
    nft(bed, "delete table inet t")?;
    expect(true, "no table")
}
