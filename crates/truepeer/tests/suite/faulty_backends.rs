//! Backends that refuse, stand still or never read, while sessions come and go.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::account;
use truepeer_testbed::client::read_end;
use truepeer_testbed::crowd::{in_parallel, nth_client};
use truepeer_testbed::{Bed, Behaviour, Test, sockets};

use crate::faults::{Load, Outcome, start_backend};
use crate::kernel::stuck_session;
use crate::peers;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, header_of, knock};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work).time_limit(Duration::from_secs(300))
    };
    vec![
        test("a_backend_that_refuses_holds_nobody_up", refuses),
        test("a_backend_that_stands_still_loses_nothing", stands_still),
        test("a_backend_that_never_reads_holds_nobody_up", never_reads),
    ]
}

/// Sessions that are refused.
const COUNT: usize = 200;

/// A client of the backend that is not the load's.
fn other_client(number: usize) -> anyhow::Result<SocketAddr> {
    Ok(SocketAddr::new("2001:db8::9".parse()?, 5000 + u16::try_from(number)?))
}

/// Each sender is told, by an end or a reset.
fn refuses(bed: &Bed) -> anyhow::Result<()> {
    let _backend = account::behaviour().start(bed, &[BACKEND_V4])?;
    let truepeer = peers::start(bed, &[])?;
    let load = Load::during(bed, |load| {
        in_parallel(20, COUNT, |number| {
            let mut sender = knock()?;
            let (data, _) = load.note(other_client(number)?, 4096);
            sender.write_all(&header_of(other_client(number)?)?)?;
            // The reset may come while it is sent.
            let _ = sender.write_all(&data);
            read_end(&mut sender).context("no end")?;
            Ok(())
        })?;
        load.wait_for_more()?;
        let _other = account::behaviour().start(bed, &[BACKEND_V6])?;
        for number in 0..20 {
            let outcome = load.session_at(DOOR_V4, other_client(COUNT + number)?, 4096);
            ensure!(outcome == Outcome::Right, "a session after the refusals: {outcome:?}");
        }
        Ok(())
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}

/// More than the buffers of a session hold, so that its sender waits.
const MUCH: usize = 4 << 20;

/// It is stopped while long sessions send, and goes on when none of their bytes moves any more.
fn stands_still(bed: &Bed) -> anyhow::Result<()> {
    const LONG: usize = 20;
    let backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &[])?;
    let load = Load::during(bed, |load| {
        backend.signal(Signal::STOP)?;
        let under_way = AtomicUsize::new(LONG);
        thread::scope(|scope| {
            let long: Vec<_> = (0..LONG)
                .map(|number| {
                    let under_way = &under_way;
                    scope.spawn(move || {
                        let outcome = load.session_at(DOOR_V4, nth_client(4_000_000 + number), MUCH);
                        under_way.fetch_sub(1, Relaxed);
                        outcome
                    })
                })
                .collect();
            let stuck = sockets::wait_until_stuck();
            let waiting = under_way.load(Relaxed);
            backend.signal(Signal::CONT)?;
            let outcomes = long.into_iter().map(ScopedJoinHandle::join).collect::<Result<Vec<_>, _>>();
            let outcomes = outcomes.map_err(|_| anyhow::anyhow!("a session panicked"))?;
            let bad: Vec<_> = outcomes.iter().filter(|outcome| **outcome != Outcome::Right).collect();
            ensure!(bad.is_empty(), "{} of {LONG} long sessions: {bad:?}", bad.len());
            stuck?;
            ensure!(waiting == LONG, "only {waiting} of {LONG} sessions were stuck");
            Ok(())
        })
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}

/// Each fills all buffers of its way.
const STUCK: usize = 50;

/// When it is killed at last, each of its senders is told.
fn never_reads(bed: &Bed) -> anyhow::Result<()> {
    let _backend = account::behaviour().start(bed, &[BACKEND_V4])?;
    let holds = Behaviour::Hold.start(bed, &[BACKEND_V6])?;
    let truepeer = peers::start(bed, &[])?;
    let load = Load::during(bed, |load| {
        let stuck = (0..STUCK)
            .map(|number| stuck_session(load, number))
            .collect::<anyhow::Result<Vec<TcpStream>>>()?;
        load.wait_for_more()?;
        holds.signal(Signal::KILL)?;
        holds.wait_end()?;
        for (number, mut sender) in stuck.into_iter().enumerate() {
            sender.set_nonblocking(false)?;
            read_end(&mut sender).with_context(|| format!("stuck session {number}"))?;
        }
        let _other = account::behaviour().start(bed, &[BACKEND_V6])?;
        let outcome = load.session_at(DOOR_V4, other_client(0)?, 4096);
        ensure!(outcome == Outcome::Right, "a session after the stuck ones: {outcome:?}");
        Ok(())
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}
