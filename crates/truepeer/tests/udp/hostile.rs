//! Whatever a datagram contains, the process continues in bounded memory and answers the next valid one.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_sys::udp::{Run, send_runs};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::{Bed, Running, Test, client};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, counted, receive, send, sender_towards, socket, spp,
    start_proxy, v2,
};

/// Sends datagrams to the process. This many are sent before checking that it still answers.
const DATAGRAMS: usize = 1_000_000;
/// At most what a listener's queue holds on a busy machine: datagrams lost there test nothing.
const ROUND: usize = 256;
/// More than buffers and flows need, and far less than a leak of a few bytes each would take.
const MOST_GROWTH_KIB: u64 = 24 * 1024;

pub(crate) fn tests() -> Vec<Test> {
    ["every", "first", "standalone", "spp"]
        .map(|dialect| {
            let name = format!("a_flood_of_forged_datagrams_is_survived_in_{dialect}");
            Test::new(name, move |bed| flood(bed, dialect)).time_limit(Duration::from_secs(240)).alone()
        })
        .into()
}

fn flood(bed: &Bed, dialect: &str) -> Result<()> {
    let count = DATAGRAMS / 4;
    let _backend = Backend::start(&BACKENDS, |seen| {
        if seen.payload.starts_with(b"good") { vec![seen.payload.clone()] } else { Vec::new() }
    })?;
    let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect} --max-flows 200"))?;
    let mut forger = Forger::new(dialect)?;
    forger.sends_and_truepeer_answers(ROUND)?;
    let memory = resident_kib(&truepeer)?;
    for _ in 1..count / ROUND {
        forger.sends_and_truepeer_answers(ROUND)?;
    }
    let grown = resident_kib(&truepeer)?.saturating_sub(memory);
    ensure!(grown < MOST_GROWTH_KIB, "memory has grown by {grown} KiB");
    let refused = counted(&truepeer, "datagrams_refused")?;
    let up = counted(&truepeer, "datagrams_up")? + counted(&truepeer, "datagrams_dropped")?;
    eprintln!("{dialect}: {count} sent, {refused} refused, {up} delivered, {grown} KiB more");
    ensure!(
        refused > 0 && refused + up > count as u64 / 2,
        "few of {count} were looked at: {refused} + {up}"
    );
    let lines = truepeer.log().lines().count();
    ensure!(lines < 1000, "{lines} lines of complaints");
    Ok(())
}

fn resident_kib(truepeer: &Running) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", truepeer.pid()))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    line.split_whitespace().nth(1).context("no number")?.parse().context(line.to_owned())
}

struct Forger {
    chance: Chance,
    seeds: Vec<Vec<u8>>,
    dialect: String,
    good: usize,
}

impl Forger {
    fn new(dialect: &str) -> Result<Forger> {
        let mut seeds = vec![
            v2(CLIENTS[0], DESTINATIONS[0])?,
            v2(CLIENTS[1], DESTINATIONS[1])?,
            spp(CLIENTS[0], DESTINATIONS[0])?,
            client::v2_local(),
            client::v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(3, &[1, 2, 3, 4]), (5, b"id"), (4, b"")])?,
        ];
        seeds[4][13] += 1;
        Ok(Forger { chance: Chance::new(7), seeds, dialect: dialect.to_owned(), good: 0 })
    }

    fn datagram(&mut self) -> Vec<u8> {
        match self.chance.below(8) {
            0 => Vec::new(),
            1 => {
                // truncated, or a valid one with a payload
                let mut bytes = self.seeds[self.chance.below(self.seeds.len())].clone();
                let length = self.chance.below(bytes.len() + 20);
                bytes.resize(length, b'x');
                bytes
            }
            2 => {
                // from any client
                let ip = u32::from_le_bytes(self.chance.bytes(4).try_into().unwrap_or_default());
                let port = self.chance.below(65_536);
                v2(format!("{}:{port}", std::net::Ipv4Addr::from(ip)), DESTINATIONS[0]).unwrap_or_default()
            }
            _ => self.chance.hostile_bytes(&self.seeds),
        }
    }

    /// In batches as fast as the kernel takes them, each from a separate port.
    fn sends_and_truepeer_answers(&mut self, count: usize) -> Result<()> {
        for batch in 0..count / 32 {
            let sender = sender_towards(LISTENERS[batch % 2])?;
            let datagrams: Vec<Vec<u8>> = (0..32).map(|_| self.datagram()).collect();
            let parts: Vec<[IoSlice<'_>; 1]> = datagrams.iter().map(|bytes| [IoSlice::new(bytes)]).collect();
            let runs: Vec<Run<'_>> = parts.iter().map(|parts| Run { parts, segment_bytes: None }).collect();
            let mut sent = 0;
            while sent < runs.len() {
                sent += send_runs(sender.as_fd(), None, None, &runs[sent..])?;
            }
        }
        self.ask()
    }

    /// A valid datagram, which also waits until the earlier ones have been processed. It is repeated, as
    /// clients do: the kernel drops it while forged ones fill the queue, and while they fill the table,
    /// its flow may be forgotten before its answer arrives.
    fn ask(&mut self) -> Result<()> {
        self.good += 1;
        let payload = format!("good {}", self.good);
        // From a port that no forged datagram used: where datagrams are bare, it would belong to that flow.
        let port = u16::try_from(1024 + self.good)?;
        let sender = socket(format!("127.0.0.1:{port}"))?;
        sender.connect(LISTENERS[0])?;
        let client = SocketAddr::from(([203, 0, 113, 5], port));
        let header = match self.dialect.as_str() {
            "spp" => spp(client, DESTINATIONS[0])?,
            _ => v2(client, DESTINATIONS[0])?,
        };
        sender.set_read_timeout(Some(Duration::from_millis(500)))?;
        let answer = (0..20).find_map(|_| {
            send(&sender, &[&header, payload.as_bytes()]).ok()?;
            receive(&sender).ok()
        });
        let answer = answer.with_context(|| format!("{payload:?} was not answered in 20 tries"))?;
        ensure!(answer.ends_with(payload.as_bytes()), "{answer:?}");
        Ok(())
    }
}
