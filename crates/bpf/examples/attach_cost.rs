//! The cost of attach in the kernel: how long its programs run, by the kernel's own accounting
//! (BPF_STATS_RUN_TIME, which itself adds some tens of nanoseconds to each run). Needs root. `--before
//! PROGRAM` is another truepeer: both attach in turns, so that both meet the same machine. `--truepeer
//! PROGRAM` is the one to measure (target/debug/truepeer), `--write FILE` writes the tables there, `--only
//! PART` measures the loads with that in their name.
//!
//! `cargo run -p truepeer-bpf --example attach_cost -- --write docs/attach-cost.md`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use truepeer_testbed::datagrams::{self, Backend};
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Host, Topology, client};

const CLIENTS: [&str; 2] = ["203.0.113.7:5000", "[2001:db8::7]:5000"];
const DESTINATIONS: [&str; 2] = ["192.0.2.1:80", "[2001:db8::1]:80"];
/// Each load is run so often, the contestants in turns; of each, the middle one by its cost is told.
const ROUNDS: usize = 5;
const BULK: usize = 256 << 20;
const CONNECTIONS: usize = 2000;
const DATAGRAMS: usize = 30_000;

/// The command line.
#[derive(Default)]
struct Args {
    truepeer: Option<PathBuf>,
    before: Option<PathBuf>,
    write: Option<String>,
    only: String,
}

impl Args {
    fn read() -> Result<Args> {
        let mut args = Args::default();
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().with_context(|| format!("{word} needs a value"))?;
            match word.as_str() {
                "--truepeer" => args.truepeer = Some(value.into()),
                "--before" => args.before = Some(value.into()),
                "--write" => args.write = Some(value),
                "--only" => args.only = value,
                _ => bail!("{word}: not one of --truepeer, --before, --write, --only"),
            }
        }
        Ok(args)
    }

    /// The one before, if there is one, and the one to measure.
    fn contestants(&self) -> Result<Vec<ByAttach>> {
        // target/debug/examples/attach_cost
        let ours = env::current_exe()?.with_file_name("../truepeer");
        let truepeer = self.truepeer.clone().unwrap_or(ours);
        ensure!(truepeer.exists(), "there is no {}: cargo build", truepeer.display());
        Ok(self.before.iter().chain([&truepeer]).map(ByAttach::new).collect())
    }
}

fn main() -> ExitCode {
    truepeer_testbed::run_privately("attach_cost", |bed| {
        let args = Args::read()?;
        let tables = measure(bed, &args)?;
        match &args.write {
            Some(file) => write_down(file, &tables)?,
            None => print!("{tables}"),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Where the text that somebody has written begins.
const BY_HAND: &str = "\n# What the time goes to\n";

fn write_down(file: &str, tables: &str) -> Result<()> {
    let old = fs::read_to_string(file).unwrap_or_default();
    let kept = old.find(BY_HAND).map_or("", |place| &old[place..]);
    fs::write(file, format!("{tables}{kept}")).with_context(|| file.to_owned())
}

/// How often a program ran, and for how long in total.
#[derive(Debug, Clone, Copy, Default)]
struct Runs {
    count: u64,
    nanoseconds: u64,
}

type Account = BTreeMap<String, Runs>;

/// A load, and what its costs are told by: so many units of this.
struct Load<'a> {
    name: String,
    unit: &'static str,
    units: f64,
    run: Box<dyn Fn() -> Result<()> + Send + Sync + 'a>,
}

/// The tables of the loads that are asked for.
fn measure(bed: &Bed, args: &Args) -> Result<String> {
    let contestants = args.contestants()?;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    // Each connection leaves its port in TIME_WAIT.
    lb.run(|| fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535"))??;
    let _stats = enable_stats(Stats::RunTime).context("BPF_ENABLE_STATS: run as root")?;
    let start = |behaviour: Behaviour, addresses: &[&str]| {
        behaviour.start_program(bed, addresses, |program| program.in_netns(&host.netns))
    };
    let _digest = start(Behaviour::Digest, &["0.0.0.0:80", "[::]:81"])?;
    let _source = start(Behaviour::Source, &["0.0.0.0:82"])?;
    let _echo = host.run(|| Backend::echo(&["0.0.0.0:53", "0.0.0.0:5353"]))??;

    let loads: Vec<Load<'_>> =
        loads(host)?.into_iter().filter(|load| load.name.contains(&args.only)).collect();
    let mut rounds: Vec<Vec<Vec<Account>>> = vec![vec![Vec::new(); contestants.len()]; loads.len()];
    for round in 0..ROUNDS {
        eprintln!("round {} of {ROUNDS}", round + 1);
        for (which, contestant) in contestants.iter().enumerate() {
            let ours = attach(bed, host, contestant)?;
            for (load, rounds) in loads.iter().zip(&mut rounds) {
                rounds[which].push(lb.run(|| cost(&ours, load))??);
            }
            // Links that are pinned outlive the process; the next one would be an upgrade of this one.
            contestant.command(bed, &["detach", "--now"])?.in_netns(&host.netns).run(bed)?;
        }
    }
    let mut text = heading(contestants.len() > 1)?;
    for (load, rounds) in loads.iter().zip(rounds) {
        let accounts: Vec<Account> = rounds.into_iter().map(middle).collect();
        text += &table(load, &accounts)?;
    }
    Ok(text)
}

fn loads(host: &Host) -> Result<Vec<Load<'_>>> {
    let same = client::v2(CLIENTS[0], DESTINATIONS[0])?;
    let longer = client::v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, b"a few bytes more")])?;
    let with_byte = [same.as_slice(), b"!"].concat();
    let megabytes = BULK as f64 / 1e6;
    let connections = CONNECTIONS as f64;
    let mut loads: Vec<Load<'_>> = Vec::new();
    let mut add = |name: &str, unit, units, run: Box<dyn Fn() -> Result<()> + Send + Sync>| {
        loads.push(Load { name: name.to_owned(), unit, units, run });
    };
    let (one, two) = (same.clone(), longer.clone());
    add("TCP, bulk towards the backend, no packet altered", "MB", megabytes, {
        let one = one.clone();
        Box::new(move || upload(host, 80, &[&one, &one]))
    });
    add("TCP, bulk towards the backend, sequence numbers translated", "MB", megabytes, {
        let (one, two) = (one.clone(), two.clone());
        Box::new(move || upload(host, 80, &[&two, &one]))
    });
    add(
        "TCP, bulk towards the client, sequence numbers translated",
        "MB",
        megabytes,
        Box::new(move || download(host, 82, &[&two, &one])),
    );
    add(
        "TCP, short connections, header alone in its segment, one by one",
        "connection",
        connections,
        Box::new(move || (0..CONNECTIONS).try_for_each(|_| connect_once(host, 80, &same))),
    );
    add(
        "TCP, short connections, header and first byte together, one by one",
        "connection",
        connections,
        Box::new(move || (0..CONNECTIONS).try_for_each(|_| connect_once(host, 80, &with_byte))),
    );
    for (port, name) in [(53, "UDP"), (54, "UDP with a mapped port")] {
        for len in [64, 1200] {
            let name = format!("{name}, {len} bytes to the backend and back, one by one");
            add(&name, "exchange", DATAGRAMS as f64, Box::new(move || exchange(host, port, len)));
        }
    }
    Ok(loads)
}

/// Attaches, and tells its programs.
fn attach(bed: &Bed, host: &Host, contestant: &ByAttach) -> Result<Vec<ProgramInfo>> {
    let before: BTreeSet<u32> = programs()?.iter().map(ProgramInfo::id).collect();
    let ports = ["--port", "80", "--port", "81", "--port", "82", "--port", "53/udp", "--port", "54:5353/udp"];
    let rest = ["--allow", "any", "--dev", "lb"];
    contestant.command(bed, &[&ports[..], &rest].concat())?.in_netns(&host.netns).run(bed)?;
    Ok(programs()?.into_iter().filter(|program| !before.contains(&program.id())).collect())
}

fn programs() -> Result<Vec<ProgramInfo>> {
    // A program that is removed meanwhile is not one of truepeer's.
    Ok(loaded_programs().filter_map(Result::ok).collect())
}

/// The counts of each program, from its descriptor's entry in /proc.
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

/// The programs' runs during a load.
fn cost(ours: &[ProgramInfo], load: &Load<'_>) -> Result<Account> {
    let before = account(ours)?;
    (load.run)().with_context(|| load.name.clone())?;
    let mut after = account(ours)?;
    for (name, runs) in &mut after {
        let earlier = before.get(name).copied().unwrap_or_default();
        runs.count -= earlier.count;
        runs.nanoseconds -= earlier.nanoseconds;
    }
    Ok(after)
}

fn middle(mut rounds: Vec<Account>) -> Account {
    rounds.sort_by_key(|round| round.values().map(|runs| runs.nanoseconds).sum::<u64>());
    rounds.swap_remove(ROUNDS / 2)
}

fn heading(has_before: bool) -> Result<String> {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let before = if has_before {
        " *Before* is the truepeer that `--before`\nnamed; both were attached in turns."
    } else {
        ""
    };
    Ok(format!(
        "# attach: what it costs in the kernel\n\nHow long the programs of `truepeer attach` run, by the kernel's own account (run_time_ns, \
         which itself adds\nsome tens of nanoseconds to each run), over a veth pair with its usual offloads: a run sees up to 64 KiB of TCP at \
         once.\nThe middle one of {ROUNDS} rounds. Linux {}.{before} Written by\n\
         `cargo run -p truepeer-bpf --example attach_cost -- --write docs/attach-cost.md` (as root).\n",
        kernel.trim().split('-').next().unwrap_or_default()
    ))
}

/// One column of each figure for each contestant, the newest last.
fn table(load: &Load<'_>, accounts: &[Account]) -> Result<String> {
    let Load { name, unit, units, .. } = load;
    let when: &[&str] = if accounts.len() > 1 { &[", before", ", now"] } else { &[""] };
    let heads: Vec<String> = [format!("runs per {unit}"), "ns per run".to_owned(), format!("ns per {unit}")]
        .iter()
        .flat_map(|head| when.iter().map(move |when| format!("{head}{when}")))
        .collect();
    let mut text =
        format!("\n## {name}\n\n| program | {} |\n|---{}|\n", heads.join(" | "), "|---".repeat(heads.len()));
    let seldom = |runs: &Runs| (runs.count as f64) < units / 10.0;
    let programs: BTreeSet<&String> = accounts
        .iter()
        .flat_map(|account| account.iter().filter(|(_, runs)| !seldom(runs)).map(|(name, _)| name))
        .collect();
    for program in programs {
        let each = || accounts.iter().map(|account| account.get(program).copied().unwrap_or_default());
        write!(text, "| `{program}` |")?;
        each().try_for_each(|runs| write!(text, " {:.1} |", runs.count as f64 / units))?;
        each().try_for_each(|runs| write!(text, " {} |", runs.each()))?;
        each().try_for_each(|runs| write!(text, " {:.0} |", runs.nanoseconds as f64 / units))?;
        text += "\n";
    }
    let none = " |".repeat(2 * accounts.len());
    write!(text, "| all |{none}")?;
    for account in accounts {
        let total: u64 = account.values().filter(|runs| !seldom(runs)).map(|runs| runs.nanoseconds).sum();
        write!(text, " **{:.0}** |", total as f64 / units)?;
    }
    text += "\n";
    Ok(text)
}

impl Runs {
    /// Nanoseconds of one run.
    fn each(self) -> String {
        self.nanoseconds.checked_div(self.count).map_or_else(|| "–".to_owned(), |each| each.to_string())
    }
}

/// Short connections with these headers, the last of which is the bulk's: so its length is guessed from the
/// one before.
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
