//! Firewalls as distributions ship them, where a rule drops packets that conntrack finds invalid: sessions go
//! on after they have left user space, also with both ends on this host, where each packet passes netfilter
//! twice.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Program, Test};

use crate::stand::{Stand, echo, open, open_at};
use crate::wire::{DOOR, far, stand};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for (name, rules) in FIREWALLS {
        for (place, far) in [("this_host", false), ("another_host", true)] {
            let test = Test::new(format!("{name}_lets_sessions_of_{place}_leave"), move |bed: &Bed| {
                behind(bed, rules, far)
            });
            all.push(test.needs_program("nft"));
        }
    }
    all
}

/// Arch Linux' nftables.conf; Debian's workstation example; firewalld's zone "public" as it writes it for
/// nftables. With the listener's port open and, because hosts that filter what they send have it there, too,
/// the rule on invalid packets in an output chain.
const FIREWALLS: [(&str, &str); 3] = [
    (
        "the_firewall_of_arch",
        "table inet filter {
  chain input {
    type filter hook input priority filter
    policy drop
    ct state invalid drop comment \"early drop of invalid connections\"
    ct state {established, related} accept comment \"allow tracked connections\"
    iif lo accept comment \"allow from loopback\"
    ip protocol icmp accept comment \"allow icmp\"
    meta l4proto ipv6-icmp accept comment \"allow icmp v6\"
    tcp dport 8443 accept
    counter
  }
  chain forward {
    type filter hook forward priority filter
    policy drop
  }
  chain output {
    type filter hook output priority filter
    ct state invalid drop
  }
}
",
    ),
    (
        "the_firewall_of_debian",
        "table inet filter {
  chain input {
    type filter hook input priority 0; policy drop;
    ct state invalid counter drop
    iif lo accept
    ct state established,related accept
    icmp type { echo-request, destination-unreachable, time-exceeded, parameter-problem } accept
    tcp dport 8443 ct state new accept
    counter drop
  }
  chain output {
    type filter hook output priority 0; policy drop;
    ct state invalid counter drop
    ct state new,established,related accept
  }
}
",
    ),
    (
        "the_firewall_of_firewalld",
        "table inet firewalld {
  chain mangle_PREROUTING {
    type filter hook prerouting priority mangle + 10; policy accept;
    ct state invalid drop
  }
  chain filter_INPUT {
    type filter hook input priority filter + 10; policy accept;
    ct state { established, related } accept
    ct status dnat accept
    iifname \"lo\" accept
    ct state invalid drop
    tcp dport 8443 accept
    reject with icmpx type admin-prohibited
  }
  chain filter_OUTPUT {
    type filter hook output priority filter + 10; policy accept;
    ct state invalid drop
    ct state { established, related } accept
    oifname \"lo\" accept
  }
}
",
    ),
];

fn behind(bed: &Bed, rules: &str, is_far: bool) -> Result<()> {
    let far = far()?;
    Program::new("nft").args(["-f", "-"]).input(rules).run(bed)?;
    if is_far {
        let stand = stand(bed, DOOR)?;
        let stream = far.run(|| open_at(DOOR, 0))??;
        leaves(bed, &stand, stream)
    } else {
        let stand = Stand::make(bed, &[])?;
        leaves(bed, &stand, open(0)?)
    }
}

fn leaves(bed: &Bed, stand: &Stand, mut stream: TcpStream) -> Result<()> {
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    for len in [1, 3000, 200_000] {
        echo(&mut stream, &vec![4; len]).with_context(|| format!("{len} bytes"))?;
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    stand.truepeer.wait_for_log("close=\"finished\"")
}
