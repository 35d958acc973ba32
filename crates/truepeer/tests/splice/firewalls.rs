//! Firewalls as distributions ship them, where a rule drops packets that conntrack finds invalid: sessions go
//! on after they have left user space, also with both ends on this host, where each packet passes netfilter
//! twice. And bans, which hold for an open session as well.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Program, Test};

use crate::family::{Family, in_both};
use crate::stand::{Stand, echo, is_reset, open_at};
use crate::wire::{far, stand, stays};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for firewall in FIREWALLS {
        for (place, is_far) in [("this_host", false), ("another_host", true)] {
            let name = format!("{}_lets_sessions_of_{place}_leave", firewall.name);
            let [v4, v6] = in_both(&name, move |bed, family| behind(bed, family, firewall, is_far));
            all.push(v4);
            all.extend(firewall.lets_ipv6_leave.then_some(v6));
        }
        if !firewall.lets_ipv6_leave {
            let name = format!("{}_keeps_sessions_by_ipv6", firewall.name);
            all.push(Test::new(name, move |bed: &Bed| stays_behind(bed, firewall)));
        }
    }
    all.extend(in_both("banned_addresses_are_banned_from_an_open_session", while_a_set_is_empty));
    all.extend(in_both("a_ban_ends_sessions_that_have_left", by_a_ban));
    all.extend(in_both("a_ban_of_others_ends_no_session", by_a_ban_of_others));
    all.extend(in_both("a_firewall_that_is_loaded_anew_ends_no_session", while_it_is_loaded_anew));
    all.into_iter().map(|test| test.needs_program("nft")).collect()
}

/// A firewall as it is shipped, with the listener's port open.
#[derive(Debug, Clone, Copy)]
struct Firewall {
    name: &'static str,
    rules: &'static str,
    /// A line of it, and that line with the port.
    port: [&'static str; 2],
    lets_ipv6_leave: bool,
}

const FIREWALLS: [Firewall; 3] = [
    Firewall {
        name: "the_firewall_of_arch",
        rules: include_str!("firewalls/arch.nft"),
        port: ["tcp dport ssh accept", "tcp dport { 22, 8443 } accept"],
        lets_ipv6_leave: true,
    },
    Firewall {
        name: "the_firewall_of_debian",
        rules: include_str!("firewalls/debian.nft"),
        port: ["#tcp dport { 22, 80, 443 } ct", "tcp dport { 22, 80, 443, 8443 } ct"],
        lets_ipv6_leave: true,
    },
    // By IPv6 it drops packets that come by another device than the way back.
    Firewall {
        name: "the_firewall_of_firewalld",
        rules: include_str!("firewalls/firewalld.nft"),
        port: ["tcp dport 8443 accept", "tcp dport 8443 accept"],
        lets_ipv6_leave: false,
    },
];

/// Hosts that filter what they send have this rule there, too.
const OUTPUT: &str = "table inet sent {
  chain output {
    type filter hook output priority filter; policy drop
    ct state invalid counter drop
    ct state new,established,related accept
    meta l4proto ipv6-icmp accept
  }
}
";

impl Firewall {
    fn load(&self, bed: &Bed) -> Result<()> {
        let [line, with_port] = self.port;
        ensure!(self.rules.contains(line), "no line {line}");
        nft(bed, &format!("flush ruleset\n{}\n{OUTPUT}", self.rules.replace(line, with_port)))
    }
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

fn bans(family: Family) -> String {
    match family {
        Family::V4 => BANS.to_owned(),
        Family::V6 => BANS.replace("ip saddr", "ip6 saddr").replace("ipv4_addr", "ipv6_addr"),
    }
}

/// Beside the rule, sessions stay, so a ban that comes later stops them.
fn while_a_set_is_empty(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    nft(bed, &bans(family))?;
    let stand = stand(bed, family.listener())?;
    let mut stream = far.run(|| open_at(family.listener(), 0))??;
    let is_counted = || {
        echo(&mut stream, &[3; 3000]).is_ok()
            && stand.ask(bed, &["status"]).is_ok_and(|status| crate::wire::counts_one(&status, "firewall"))
    };
    stand.truepeer.wait_state("a session that stays", is_counted)?;
    let sender = family.pick("10.78.9.2", "fd78:9::2");
    nft(bed, &format!("add element inet f2b-table addr-set-web {{ {sender} }}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    ensure!(echo(&mut stream, b"banned").is_err(), "the session goes on");
    Ok(())
}

/// The rule comes when the session has left: it is reset at both ends.
fn by_a_ban(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    let stand = stand(bed, family.listener())?;
    let of_one = family.pick("ip saddr 10.78.9.2", "ip6 saddr fd78:9::2");
    let of_one =
        format!("table inet ban {{ chain c {{ type filter hook input priority 0\n {of_one} drop\n }}\n}}\n");
    for (number, ban) in (0..).zip([bans(family), of_one]) {
        let mut stream = far.run(|| open_at(family.listener(), number))??;
        stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
        nft(bed, &ban)?;
        is_reset(&mut stream).with_context(|| ban.clone())?;
        stand.backend.wait_for_log(&format!("{} reset", family.client(number)))?;
        stand.truepeer.wait_for_log("close=\"way_lost\"")?;
        nft(bed, "flush ruleset")?;
    }
    Ok(())
}

fn by_a_ban_of_others(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    let stand = stand(bed, family.listener())?;
    let mut stream = far.run(|| open_at(family.listener(), 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    nft(
        bed,
        "table inet ban { chain c { type filter hook input priority 0\n ip saddr 10.78.9.77 drop\n \
         ip6 saddr fd78:9::77 drop\n tcp dport 22 drop\n }\n}\n",
    )?;
    goes_on(bed, &stand, &mut stream)
}

fn while_it_is_loaded_anew(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    let [_, firewall, _] = FIREWALLS;
    firewall.load(bed)?;
    let stand = stand(bed, family.listener())?;
    let mut stream = far.run(|| open_at(family.listener(), 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    firewall.load(bed)?;
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

fn behind(bed: &Bed, family: Family, firewall: Firewall, is_far: bool) -> Result<()> {
    let far = far()?;
    firewall.load(bed)?;
    if is_far {
        let stand = stand(bed, family.listener())?;
        let stream = far.run(|| open_at(family.listener(), 0))??;
        leaves(bed, &stand, stream)
    } else {
        let stand = Stand::on_this_host(bed, family, &[])?;
        leaves(bed, &stand, open_at(family.listener_here(), 0)?)
    }
}

fn stays_behind(bed: &Bed, firewall: Firewall) -> Result<()> {
    let far = far()?;
    firewall.load(bed)?;
    let stand = stand(bed, Family::V6.listener())?;
    let stream = far.run(|| open_at(Family::V6.listener(), 0))??;
    stays(bed, &stand, stream, "firewall")
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
