//! An attacker who knows the addresses, but no numbers, sends to every port while thousands of handshakes
//! wait for their header.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::crowd::nth_client;
use truepeer_testbed::packets::{ACK, FIN, PSH, RST, SYN, Segment, Talker};
use truepeer_testbed::{Bed, Test, client};

use crate::stage::{Stage, listen};

const PLAIN: u16 = 81;
/// More than twice the number of ports: the kernel keeps every request.
const LARGE: i32 = 200_000;
/// Once half of a listener's backlog is filled, the kernel gives up requests after 3 s (reqsk_timer_handler).
const GIVEN_UP: Duration = Duration::from_secs(5);
const FIRST_PORT: u16 = 20_000;

pub(crate) fn tests() -> Vec<Test> {
    let test = |name: &str, size: Size| {
        Test::new(name, move |bed| sweep(bed, size))
            .of_group("sweeps")
            // A flood fills each processor's queue of incoming packets (net.core.netdev_max_backlog), which
            // all namespaces share: hand-made packets of other tests would be lost, and nobody
            // repeats them.
            .alone()
            .needs_program("tc")
            .needs_program("ethtool")
            .needs_open_files(size.handshakes as u64 + 100)
    };
    let whole = Size { handshakes: 10_000, swept: 65_535, backlog: LARGE, max_flows: Some("1048576") };
    vec![
        test(
            "blind_sweeps_end_no_slow_handshake",
            Size { handshakes: 300, swept: 3_000, backlog: LARGE, max_flows: None },
        ),
        test(
            "blind_sweeps_end_no_slow_handshake_of_a_small_backlog",
            Size { handshakes: 300, swept: 3_000, backlog: 512, max_flows: None },
        ),
        test("blind_sweeps_over_all_ports_end_none_of_10_000_slow_handshakes", whole)
            .long()
            .time_limit(Duration::from_secs(600)),
        test(
            "blind_sweeps_over_all_ports_end_none_of_a_backlog_of_32_768",
            Size { backlog: 32_768, ..whole },
        )
        .long()
        .time_limit(Duration::from_secs(600)),
        test(
            "blind_sweeps_over_all_ports_end_none_of_a_backlog_of_4_096",
            Size { handshakes: 4_000, backlog: 4_096, ..whole },
        )
        .long()
        .time_limit(Duration::from_secs(600)),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Size {
    handshakes: usize,
    /// The ports from which each kind of blind segment comes, including those of the handshakes.
    swept: usize,
    /// The listener's backlog. A plain port holds as many connections that nobody accepts.
    backlog: i32,
    /// The table of handshakes grows with it. By default it has room for 8192.
    max_flows: Option<&'static str>,
}

/// The handshakes lost at the attached port, minus those lost at a plain one: zero.
fn sweep(bed: &Bed, size: Size) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    stage.wire.host.run(|| -> std::io::Result<()> {
        std::fs::write("/proc/sys/net/core/somaxconn", size.backlog.to_string())?;
        std::fs::write("/proc/sys/net/ipv4/tcp_max_syn_backlog", size.backlog.to_string())
    })??;
    // The kernel gives up a request whose repeated SYN-ACK finds no room in the device's queue.
    stage.run("tc", &["qdisc", "replace", "dev", "wire", "root", "pfifo", "limit", "500000"])?;
    stage.wire.run_near(bed, "ethtool", &["-K", "host", "gro", "on"])?;
    let plain = stage.wire.host.run(|| listen_long(PLAIN, size.backlog))??;
    let attached = stage.wire.host.run(|| listen_long(82, size.backlog))??;
    let room = size.max_flows.map_or(Vec::new(), |count| vec!["--max-flows", count]);
    let attach = ["--port", "82", "--allow", "any", "--header-timeout", "300s"];
    stage.attach(&[&attach, room.as_slice()].concat())?;
    for v6 in [false, true] {
        let lost_plain = lost(&stage, &plain, size, v6, false).context("the plain port")?;
        let lost_attached = lost(&stage, &attached, size, v6, true).context("the attached port")?;
        println!(
            "IPv6: {v6}: lost at the plain port {}, at the attached one {}",
            lost_plain.len(),
            lost_attached.len()
        );
        let only: Vec<_> = lost_attached.iter().filter(|n| !lost_plain.contains(n)).collect();
        ensure!(
            only.is_empty(),
            "IPv6: {v6}: {} lost that a plain port keeps: {only:?}\n{}",
            only.len(),
            stage.status()?
        );
    }
    Ok(())
}

fn listen_long(port: u16, backlog: i32) -> Result<TcpListener> {
    let listener = listen(port)?;
    // Sets the queue's length: listen(2) may be called again.
    socket2::SockRef::from(&listener).listen(backlog)?;
    Ok(listener)
}

/// The handshakes that were not served in the end.
fn lost(
    stage: &Stage<'_>,
    listener: &TcpListener,
    size: Size,
    v6: bool,
    with_header: bool,
) -> Result<Vec<usize>> {
    let to = listener.local_addr()?.port();
    let mut talkers = Vec::new();
    for n in 0..size.handshakes {
        let mut talker = stage.talker(v6, FIRST_PORT + u16::try_from(n)?);
        talker.to.set_port(to);
        talker.ask().with_context(|| format!("handshake {n}"))?;
        talker.send(&talker.segment(ACK, b""))?;
        talkers.push(talker);
    }
    blind(stage, &talkers[0], size)?;
    if size.backlog < LARGE {
        std::thread::sleep(GIVEN_UP);
    }
    let mut served = BTreeSet::new();
    // Repeat for those that were not served: a busy host may lose a segment, and senders repeat theirs.
    for _ in 0..3 {
        for (n, talker) in talkers.iter().enumerate().filter(|(n, _)| !served.contains(n)).collect::<Vec<_>>()
        {
            let name = nth_client(n).to_string();
            let header = if with_header { client::v2(&name, "192.0.2.1:443")? } else { Vec::new() };
            talker.send(&talker.data(&[header, said(n)].concat()))?;
            if n.is_multiple_of(500) {
                stage.wire.forget()?;
            }
        }
        serve(stage, listener, size.handshakes, with_header, &mut served)?;
    }
    stage.wire.forget()?;
    Ok((0..size.handshakes).filter(|n| !served.contains(n)).collect())
}

fn said(n: usize) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

/// A SYN, RST, RST with ACK, FIN and data from each port, with random numbers.
fn blind(stage: &Stage<'_>, one: &Talker<'_>, size: Size) -> Result<()> {
    let mut chance = Chance::new(size.swept as u64);
    let mut number = || u32::try_from(chance.next() >> 32).unwrap_or_default();
    let first = usize::from(FIRST_PORT).saturating_sub(size.swept / 2).max(1);
    for (flags, payload) in [
        (SYN, b"".as_slice()),
        (RST, b""),
        (RST | ACK, b""),
        (FIN | ACK, b""),
        (PSH | ACK, b"blind"),
        (SYN | ACK, b"x"),
    ] {
        for n in 0..size.swept {
            let port = u16::try_from((first + n - 1) % 65_535 + 1)?;
            let mut segment =
                Segment { seq: number(), ack: number(), flags, ..Segment::new(one.from, one.to) };
            segment.from.set_port(port);
            segment.payload = payload.to_vec();
            one.send(&segment)?;
            if n.is_multiple_of(2000) {
                stage.wire.forget()?;
            }
        }
    }
    Ok(())
}

/// By what the connections deliver; the client's name is checked as well.
fn serve(
    stage: &Stage<'_>,
    listener: &TcpListener,
    count: usize,
    with_header: bool,
    served: &mut BTreeSet<usize>,
) -> Result<()> {
    use std::io::Read;
    while served.len() < count {
        let Some(mut accepted) = stage.accept_from(listener, Duration::from_secs(2))? else { break };
        let mut bytes = [0; 8];
        accepted.stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        if accepted.stream.read_exact(&mut bytes).is_err() {
            continue; // established, but lost
        }
        let n: usize = std::str::from_utf8(&bytes)?.parse().context("what a handshake brings")?;
        ensure!(
            !with_header || accepted.client == nth_client(n),
            "{} was shown as {}",
            nth_client(n),
            accepted.client
        );
        served.insert(n);
    }
    Ok(())
}
