//! Firewalls as distributions ship them, where a rule drops packets that conntrack finds invalid: sessions go
//! on after they have left user space, also with both ends on this host, where each packet passes netfilter
//! twice. And bans, which hold for an open session as well.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Program, Test, tests};

use crate::stand::{Stand, echo, is_reset, open, open_at};
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
    all.extend(
        tests![
            banned_addresses_are_banned_from_an_open_session,
            a_ban_ends_sessions_that_have_left,
            a_ban_of_others_ends_no_session,
            a_firewall_that_is_loaded_anew_ends_no_session,
        ]
        .into_iter()
        .map(|test| test.needs_program("nft")),
    );
    all
}

fn nft(bed: &Bed, commands: &str) -> Result<()> {
    Program::new("nft").args(["-f", "-"]).input(commands).run(bed).map(drop)
}

/// As fail2ban and CrowdSec write them.
const BANS: &str = "table inet f2b-table {
  set addr-set-web { type ipv4_addr; }
  chain f2b-chain {
    type filter hook input priority filter - 1; policy accept;
    tcp dport 8443 ip saddr @addr-set-web reject
  }
}
";

/// Beside the rule, sessions stay, so a ban that comes later stops them.
fn banned_addresses_are_banned_from_an_open_session(bed: &Bed) -> Result<()> {
    let far = far()?;
    nft(bed, BANS)?;
    let stand = stand(bed, DOOR)?;
    let mut stream = far.run(|| open_at(DOOR, 0))??;
    let is_counted = || {
        echo(&mut stream, &[3; 3000]).is_ok()
            && stand.ask(bed, &["status"]).is_ok_and(|status| status.contains("1  firewall"))
    };
    stand.truepeer.wait_state("a session that stays", is_counted)?;
    nft(bed, "add element inet f2b-table addr-set-web { 10.78.9.2 }")?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    ensure!(echo(&mut stream, b"banned").is_err(), "the session goes on");
    Ok(())
}

/// The rule comes when the session has left: it is reset at both ends.
fn a_ban_ends_sessions_that_have_left(bed: &Bed) -> Result<()> {
    let far = far()?;
    let stand = stand(bed, DOOR)?;
    for (number, ban) in [
        BANS,
        "table ip ban { chain c { type filter hook input priority 0\n ip saddr 10.78.9.2 drop\n }\n}\n",
    ]
    .into_iter()
    .enumerate()
    {
        let mut stream = far.run(|| open_at(DOOR, u16::try_from(number)?))??;
        stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
        nft(bed, ban)?;
        is_reset(&mut stream).with_context(|| ban.to_owned())?;
        stand.backend.wait_for_log(&format!("203.0.113.7:{} reset", 5000 + number))?;
        stand.truepeer.wait_for_log("close=\"way_lost\"")?;
        nft(bed, "flush ruleset")?;
    }
    Ok(())
}

fn a_ban_of_others_ends_no_session(bed: &Bed) -> Result<()> {
    let far = far()?;
    let stand = stand(bed, DOOR)?;
    let mut stream = far.run(|| open_at(DOOR, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    nft(
        bed,
        "table ip ban { chain c { type filter hook input priority 0\n ip saddr 10.78.9.77 drop\n tcp dport 22 drop\n }\n}\n",
    )?;
    goes_on(bed, &stand, &mut stream)
}

fn a_firewall_that_is_loaded_anew_ends_no_session(bed: &Bed) -> Result<()> {
    let far = far()?;
    let (_, firewall) = FIREWALLS[1];
    nft(bed, firewall)?;
    let stand = stand(bed, DOOR)?;
    let mut stream = far.run(|| open_at(DOOR, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    nft(bed, &format!("flush ruleset\n{firewall}"))?;
    goes_on(bed, &stand, &mut stream)
}

/// For longer than two looks at the firewall.
fn goes_on(bed: &Bed, stand: &Stand, stream: &mut TcpStream) -> Result<()> {
    for _ in 0..40 {
        echo(stream, &[5; 3000])?;
        std::thread::sleep(Duration::from_millis(100));
    }
    let sessions = stand.ask(bed, &["sessions"])?;
    ensure!(sessions.matches(" spliced ").count() == 1, "{sessions}");
    Ok(())
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
