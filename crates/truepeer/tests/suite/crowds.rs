//! Very many at once, while other sessions come and go: senders that stop within their header, connections
//! that come in one moment, sessions that are stuck while memory is limited.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, ensure};
use truepeer_testbed::account::{self, read_account};
use truepeer_testbed::crowd::{begin_to_connect, gather_saying, nth_client};
use truepeer_testbed::sockets::{self, SocketEntry};
use truepeer_testbed::{Bed, Behaviour, Running, Test, skip};

use crate::faults::{Load, Outcome, start_backend};
use crate::kernel::{ControlGroup, stuck_session};
use crate::peers;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, bare_proxy, header_of};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work).time_limit(Duration::from_secs(300)).needs_open_files(20_000).alone()
    };
    vec![
        test("fifty_thousand_senders_that_stop_within_their_header_hold_nobody_up", half_headers).long(),
        test("ten_thousand_connections_in_one_moment_are_all_served", in_one_moment),
        test("thousands_of_stuck_sessions_keep_a_limit_of_all_memory", memory_is_limited),
    ]
}

/// Two descriptors are kept for each session, so that a process that may open 20,000 takes some 9,700. So
/// these are six processes.
const PROCESSES: u16 = 6;
const HALF_EACH: usize = 8_400;
/// Of each process, meanwhile.
const GOOD: usize = 20;

fn half_headers(bed: &Bed) -> anyhow::Result<()> {
    if peers::peer().is_some() {
        return skip("several processes of truepeer");
    }
    let _backend = start_backend(bed)?;
    let listeners: Vec<String> =
        (0..PROCESSES).map(|number| format!("127.0.0.1:{}", 8443 + number)).collect();
    let start = |listener: &String| {
        let truepeer = bare_proxy().listen(listener).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
        truepeer.args(&["--header-timeout", "250s"]).start(bed)
    };
    let truepeers: Vec<Running> = listeners.iter().map(start).collect::<anyhow::Result<_>>()?;
    let load = Load::during(bed, |load| {
        let gather = |listener| gather_saying(bed, HALF_EACH, listener, "PROXY TCP4 203.0.113.7 ");
        let _crowds: Vec<_> = listeners.iter().map(gather).collect::<anyhow::Result<_>>()?;
        for truepeer in &truepeers {
            let has_all = || truepeer.descriptors().is_ok_and(|held| held > HALF_EACH);
            bed.wait_for("their connections", has_all)?;
        }
        for (number, listener) in listeners.iter().enumerate() {
            for good in 0..GOOD {
                let outcome = load.session_at(listener, nth_client(2_000_000 + number * GOOD + good), 4096);
                ensure!(outcome == Outcome::Right, "session {good} at {listener}: {outcome:?}");
            }
        }
        load.wait_for_more()?;
        let held: Vec<_> = truepeers.iter().map(Running::descriptors).collect::<anyhow::Result<_>>()?;
        ensure!(held.iter().all(|held| *held > HALF_EACH), "some have ended: {held:?}");
        let resident = truepeers.iter().map(Running::resident_bytes).sum::<anyhow::Result<usize>>()?;
        eprintln!(
            "{PROCESSES} processes with {HALF_EACH} half headers each: {} KiB resident",
            resident >> 10
        );
        Ok(())
    })?;
    ensure!(truepeers.iter().all(Running::is_alive));
    load.none_failed()
}

const AT_ONCE: usize = 10_000;
const BYTES_EACH: usize = 1000;

/// More than a process that may open 20,000 descriptors takes at a time: the last ones wait until others have
/// ended.
fn in_one_moment(bed: &Bed) -> anyhow::Result<()> {
    let backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &["--header-timeout", "60s"])?;
    let listener = DOOR_V4.parse()?;
    let client = |number| nth_client(3_000_000 + number);
    let load = Load::during(bed, |load| {
        let begun = (0..AT_ONCE).map(|number| Ok(begin_to_connect(number, listener)?));
        let mut streams = Vec::with_capacity(AT_ONCE);
        for socket in begun.collect::<anyhow::Result<Vec<_>>>()? {
            socket.set_nonblocking(false)?;
            socket.set_read_timeout(Some(Duration::from_secs(60)))?;
            socket.set_write_timeout(Some(Duration::from_secs(60)))?;
            streams.push(TcpStream::from(socket));
        }
        let mut expected = Vec::with_capacity(AT_ONCE);
        // The first write waits for the handshake.
        for (number, stream) in streams.iter_mut().enumerate() {
            let (data, account) = load.note(client(number), BYTES_EACH);
            let written = stream.write_all(&header_of(client(number))?);
            written.and_then(|()| stream.write_all(&data)).context("write")?;
            expected.push(account);
        }
        // Of a session that ended early: what both logs say of it.
        let said = |number| {
            let (log, client) = (truepeer.log() + &backend.log(), client(number).to_string());
            let lines: Vec<_> = log.lines().filter(|line| line.contains(&client)).collect();
            format!("session {number}: {lines:?}")
        };
        let mut by_kernel = 0;
        for (number, (mut stream, expected)) in streams.into_iter().zip(expected).enumerate() {
            let (answer, end) = read_account(&mut stream);
            if let Err(error) = end {
                let said = said(number);
                let is_told = said.contains("reset_by_backend");
                ensure!(is_told && backend_knows_no_reset(client(number))?, "{said}: {error}");
                by_kernel += 1;
                continue;
            }
            ensure!(answer == expected, "session {number}: {answer:?} instead of {expected}");
        }
        eprintln!("{AT_ONCE} at once: {by_kernel} were reset by the kernel alone");
        ensure!(by_kernel <= MOST_BY_KERNEL, "{by_kernel} were reset by the kernel alone");
        load.wait_for_more()
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}

/// Whether the backend's socket is still connected with this client, although truepeer has been told of a
/// reset. Then the reset was not the backend's. The kernel can make one: it looks for a segment's socket
/// without a lock, and may find neither the request nor the new socket while one takes the other's place
/// (`inet_ehash_insert()`, on two processors).
fn backend_knows_no_reset(client: SocketAddr) -> anyhow::Result<bool> {
    let backend: SocketAddr = BACKEND_V4.parse()?;
    let ends = |socket: &SocketEntry| (socket.local, socket.remote, socket.state);
    Ok(sockets::all().iter().any(|socket| ends(socket) == (backend, client, ESTABLISHED)))
}

/// As in the kernel's `enum tcp_state`.
const ESTABLISHED: u8 = 1;
const MOST_BY_KERNEL: usize = 3;

/// All memory of the process, and what the kernel holds for it, but TCP's buffers. All sessions together may
/// hold 256 MiB of copied data and 64 MiB of headers (`session::budget`).
const MOST_MEMORY: usize = 512 << 20;
const STUCK: usize = 4_000;
/// Bytes of each receive buffer ([`sockets::keep_buffers_below`]).
const MOST_BUFFER: u32 = 64 << 10;

/// Without a bound for each session, the kernel would kill the process.
fn memory_is_limited(bed: &Bed) -> anyhow::Result<()> {
    // The machine has a limit for the buffers of all TCP connections (tcp_mem). Beyond it every connection
    // stands for seconds, those of other tests too.
    sockets::keep_buffers_below(MOST_BUFFER)?;
    let _backend = account::behaviour().start(bed, &[BACKEND_V4])?;
    let _holds = Behaviour::Hold.start(bed, &[BACKEND_V6])?;
    let truepeer = peers::start(bed, &[])?;
    let group = ControlGroup::with("memory.limit_in_bytes", MOST_MEMORY)?;
    group.take(&truepeer)?;
    let mut stuck = Vec::new();
    let load = Load::during(bed, |load| {
        for number in 0..STUCK {
            stuck.push(stuck_session(load, number).with_context(|| format!("stuck session {number}"))?);
        }
        load.wait_for_more()
    });
    eprintln!(
        "{STUCK} stuck sessions: {} KiB resident, {} of {} KiB of the control group at most",
        truepeer.resident_bytes().unwrap_or_default() >> 10,
        group.read("memory.max_usage_in_bytes")? >> 10,
        MOST_MEMORY >> 10
    );
    let load = load?;
    ensure!(truepeer.is_alive(), "{}", truepeer.log());
    drop(stuck);
    load.none_failed()
}
