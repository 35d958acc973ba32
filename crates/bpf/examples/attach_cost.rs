//! What attach costs in the kernel: how long its programs run, by the kernel's own account (BPF_STATS_RUN_TIME, which itself
//! adds some tens of nanoseconds to each run). Needs root; `--write FILE` writes the tables there,
//! `--only PART` measures the loads with that in their name.
//!
//! `cargo run -p truepeer-bpf --example attach_cost -- --write docs/attach-cost.md`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use rustix::mount::{MountFlags, mount};
use truepeer_bpf::{Device, Gate, Place, Rules, UdpDialect, attach, cgroup_root};
use truepeer_policy::{Claims, HeaderRule, PrefixSet};
use truepeer_testbed::datagrams::{self, Backend};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Host, Topology, client};

const CLIENTS: [&str; 2] = ["203.0.113.7:5000", "[2001:db8::7]:5000"];
const DESTINATIONS: [&str; 2] = ["192.0.2.1:80", "[2001:db8::1]:80"];
/// Each load is run so often; the middle one by its cost is told.
const ROUNDS: usize = 3;
const BULK: usize = 256 << 20;
const CONNECTIONS: usize = 3000;
const DATAGRAMS: usize = 30_000;

fn main() -> ExitCode {
    truepeer_testbed::run_privately("attach_cost", |bed| {
        let mut arguments = env::args().skip(1);
        match (arguments.next().as_deref(), arguments.next()) {
            (Some("--write"), Some(file)) => write_down(&file, &measure(bed, "")?)?,
            (Some("--only"), Some(part)) => print!("{}", measure(bed, &part)?),
            _ => print!("{}", measure(bed, "")?),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Where what is written by hand begins.
const BY_HAND: &str = "\n# What the time goes to\n";

fn write_down(file: &str, tables: &str) -> Result<()> {
    let old = fs::read_to_string(file).unwrap_or_default();
    let kept = old.find(BY_HAND).map_or("", |place| &old[place..]);
    fs::write(file, format!("{tables}{kept}")).with_context(|| file.to_owned())
}

/// How often a program ran, and how long in all.
#[derive(Debug, Clone, Copy, Default)]
struct Runs {
    count: u64,
    nanoseconds: u64,
}

type Account = BTreeMap<String, Runs>;

/// The loads whose name has this in it.
fn measure(bed: &Bed, part: &str) -> Result<String> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let pins = mount_bpf(bed)?;
    let before: BTreeSet<u32> = programs()?.iter().map(ProgramInfo::id).collect();
    host.run(|| attach_here(pins))??;
    let ours: Vec<ProgramInfo> =
        programs()?.into_iter().filter(|program| !before.contains(&program.id())).collect();
    let _stats = enable_stats(Stats::RunTime).context("BPF_ENABLE_STATS")?;

    let start = |behaviour: Behaviour, addresses: &[&str]| {
        behaviour.start_program(bed, addresses, |program| program.in_netns(&host.netns))
    };
    let _digest = start(Behaviour::Digest, &["0.0.0.0:80", "[::]:81"])?;
    let _source = start(Behaviour::Source, &["0.0.0.0:82"])?;
    let _echo = host.run(|| Backend::echo(&["0.0.0.0:53", "0.0.0.0:5353"]))??;

    let mut text = heading()?;
    let mut add = |name: &str, per: &str, units: f64, load: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        if !name.contains(part) {
            return Ok(());
        }
        eprintln!("{name}");
        text += &table(name, per, units, &middle(&ours, load)?)?;
        Ok(())
    };
    let same = client::v2(CLIENTS[0], DESTINATIONS[0])?;
    let longer = client::v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, b"a few bytes more")])?;
    let megabytes = BULK as f64 / 1e6;
    lb.run(|| -> Result<()> {
        add("TCP, bulk towards the backend, no packet altered", "MB", megabytes, &mut || {
            upload(host, 80, &[&same, &same])
        })?;
        add("TCP, bulk towards the backend, sequence numbers translated", "MB", megabytes, &mut || {
            upload(host, 80, &[&longer, &same])
        })?;
        add("TCP, bulk towards the client, sequence numbers translated", "MB", megabytes, &mut || {
            download(host, 82, &[&longer, &same])
        })?;
        add("TCP, short connections, one by one", "connection", CONNECTIONS as f64, &mut || {
            (0..CONNECTIONS).try_for_each(|_| connect_once(host, 80, &same))
        })?;
        for (port, name) in [(53, "UDP"), (54, "UDP with a mapped port")] {
            for len in [64, 1200] {
                let name = format!("{name}, {len} bytes to the backend and back, one by one");
                add(&name, "exchange", DATAGRAMS as f64, &mut || exchange(host, port, len))?;
            }
        }
        Ok(())
    })??;
    Ok(text)
}

fn mount_bpf(bed: &Bed) -> Result<PathBuf> {
    let dir = bed.dir().join("bpf");
    fs::create_dir_all(&dir)?;
    mount("bpf", &dir, "bpf", MountFlags::empty(), None)
        .context("mounting a BPF file system: run as root")?;
    Ok(dir.join("truepeer"))
}

fn attach_here(pins: PathBuf) -> Result<()> {
    let gate = |backend_port| Gate { backend_port, dialect: UdpDialect::Every };
    let rules = Rules {
        tcp_ports: [80, 81, 82].into(),
        udp_ports: [(53, gate(53)), (54, gate(5353))].into(),
        senders: "any".parse::<PrefixSet>()?,
        header: HeaderRule::Require,
        claims: Claims::default(),
        own_addresses: BTreeSet::new(),
        header_timeout: Duration::from_secs(5),
        header_max: 16 << 10,
        udp_silence: Duration::from_secs(60),
        max_flows: truepeer_bpf::MAX_FLOWS,
        max_udp_flows: truepeer_bpf::MAX_UDP_FLOWS,
    };
    let device = Device { name: "lb".to_owned(), has_ethernet: true, has_strict_rp_filter: false };
    attach(&Place::here(&pins)?, &rules, &[device], &cgroup_root()?)?;
    Ok(())
}

fn programs() -> Result<Vec<ProgramInfo>> {
    // One that goes away meanwhile is none of ours.
    Ok(loaded_programs().filter_map(Result::ok).collect())
}

/// The account of each program, from its descriptor's page in /proc.
fn account(ours: &[ProgramInfo]) -> Result<Account> {
    let mut account = Account::new();
    for program in ours {
        let descriptor = program.fd()?;
        let page = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd()))?;
        let value = |name: &str| -> Result<u64> {
            let line =
                page.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
            Ok(line.trim_start_matches(':').trim().parse()?)
        };
        let runs = account.entry(program.name_as_str().unwrap_or("?").to_owned()).or_default();
        runs.count += value("run_cnt")?;
        runs.nanoseconds += value("run_time_ns")?;
    }
    Ok(account)
}

fn middle(ours: &[ProgramInfo], load: &mut dyn FnMut() -> Result<()>) -> Result<Account> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let before = account(ours)?;
        load()?;
        let mut after = account(ours)?;
        for (name, runs) in &mut after {
            let earlier = before.get(name).copied().unwrap_or_default();
            runs.count -= earlier.count;
            runs.nanoseconds -= earlier.nanoseconds;
        }
        rounds.push(after);
    }
    rounds.sort_by_key(|round| round.values().map(|runs| runs.nanoseconds).sum::<u64>());
    Ok(rounds.swap_remove(ROUNDS / 2))
}

fn heading() -> Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(format!(
        "# attach: what it costs in the kernel\n\nHow long the programs of `truepeer attach` run, by the kernel's own account (run_time_ns, \
         which itself adds\nsome tens of nanoseconds to each run), over a veth pair with its usual offloads: a run sees up to 64 KiB of TCP at \
         once.\nThe middle one of {ROUNDS} rounds. Linux {}. Written by\n\
         `cargo run -p truepeer-bpf --example attach_cost -- --write docs/attach-cost.md` (as root).\n",
        kernel.trim().split('-').next().unwrap_or_default()
    ))
}

fn table(name: &str, per: &str, units: f64, account: &Account) -> Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "\n## {name}\n\n| program | runs per {per} | ns per run | ns per {per} |\n|---|---|---|---|"
    )?;
    let mut total = 0.0;
    for (name, runs) in account.iter().filter(|(_, runs)| runs.count as f64 >= units / 10.0) {
        let (count, nanoseconds) = (runs.count as f64, runs.nanoseconds as f64);
        total += nanoseconds / units;
        writeln!(
            text,
            "| `{name}` | {:.1} | {:.0} | {:.0} |",
            count / units,
            nanoseconds / count,
            nanoseconds / units
        )?;
    }
    writeln!(text, "| all | | | **{total:.0}** |")?;
    Ok(text)
}

/// Short connections with these headers, the last of which is the bulk's: so its length is guessed from the one before.
fn prepare(host: &Host, port: u16, headers: &[&[u8]]) -> Result<std::net::TcpStream> {
    let (last, before) = headers.split_last().context("a header")?;
    for header in before {
        connect_once(host, 80, header)?;
    }
    let mut stream = client::connect(host.at(false, port))?;
    stream.write_all(last)?;
    Ok(stream)
}

fn upload(host: &Host, port: u16, headers: &[&[u8]]) -> Result<()> {
    let answer = client::ask(&mut prepare(host, port, headers)?, &Pattern::bytes(BULK))?;
    ensure!(answer.trim() == Digest::of_pattern(BULK as u64), "{answer}");
    Ok(())
}

fn download(host: &Host, port: u16, headers: &[&[u8]]) -> Result<()> {
    let answer = client::ask(&mut prepare(host, port, headers)?, format!("{BULK}\n").as_bytes())?;
    ensure!(!answer.is_empty());
    Ok(())
}

fn connect_once(host: &Host, port: u16, header: &[u8]) -> Result<()> {
    let mut stream = client::connect(host.at(false, port))?;
    ensure!(!client::ask(&mut stream, header)?.is_empty());
    Ok(())
}

fn exchange(host: &Host, port: u16, len: usize) -> Result<()> {
    let sender = datagrams::socket("0.0.0.0:0")?;
    sender.connect(host.at(false, port))?;
    let header = datagrams::v2(CLIENTS[0], DESTINATIONS[0])?;
    let payload = Pattern::bytes(len);
    for _ in 0..DATAGRAMS {
        ensure!(datagrams::ask(&sender, &[&header, &payload])?.len() == len);
    }
    Ok(())
}
