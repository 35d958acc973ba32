//! What truepeer and the kernel hold, looked at again and again.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use truepeer_testbed::{Host, find_program, with_child_signal};

use crate::descriptors::Descriptors;
use crate::load::lock;
use crate::stage::UDP;

/// truepeer's tables and programs for sessions that leave user space.
const PINS: &str = "/sys/fs/bpf/truepeer-splice";
/// A look at the kernel's objects starts programs, so not every look at the process has one.
const OBJECTS_EACH: Duration = Duration::from_secs(1);

/// One look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Since the first look.
    pub(crate) at: Duration,
    /// The step of the load that goes on: 0 without load, 1 before its first step, 2 in that one.
    pub(crate) step: usize,
    pub(crate) pid: i32,
    pub(crate) resident_kib: u64,
    pub(crate) descriptors: u64,
    pub(crate) pipes: u64,
    /// Sessions and clients' connections.
    pub(crate) open: u64,
    /// UDP flows. Each holds one descriptor.
    pub(crate) flows: u64,
    /// TCP sockets of truepeer's host, those in TIME-WAIT not counted.
    pub(crate) sockets: u64,
    /// Other objects of the kernel. They may be a second old.
    pub(crate) kernel: Counts,
    /// Sessions that have left user space, of this process so far.
    pub(crate) spliced: u64,
    /// What the clients have done since the load began.
    pub(crate) done: u64,
}

/// How many objects the kernel holds for truepeer's host.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) rules: u64,
    pub(crate) routes: u64,
    /// Maps and links.
    pub(crate) pins: u64,
    /// Sessions in the tables of the BPF programs, and connections that lead to them.
    pub(crate) spliced: u64,
    pub(crate) keys: u64,
    /// The memory that the TCP sockets take: those of truepeer and of its backends.
    pub(crate) tcp_kib: u64,
}

/// The same objects by name, but for those that each session takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) rules: Vec<String>,
    pub(crate) routes: Vec<String>,
    pub(crate) pins: Vec<PathBuf>,
}

/// Looks at one host.
pub(crate) struct Observer {
    host: Host,
    admin: PathBuf,
    begun: Instant,
    /// The last look at the kernel's objects.
    last: Mutex<Option<(Instant, Counts)>>,
}

impl Observer {
    pub(crate) fn new(host: &Host, admin: PathBuf) -> Self {
        Self { host: host.clone(), admin, begun: Instant::now(), last: Mutex::default() }
    }

    pub(crate) fn look(&self, pid: i32, step: usize, done: u64) -> anyhow::Result<Sample> {
        let sockets = self.host.run(tcp_sockets)??;
        let (descriptors, pipes) = count_descriptors(pid)?;
        let metrics = self.metrics()?;
        let sum = |name: &str, of: &str| -> u64 {
            let lines = metrics.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
            let values = lines.filter(|line| line.contains(of));
            values.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        let flows = sum("truepeer_open", &format!(":{UDP}\""));
        let open = sum("truepeer_open", "") - flows;
        let spliced = sum("truepeer_sessions_spliced_total", "");
        Ok(Sample {
            at: self.begun.elapsed(),
            step,
            pid,
            resident_kib: resident_kib(pid)?,
            descriptors,
            pipes,
            open,
            flows,
            spliced,
            sockets,
            kernel: self.counts()?,
            done,
        })
    }

    fn counts(&self) -> anyhow::Result<Counts> {
        let last = *lock(&self.last);
        if let Some((_, counts)) = last.filter(|(at, _)| at.elapsed() < OBJECTS_EACH) {
            return Ok(counts);
        }
        let objects = self.objects()?;
        let in_use = self.host.run(|| truepeer_bpf::Splices::in_use(Path::new(PINS)))??;
        let in_use = in_use.context("no tables for sessions that leave")?;
        let counts = Counts {
            rules: objects.rules.len() as u64,
            routes: objects.routes.len() as u64,
            pins: objects.pins.len() as u64,
            spliced: in_use.places as u64,
            keys: in_use.keys as u64,
            tcp_kib: memory_of(&self.run("ss", &["-tanmH"])?) >> 10,
        };
        *lock(&self.last) = Some((Instant::now(), counts));
        Ok(counts)
    }

    pub(crate) fn objects(&self) -> anyhow::Result<Objects> {
        let lines = |words: &[&str]| -> anyhow::Result<Vec<String>> {
            Ok(self.run("ip", words)?.lines().map(|line| line.trim().to_owned()).collect())
        };
        let both = |words: &[&str]| -> anyhow::Result<Vec<String>> {
            let mut all = [lines(&[&["-4"], words].concat())?, lines(&[&["-6"], words].concat())?].concat();
            all.sort();
            Ok(all)
        };
        let mut pins = Vec::new();
        files_below(Path::new(PINS), &mut pins)?;
        pins.sort();
        Ok(Objects { rules: both(&["rule"])?, routes: both(&["route", "show", "table", "all"])?, pins })
    }

    fn run(&self, name: &str, words: &[&str]) -> anyhow::Result<String> {
        let program = find_program(name).with_context(|| format!("{name} is missing"))?;
        let output = self.host.run(|| with_child_signal(|| Command::new(program).args(words).output()))??;
        ensure!(output.status.success(), "{name} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What the descriptors are. Slower: the kernel searches its tables of sockets.
    pub(crate) fn descriptors(&self, pid: i32) -> anyhow::Result<Descriptors> {
        Descriptors::of(pid, &self.host)
    }

    fn metrics(&self) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(&self.admin).context("the admin socket")?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: truepeer\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        ensure!(text.contains("\ntruepeer_open"), "no truepeer_open: {text}");
        Ok(text)
    }
}

fn resident_kib(pid: i32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    field(&status, "VmRSS:").context("VmRSS")
}

/// Of all, and of pipes.
fn count_descriptors(pid: i32) -> anyhow::Result<(u64, u64)> {
    let (mut all, mut pipes) = (0, 0);
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // It may have been closed meanwhile.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        all += 1;
        pipes += u64::from(target.to_string_lossy().starts_with("pipe:"));
    }
    Ok((all, pipes))
}

/// TCP sockets in use: `TCP: inuse 9 orphan 0 tw 3 alloc 12 mem 2`. The last number is that of the whole
/// machine.
fn tcp_sockets() -> anyhow::Result<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/sockstat")?;
    let line = table.lines().find(|line| line.starts_with("TCP:")).context("TCP")?;
    field(line, "inuse").with_context(|| format!("inuse of {line}"))
}

/// What is received and not read, queued for sending, and kept for both:
/// `skmem:(r0,rb131072,t0,tb16384,f0,w0,o0,bl0,d0)`.
fn memory_of(sockets: &str) -> u64 {
    let lists = sockets.split("skmem:(").skip(1).filter_map(|rest| rest.split(')').next());
    let value = |item: &str| item.strip_prefix(['r', 'f', 'w'])?.parse::<u64>().ok();
    lists.flat_map(|list| list.split(',')).filter_map(value).sum()
}

fn files_below(directory: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files_below(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The number behind `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
}
