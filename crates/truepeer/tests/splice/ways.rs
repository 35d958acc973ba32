//! The ways of packets: sessions stay in user space where more than addresses decides about a route, and
//! leave over devices that stand on others.
//!
//! ```text
//! sender ── wire ═══ near ── truepeer ── backend on loopback
//! ```

use std::fs;
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Test, ip_here, skip, tests};

use crate::stand::{self, Stand, echo, open_at, spliced_to};
use crate::wire::{DOOR, far, stand, stays};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        rules_that_ask_for_addresses_hinder_no_session,
        an_ipsec_policy_keeps_sessions_in_user_space,
        a_rule_that_comes_later_keeps_sessions_that_have_not_left,
    ];
    for (kind, rule) in RULES {
        let name = format!("a_session_stays_beside_a_rule_on_{kind}");
        all.push(Test::new(name, move |bed: &Bed| beside_a_rule(bed, rule)));
    }
    let by_mark = |bed: &Bed| {
        let mark = "table ip marks {\n chain out {\n type route hook output priority mangle\n \
                    tcp sport 8443 meta mark set 7\n }\n }\n";
        Program::new("nft").args(["-f", "-"]).input(mark).run(bed)?;
        beside_a_rule(bed, "fwmark 7")
    };
    all.push(Test::new("a_session_stays_beside_a_rule_on_a_mark", by_mark).needs_program("nft"));
    for (name, make) in STACKS {
        let name = format!("a_session_over_{name}_leaves");
        all.push(Test::new(name, move |bed: &Bed| over(bed, make)));
    }
    all.push(Test::new("a_session_to_a_backend_over_a_macvlan_leaves", to_a_backend_over_a_macvlan));
    all
}

/// Each sends the answers to the sender by `near`. All other packets to it would go astray.
const RULES: [(&str, &str); 4] = [
    ("the_listeners_port", "sport 8443"),
    ("the_senders_port", "dport 1024-65534"),
    ("the_user", "uidrange 0-4000000000"),
    ("the_protocol", "ipproto tcp"),
];

fn rule_here(rule: &str) -> Result<()> {
    fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")?;
    fs::write("/proc/sys/net/ipv4/conf/near/rp_filter", "0")?;
    ip_here(&[
        "link add astray type veth peer name nowhere",
        "addr add 10.78.50.1/24 dev astray",
        "link set astray up",
        "link set nowhere up",
        "route add 10.99.0.0/24 via 10.78.50.2 dev astray",
        "route add 10.99.0.0/24 via 10.78.9.2 dev near table 100",
        &format!("rule add {rule} lookup 100"),
    ])
}

/// The far host's own address is 10.99.0.2, and no host on the wire has it.
fn behind_a_router(far: &NetNs) -> Result<()> {
    far.run(|| {
        ip_here(&["addr add 10.99.0.2/32 dev lo", "route replace 10.78.9.0/24 dev wire src 10.99.0.2"])?;
        // Nor does anybody there hear of it by its questions.
        fs::write("/proc/sys/net/ipv4/conf/wire/arp_announce", "2")?;
        Ok(fs::write("/proc/sys/net/ipv4/conf/wire/arp_ignore", "1")?)
    })?
}

fn beside_a_rule(bed: &Bed, rule: &str) -> Result<()> {
    let far = far()?;
    behind_a_router(&far)?;
    rule_here(rule)?;
    let stand = stand(bed, DOOR)?;
    let stream = far.run(|| open_at(DOOR, 0))??;
    ensure!(stream.local_addr()?.ip().to_string() == "10.99.0.2", "{stream:?}");
    stays(bed, &stand, stream, "routing_rules")
}

fn rules_that_ask_for_addresses_hinder_no_session(bed: &Bed) -> Result<()> {
    let far = far()?;
    ip_here(&[
        "rule add from 10.78.9.1 lookup main",
        "rule add to 10.78.9.0/24 lookup main",
        "rule add iif near lookup main",
        "rule add ipproto udp sport 53 lookup 100",
        "rule add from 127.0.0.1 iif lo lookup main",
    ])?;
    leaves(bed, &far, DOOR)
}

fn a_rule_that_comes_later_keeps_sessions_that_have_not_left(bed: &Bed) -> Result<()> {
    let far = far()?;
    let stand = stand(bed, DOOR)?;
    let mut stream = far.run(|| open_at(DOOR, 0))??;
    // The first session leaves; the next one meets the rule.
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    ip_here(&["rule add fwmark 7 lookup 100"])?;
    let second = far.run(|| open_at(DOOR, 1))??;
    stays_beside(bed, &stand, second)?;
    // A rule that is gone hinders nobody.
    ip_here(&["rule del fwmark 7 lookup 100"])?;
    let third = far.run(|| open_at(DOOR, 2))??;
    stand.wait_spliced(bed, &mut [stream, third]).map(drop)
}

/// As [`stays`], beside sessions that have left.
fn stays_beside(bed: &Bed, stand: &Stand, mut stream: TcpStream) -> Result<()> {
    stand.truepeer.wait_state("the reason to be counted", || {
        echo(&mut stream, &[3; 3000]).is_ok()
            && stand.ask(bed, &["status"]).is_ok_and(|status| status.contains("1  routing_rules"))
    })
}

fn an_ipsec_policy_keeps_sessions_in_user_space(bed: &Bed) -> Result<()> {
    let far = far()?;
    let policy = "xfrm policy add dir out src 10.200.0.1/32 dst 10.200.0.2/32 action allow";
    if ip_here(&[policy]).is_err() {
        return skip("this kernel has no IPsec (xfrm_user)");
    }
    let stand = stand(bed, DOOR)?;
    let stream = far.run(|| open_at(DOOR, 0))??;
    stays(bed, &stand, stream, "ipsec")
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
        ])
    }),
];

fn macvlan(lower: &str, mode: &str) -> Result<()> {
    ip_here(&[
        &format!("addr flush dev {lower}"),
        &format!("addr add 10.78.8.1/24 dev {lower}"),
        &format!("link add top link {lower} type macvlan mode {mode}"),
        "addr add 10.78.9.1/24 dev top",
        "link set top up",
    ])
}

fn over(bed: &Bed, make: Make) -> Result<()> {
    let far = far()?;
    make(&far).context("making the devices")?;
    behind_a_router(&far)?;
    ip_here(&["route add 10.99.0.0/24 via 10.78.9.2"])?;
    leaves(bed, &far, DOOR)
}

fn leaves(bed: &Bed, far: &NetNs, listener: &str) -> Result<()> {
    let stand = stand(bed, listener)?;
    let mut stream = far.run(|| open_at(listener, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    moves_bytes(&mut stream)
}

fn moves_bytes(stream: &mut TcpStream) -> Result<()> {
    for len in [1, 3000, 200_000] {
        echo(stream, &vec![4; len]).with_context(|| format!("{len} bytes"))?;
    }
    Ok(())
}

fn to_a_backend_over_a_macvlan(bed: &Bed) -> Result<()> {
    let far = far()?;
    macvlan("near", "bridge")?;
    // The sender's segments must fit through the wire.
    ip_here(&["link set lo mtu 1500"])?;
    behind_a_router(&far)?;
    ip_here(&["route add 10.99.0.0/24 via 10.78.9.2"])?;
    let backend_at = "10.99.0.2:8000";
    let backend = far.run(|| {
        ip_here(&["route add default via 10.78.9.1"])?;
        Behaviour::Echo.start(bed, &[backend_at])
    })??;
    let truepeer = spliced_to(bed, backend_at, &[]).start(bed)?;
    let stand = Stand { truepeer, backend, admin: bed.dir().join("admin") };
    let mut stream = stand::open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    moves_bytes(&mut stream)
}
