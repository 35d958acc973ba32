//! The programs find who is banned as the process does: the same bans in the tables and in
//! `truepeer_policy::Bans`, and the same clients asked.

use std::cell::RefCell;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::mount::{MountFlags, mount};
use truepeer_bpf::test::bans::BanCheck;
use truepeer_bpf::{BanTable, Place};
use truepeer_policy::{Ban, BannedPrefix, Bans, ClientAddr, Lifted};
use truepeer_testbed::{Bed, skip, tests};

/// Seconds since 1970.
const NOW: u64 = 1_800_000_000;
const LATER: u64 = NOW + 3600;

fn main() -> ExitCode {
    truepeer_testbed::main(tests![
        programs_and_process_ban_the_same_clients,
        a_ban_among_many_is_found,
        a_look_up_is_as_short_with_many_bans,
    ])
}

fn open(bed: &Bed) -> Result<(BanCheck, BanTable)> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the initial user namespace: run as root");
    }
    let pins = bed.dir().join("bpf");
    fs::create_dir_all(&pins)?;
    mount("bpf", &pins, "bpf", MountFlags::empty(), None).context("mounting a BPF file system")?;
    let place = Place::here(&pins.join("truepeer"))?;
    let check = BanCheck::load(&place)?;
    Ok((check, BanTable::open(&place)?.context("no tables")?))
}

fn ban(clients: BannedPrefix, port: u16, until: Option<u64>) -> Ban {
    Ban { clients, port: NonZeroU16::new(port), since: NOW, until, by: Some(0), why: "".into() }
}

fn host(n: u32) -> BannedPrefix {
    Ipv4Addr::from_bits(n).to_string().parse().expect("an address")
}

#[derive(Debug, Clone)]
enum Step {
    Set(Vec<Ban>),
    Lift(BannedPrefix, Lifted<'static>),
    Clear,
}

/// One of the IPv4 clients: to the tables, it is none of IPv6.
fn behind_nat64(net: u16, host: u16) -> IpAddr {
    IpAddr::from([0x64, 0xff9b, 0, 0, 0, 0, 0xc000, net << 8 | host])
}

/// Few addresses and ports, so that bans are in each other and clients in bans.
fn a_client() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..4_u8, 0..8_u8).prop_map(|(net, host)| IpAddr::from([192, 0, net, host])),
        (0..2_u16, 0..8_u16).prop_map(|(net, host)| IpAddr::from([0x2001, 0xdb8, net, 0, 0, 0, 0, host])),
        (0..4_u16, 0..8_u16).prop_map(|(net, host)| behind_nat64(net, host)),
    ]
}

fn a_port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(80), Just(443)]
}

fn a_reason() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just("fail2ban: sshd"), Just("a reason that does not fit into thirty-two bytes")]
}

fn a_prefix() -> impl Strategy<Value = BannedPrefix> {
    (a_client(), any::<prop::sample::Index>()).prop_map(|(client, len)| {
        let lens: &[u8] = if client.is_ipv4() { &[8, 22, 24, 30, 31, 32] } else { &[16, 48, 64, 126, 128] };
        format!("{client}/{}", len.get(lens)).parse().expect("a prefix")
    })
}

fn a_step() -> impl Strategy<Value = Step> {
    // NOW has passed, LATER has not.
    let until = prop_oneof![Just(None), Just(Some(NOW)), Just(Some(LATER)), Just(Some(LATER + 9))];
    let set = prop::collection::vec((a_prefix(), a_port(), until, a_reason()), 1..4);
    let bans = |all: Vec<(BannedPrefix, u16, Option<u64>, &'static str)>| {
        all.into_iter()
            .map(|(clients, port, until, why)| Ban { why: why.into(), ..ban(clients, port, until) })
    };
    let lift = |(clients, port, why)| Step::Lift(clients, Lifted { port: NonZeroU16::new(port), why });
    prop_oneof![
        6 => set.prop_map(move |all| Step::Set(bans(all).collect())),
        3 => (a_prefix(), a_port(), prop::option::of(a_reason())).prop_map(lift),
        1 => Just(Step::Clear),
    ]
}

fn programs_and_process_ban_the_same_clients(bed: &Bed) -> Result<()> {
    let (check, table) = open(bed)?;
    let (check, table) = (RefCell::new(check), RefCell::new(table));
    let case = (
        prop::collection::vec(a_step(), 1..12),
        prop::collection::vec((a_client(), prop_oneof![Just(80), Just(443), Just(22)]), 40),
    );
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    runner.run(&case, |(steps, asked)| {
        let bans = Bans::default();
        let (mut check, mut table) = (check.borrow_mut(), table.borrow_mut());
        table.clear().expect("the tables");
        for step in &steps {
            match step {
                Step::Set(set) => {
                    let in_kernel = table.set(set, NOW).expect("room");
                    prop_assert_eq!(in_kernel, bans.set(set.clone()).expect("room"), "{:?}", steps);
                }
                Step::Lift(clients, which) => {
                    let lifted = table.lift(&[*clients], *which).expect("the tables");
                    prop_assert_eq!(lifted, bans.lift(*clients, *which), "{:?}", steps);
                }
                Step::Clear => _ = (table.clear().expect("the tables"), bans.clear()),
            }
        }
        bans.expire(NOW);
        for (client, port) in asked {
            let in_process = bans.has(ClientAddr::new(SocketAddr::new(client, 1)), port);
            let in_kernel = check.is_banned(client, port).expect("a run");
            prop_assert_eq!(in_kernel, in_process, "{} at {}: {:?}", client, port, steps);
        }
        let (mut in_kernel, mut in_process) = (table.list(NOW).expect("the tables"), bans.list());
        for all in [&mut in_kernel, &mut in_process] {
            all.sort_unstable_by_key(|ban| (ban.clients, ban.port));
        }
        // Its seconds go on.
        let ends = |bans: &[Ban]| {
            bans.iter().map(|ban| (ban.clients, ban.port, ban.until.is_some())).collect::<Vec<_>>()
        };
        prop_assert_eq!(ends(&in_kernel), ends(&in_process));
        Ok(())
    })?;
    Ok(())
}

/// The filter before the table of single addresses must let each of them through, also after removals.
fn a_ban_among_many_is_found(bed: &Bed) -> Result<()> {
    const MANY: u32 = 20_000;
    let (mut check, mut table) = open(bed)?;
    let many: Vec<Ban> = (0..MANY).map(|n| ban(host(0x0a00_0000 + n), 0, Some(LATER))).collect();
    let at = |n: u32| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + n));
    table.set(&many, NOW)?;
    ensure!(table.list(NOW)?.len() == many.len());
    for n in 0..MANY {
        ensure!(check.is_banned(at(n), 443)?, "{}", at(n));
    }
    ensure!(!check.is_banned(at(MANY), 443)?);
    let lifted: Vec<BannedPrefix> = (0..MANY / 2).map(|n| host(0x0a00_0000 + n)).collect();
    ensure!(table.lift(&lifted, Lifted::default())? == lifted.len());
    for n in 0..MANY {
        ensure!(check.is_banned(at(n), 443)? == (n >= MANY / 2), "{}", at(n));
    }
    ensure!(table.clear()? == many.len() - lifted.len());
    ensure!(!check.is_banned(at(MANY - 1), 443)? && table.list(NOW)?.is_empty());
    Ok(())
}

/// The filter keeps nearly all clients from the table of addresses, however many there are. The times are
/// only printed: they depend on what else the machine does.
fn a_look_up_is_as_short_with_many_bans(bed: &Bed) -> Result<()> {
    const LOOK_UPS: u32 = 1_000_000;
    let (mut check, mut table) = open(bed)?;
    let cost = |check: &mut BanCheck| -> Result<Duration> {
        let runs: Result<Vec<_>, _> = (0..5).map(|_| check.cost(LOOK_UPS)).collect();
        runs?.into_iter().min().context("a run")
    };
    let none = cost(&mut check)?;
    table.set(&[ban("2001:db8::/48".parse()?, 0, None)], NOW)?;
    let prefix = cost(&mut check)?;
    table.clear()?;
    let many: Vec<Ban> = (0..100_000).map(|n| ban(host(0xc612_0000 + n), 0, Some(LATER))).collect();
    table.set(&many, NOW)?;
    let left: u32 = (0..100).map(|_| check.left()).sum::<Result<_, _>>()?;
    let hosts = cost(&mut check)?;
    table.set(&[ban("2001:db8::/48".parse()?, 0, None), ban("192.0.2.0/24".parse()?, 0, None)], NOW)?;
    let both = cost(&mut check)?;
    println!(
        "no ban: {none:?}; a prefix: {prefix:?}; 100,000 addresses: {hosts:?}, and two prefixes: {both:?}"
    );
    println!("of 100,000 clients the filter leaves {left} to the table");
    ensure!((1..5000).contains(&left), "{left}");
    Ok(())
}
