//! The ways of packets: sessions stay in user space where more than addresses decides about a route, and
//! leave over devices that stand on others.
//!
//! ```text
//! sender ── wire ═══ near ── truepeer ── backend on loopback
//! ```

use std::fs;
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Test, ip_here, skip};

use crate::family::{Family, in_both};
use crate::stand::{Stand, echo, is_reset, open_at, spliced_to};
use crate::wire::{far, second_link, stand, stays};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    all.extend(in_both("rules_that_ask_for_addresses_hinder_no_session", beside_rules_on_addresses));
    all.extend(in_both("a_session_leaves_by_a_rule_on_its_own_address", by_a_rule_on_its_address));
    all.extend(in_both("an_ipsec_policy_keeps_sessions_in_user_space", beside_an_ipsec_policy));
    for (kind, rule) in RULES {
        all.extend(in_both(&format!("a_session_stays_beside_a_rule_on_{kind}"), move |bed, family| {
            beside_a_rule(bed, family, rule)
        }));
        let name = format!("a_rule_on_{kind}_that_comes_later_ends_sessions_that_have_left");
        all.extend(in_both(&name, move |bed, family| before_a_rule(bed, family, rule)));
    }
    let by_mark = in_both("a_session_stays_beside_a_rule_on_a_mark", beside_a_rule_on_a_mark);
    all.extend(by_mark.map(|test| test.needs_program("nft")));
    for (name, make) in STACKS {
        all.extend(in_both(&format!("a_session_over_{name}_leaves"), move |bed, family| {
            over(bed, family, make)
        }));
    }
    all.extend(in_both("a_session_to_a_backend_over_a_macvlan_leaves", to_a_backend_over_a_macvlan));
    all
}

/// Each holds for the answers to the sender.
const RULES: [(&str, &str); 5] = [
    ("the_listeners_port", "sport 8443"),
    ("the_senders_port", "dport 1024-65534"),
    ("the_user", "uidrange 0-4000000000"),
    ("the_protocol", "ipproto tcp"),
    ("the_lack_of_a_mark", "fwmark 0/8"),
];

fn without_rp_filter(device: &str) -> Result<()> {
    for name in ["all", device] {
        fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0")?;
    }
    Ok(())
}

/// Only by this rule a packet to the sender leaves by `near`; otherwise it goes astray.
fn only_by_rule(family: Family, rule: &str) -> Result<()> {
    without_rp_filter("near")?;
    let (network, hosts) = family.pick(("10.78.50", "10.99.0.0/24"), ("fd78:50:", "fd99::/64"));
    let (one, len) = family.pick((".1", 24), (":1", 64));
    let (nowhere, there) = family.pick((".2", "10.78.9.2"), (":2", "fd78:9::2"));
    ip_here(&[
        "link add astray type veth peer name nowhere",
        &format!("addr add {network}{one}/{len} dev astray"),
        "link set astray up",
        "link set nowhere up",
    ])?;
    ip_here(&[
        &format!("route add {hosts} via {network}{nowhere} dev astray"),
        &format!("route add {hosts} via {there} dev near table 100"),
        &family.rule(&format!("add {rule} lookup 100")),
    ])
}

/// The far host's own address is 10.99.0.2 (fd99::2), and no host on the wire has it.
pub(crate) fn behind_a_router(far: &NetNs) -> Result<()> {
    far.run(|| {
        ip_here(&["addr add 10.99.0.2/32 dev lo", "addr add fd99::2/128 dev lo nodad"])?;
        ip_here(&[
            "route replace 10.78.9.0/24 dev wire src 10.99.0.2",
            "route add fd78:9::1/128 dev wire src fd99::2",
        ])?;
        // Nor does anybody there hear of it by its questions.
        fs::write("/proc/sys/net/ipv4/conf/wire/arp_announce", "2")?;
        Ok(fs::write("/proc/sys/net/ipv4/conf/wire/arp_ignore", "1")?)
    })?
}

pub(crate) fn by_near(family: Family) -> &'static str {
    family.pick("route add 10.99.0.0/24 via 10.78.9.2", "route add fd99::/64 via fd78:9::2")
}

/// A session of the far host by its own address.
pub(crate) fn open_from(far: &NetNs, family: Family, number: u16) -> Result<TcpStream> {
    let stream = far.run(|| open_at(family.listener(), number))??;
    let own = stream.local_addr()?.ip().to_string();
    ensure!(own == family.pick("10.99.0.2", "fd99::2"), "{own}");
    Ok(stream)
}

fn beside_a_rule(bed: &Bed, family: Family, rule: &str) -> Result<()> {
    let far = far()?;
    behind_a_router(&far)?;
    only_by_rule(family, rule)?;
    let stand = stand(bed, family.listener())?;
    let stream = open_from(&far, family, 0)?;
    stays(bed, &stand, stream, "routing_rules")
}

fn beside_a_rule_on_a_mark(bed: &Bed, family: Family) -> Result<()> {
    let mark = "table inet marks {\n chain out {\n type route hook output priority mangle\n \
                tcp sport 8443 meta mark set 7\n }\n }\n";
    Program::new("nft").args(["-f", "-"]).input(mark).run(bed)?;
    beside_a_rule(bed, family, "fwmark 7")
}

fn beside_rules_on_addresses(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    let rules = family.pick(
        ["from 10.78.9.1", "to 10.78.9.0/24", "iif near", "from 127.0.0.1 iif lo"],
        ["from fd78:9::1", "to fd78:9::/64", "iif near", "from ::1 iif lo"],
    );
    for rule in rules {
        ip_here(&[&family.rule(&format!("add {rule} lookup main"))])?;
    }
    ip_here(&[&family.rule("add ipproto udp sport 53 lookup 100")])?;
    leaves(bed, &stand(bed, family.listener())?, far.run(|| open_at(family.listener(), 0))??)
}

/// Two ways out, and the own address decides.
fn by_a_rule_on_its_address(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    behind_a_router(&far)?;
    only_by_rule(family, &format!("from {}", family.pick("10.78.9.1", "fd78:9::1")))?;
    let stand = stand(bed, family.listener())?;
    leaves(bed, &stand, open_from(&far, family, 0)?)
}

/// By the rule, a socket's packets would take the second link from then on.
fn before_a_rule(bed: &Bed, family: Family, rule: &str) -> Result<()> {
    let far = far()?;
    behind_a_router(&far)?;
    second_link(&far)?;
    far.run(|| without_rp_filter("wire2"))??;
    let (hosts, there) = family.pick(("10.99.0.0/24", "10.78.7.2"), ("fd99::/64", "fd78:7::2"));
    ip_here(&[by_near(family), &format!("route add {hosts} via {there} dev second table 100")])?;
    let stand = stand(bed, family.listener())?;
    let mut first = open_from(&far, family, 0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut first))?;
    ip_here(&[&family.rule(&format!("add {rule} lookup 100"))])?;
    is_reset(&mut first)?;
    stand.backend.wait_for_log(&format!("{} reset", family.client(0)))?;
    stand.truepeer.wait_for_log("close=\"way_lost\"")?;
    let mut second = open_from(&far, family, 1)?;
    stays_beside(bed, &stand, &mut second)?;
    ip_here(&[&family.rule(&format!("del {rule} lookup 100"))])?;
    moves_bytes(&mut second)?;
    drop(second);
    // A rule that is gone hinders nobody.
    leaves(bed, &stand, open_from(&far, family, 2)?)
}

/// As [`stays`], with sessions before it.
fn stays_beside(bed: &Bed, stand: &Stand, stream: &mut TcpStream) -> Result<()> {
    stand.truepeer.wait_state("the reason to be counted", || {
        echo(stream, &[3; 3000]).is_ok()
            && stand
                .ask(bed, &["status"])
                .is_ok_and(|status| crate::wire::counts_one(&status, "routing_rules"))
    })
}

fn beside_an_ipsec_policy(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    if ip_here(&[ipsec_policy(family)]).is_err() {
        return skip("this kernel has no IPsec (xfrm_user)");
    }
    let stand = stand(bed, family.listener())?;
    let stream = far.run(|| open_at(family.listener(), 0))??;
    stays(bed, &stand, stream, "ipsec")
}

/// Between other hosts.
pub(crate) fn ipsec_policy(family: Family) -> &'static str {
    family.pick(
        "xfrm policy add dir out src 10.200.0.1/32 dst 10.200.0.2/32 action allow",
        "xfrm policy add dir out src fd78:200::1/128 dst fd78:200::2/128 action allow",
    )
}

type Make = fn(&NetNs) -> Result<()>;

/// What stands between the listener's address and the wire. The lower devices have addresses of their own, so
/// the programs are attached to them, too.
const STACKS: [(&str, Make); 5] = [
    ("a_macvlan", |_| macvlan("near", "bridge")),
    ("a_private_macvlan", |_| macvlan("near", "private")),
    ("a_macvlan_that_passes_all_through", |_| macvlan("near", "passthru")),
    ("a_macvlan_on_a_bridge", |_| {
        ip_here(&[
            "addr flush dev near",
            "link add br0 type bridge",
            "link set near master br0",
            "link set br0 up",
        ])?;
        macvlan("br0", "bridge")
    }),
    ("a_bridge_on_a_macvlan", |_| {
        ip_here(&[
            "addr flush dev near",
            "addr add 10.78.8.1/24 dev near",
            "link add top link near type macvlan mode bridge",
            "link add br0 type bridge",
            "link set top master br0",
            "link set top up promisc on",
            "link set near promisc on",
            "addr add 10.78.9.1/24 dev br0",
            "addr add fe80::1234/64 dev top nodad",
            "link set br0 up",
            "addr add fd78:9::1/64 dev br0 nodad",
        ])
    }),
];

pub(crate) fn macvlan(lower: &str, mode: &str) -> Result<()> {
    ip_here(&[
        &format!("addr flush dev {lower}"),
        &format!("addr add 10.78.8.1/24 dev {lower}"),
        &format!("link add top link {lower} type macvlan mode {mode}"),
        "addr add 10.78.9.1/24 dev top",
        "addr add fd78:9::1/64 dev top nodad",
        "link set top up",
    ])
}

fn over(bed: &Bed, family: Family, make: Make) -> Result<()> {
    let far = far()?;
    make(&far).context("making the devices")?;
    behind_a_router(&far)?;
    ip_here(&[by_near(family)])?;
    let stand = stand(bed, family.listener())?;
    leaves(bed, &stand, open_from(&far, family, 0)?)
}

pub(crate) fn leaves(bed: &Bed, stand: &Stand, mut stream: TcpStream) -> Result<()> {
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    moves_bytes(&mut stream)
}

fn moves_bytes(stream: &mut TcpStream) -> Result<()> {
    for len in [1, 3000, 200_000] {
        echo(stream, &vec![4; len]).with_context(|| format!("{len} bytes"))?;
    }
    Ok(())
}

fn to_a_backend_over_a_macvlan(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    macvlan("near", "bridge")?;
    // The sender's segments must fit through the wire.
    ip_here(&["link set lo mtu 1500"])?;
    behind_a_router(&far)?;
    ip_here(&[by_near(family)])?;
    let backend_at = family.pick("10.99.0.2:8000", "[fd99::2]:8000");
    let backend = far.run(|| {
        ip_here(&[&format!("route add default via {}", family.pick("10.78.9.1", "fd78:9::1"))])?;
        Behaviour::Echo.start(bed, &[backend_at])
    })??;
    let truepeer = spliced_to(bed, backend_at, &[]).start(bed)?;
    let stand = Stand { truepeer, backend, admin: bed.dir().join("admin") };
    leaves(bed, &stand, open_at(family.listener_here(), 0)?)
}
