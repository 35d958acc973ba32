//! What truepeer and the kernel hold, looked at again and again.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use truepeer_testbed::Host;

use crate::descriptors::Descriptors;
use crate::stage::UDP;

/// One look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Sample {
    /// Since the load began.
    pub(crate) at: Duration,
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
    /// Memory of the kernel for TCP, of the whole machine.
    pub(crate) tcp_kib: u64,
    /// Sessions that have left user space, of this process so far.
    pub(crate) spliced: u64,
    /// What the clients have done since the load began.
    pub(crate) done: u64,
}

/// Looks at one host.
pub(crate) struct Observer {
    host: Host,
    admin: PathBuf,
    begun: Instant,
}

impl Observer {
    pub(crate) fn new(host: &Host, admin: PathBuf) -> Self {
        Self { host: host.clone(), admin, begun: Instant::now() }
    }

    pub(crate) fn look(&self, pid: i32, done: u64) -> anyhow::Result<Sample> {
        let (sockets, tcp_kib) = self.host.run(kernels_tcp)??;
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
            pid,
            resident_kib: resident_kib(pid)?,
            descriptors,
            pipes,
            open,
            flows,
            spliced,
            sockets,
            tcp_kib,
            done,
        })
    }

    /// What the descriptors are. Slower: the kernel searches its tables of sockets.
    pub(crate) fn descriptors(&self, pid: i32) -> anyhow::Result<Descriptors> {
        Descriptors::of(pid, &self.host)
    }

    fn metrics(&self) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(&self.admin).context("the admin socket")?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
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

/// Sockets in use, and the kernel's memory for TCP: `TCP: inuse 9 orphan 0 tw 3 alloc 12 mem 2`, in pages.
fn kernels_tcp() -> anyhow::Result<(u64, u64)> {
    let table = fs::read_to_string("/proc/thread-self/net/sockstat")?;
    let line = table.lines().find(|line| line.starts_with("TCP:")).context("TCP")?;
    let value = |name: &str| field(line, name).with_context(|| format!("{name} of {line}"));
    Ok((value("inuse")?, value("mem")? * 4))
}

/// The number behind `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
}
