//! Faults while sessions come and go. Whatever happens, no backend gets other bytes than a client has sent or another client's name, and no
//! client gets another's answer. Sessions that a fault does not touch are served meanwhile, and all are served after it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::crowd::{gather, nth_client};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Running, Test, ip_here};

use crate::kills::{BACKEND_OF_THIS_HOST, Killed};
use crate::peers;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, bare_proxy, header_of, knock};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work).time_limit(Duration::from_secs(300))
    };
    vec![
        test("a_backend_that_is_killed_and_started_again_gets_no_wrong_byte", |bed| backend_restarts(bed, 5)),
        test("senders_that_stop_in_the_middle_hold_nobody_up", senders_stop).needs_open_files(10_000),
        test("eight_thousand_senders_that_say_nothing_hold_nobody_up", silent_senders)
            .needs_open_files(20_000)
            .alone(),
        test("a_process_that_stood_still_for_3_seconds_loses_nothing", |bed| stands_still(bed, 3)),
        test("a_process_that_stood_still_for_10_seconds_loses_nothing", |bed| stands_still(bed, 10)).long(),
        test("killed_10_times_it_serves_again_each_time", |bed| is_killed(bed, 10)),
        test("killed_200_times_it_serves_again_each_time", |bed| is_killed(bed, 200))
            .time_limit(Duration::from_secs(900))
            .long(),
        test("flushed_rules_and_an_interface_that_goes_down_lose_nothing", network_goes_down),
    ]
}

/// The clients at a time.
const CLIENTS: usize = 4;
/// After each session. Without it they use up the ports that they connect from: each stays in TIME_WAIT for a minute.
const PAUSE: Duration = Duration::from_millis(5);
/// A session's data: mostly some KiB, at most this much.
const MOST_BYTES: usize = 256 << 10;
/// Sessions that must be right after a fault.
const AFTERWARDS: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The backend has seen this client and each of its bytes.
    Right,
    /// It was not served, or not to its end, for this reason.
    Failed(String),
    /// The backend has seen something else.
    Wrong(String),
}

/// One session with `length` bytes; the backend says whom and what it has seen.
pub(crate) fn session_at(door: &str, client: SocketAddr, length: usize) -> Outcome {
    let converse = || -> anyhow::Result<String> {
        let mut stream = truepeer_testbed::client::connect(door)?;
        stream.write_all(&header_of(client)?)?;
        stream.write_all(&Pattern::bytes(length))?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.trim().to_owned())
    };
    match converse() {
        Ok(answer) if answer == format!("{client} {}", Digest::of_pattern(length as u64)) => Outcome::Right,
        Ok(answer) if !answer.is_empty() => {
            Outcome::Wrong(format!("{client} with {length} bytes: the backend saw {answer:?}"))
        }
        Ok(_) => Outcome::Failed(format!("{client} with {length} bytes: no answer")),
        Err(error) => Outcome::Failed(format!("{client} with {length} bytes: {error:#}")),
    }
}

/// The sessions of one test.
#[derive(Default)]
pub(crate) struct Load {
    is_over: AtomicBool,
    begun: AtomicUsize,
    right: AtomicUsize,
    failed: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Load {
    /// Causes `fault` while sessions come and go.
    pub(crate) fn during(fault: impl FnOnce(&Load) -> anyhow::Result<()>) -> anyhow::Result<Load> {
        let load = Load::default();
        thread::scope(|scope| {
            for seed in 0..CLIENTS {
                let load = &load;
                scope.spawn(move || load.run(seed as u64));
            }
            let outcome =
                load.wait_for_more().and_then(|()| fault(&load)).and_then(|()| load.wait_for_more());
            load.is_over.store(true, Relaxed);
            if let Some(peer) = peers::peer() {
                eprintln!("{peer}: {}", load.told());
            }
            outcome
        })?;
        for _ in 0..AFTERWARDS {
            let outcome = load.one(4096);
            ensure!(outcome == Outcome::Right, "a session after the fault: {outcome:?}");
        }
        let wrong = load.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(load)
    }

    fn run(&self, seed: u64) {
        let mut chance = Chance::new(seed);
        while !self.is_over.load(Relaxed) {
            let most = chance.one_of(&[64, 4096, 32 << 10, MOST_BYTES]);
            match self.one(chance.below(most)) {
                Outcome::Right => self.right.fetch_add(1, Relaxed),
                Outcome::Failed(_) => self.failed.fetch_add(1, Relaxed),
                Outcome::Wrong(what) => {
                    self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what);
                    0
                }
            };
            thread::sleep(PAUSE);
        }
    }

    fn one(&self, length: usize) -> Outcome {
        session_at(DOOR_V4, nth_client(self.begun.fetch_add(1, Relaxed)), length)
    }

    /// Waits until some more sessions were right.
    pub(crate) fn wait_for_more(&self) -> anyhow::Result<()> {
        let before = self.right.load(Relaxed);
        truepeer_testbed::wait_for("sessions that are right", || self.right.load(Relaxed) >= before + 20)
    }

    fn told(&self) -> String {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner).len();
        let (right, failed) = (self.right.load(Relaxed), self.failed.load(Relaxed));
        format!("{right} sessions were right, {failed} failed, {wrong} were wrong")
    }

    pub(crate) fn none_failed(&self) -> anyhow::Result<()> {
        let failed = self.failed.load(Relaxed);
        ensure!(failed == 0, "{failed} sessions failed, {} were right", self.right.load(Relaxed));
        Ok(())
    }
}

pub(crate) fn start_backend(bed: &Bed) -> anyhow::Result<Running> {
    Behaviour::Account.start(bed, &[BACKEND_V4, BACKEND_V6])
}

fn backend_restarts(bed: &Bed, times: usize) -> anyhow::Result<()> {
    let mut backend = Some(start_backend(bed)?);
    let truepeer = peers::start(bed, &[])?;
    Load::during(|load| {
        (0..times).try_for_each(|_| {
            if let Some(backend) = backend.take() {
                backend.signal(Signal::KILL)?;
                backend.wait_end()?;
            }
            thread::sleep(Duration::from_millis(200));
            backend = Some(start_backend(bed)?);
            load.wait_for_more()
        })
    })?;
    ensure!(truepeer.is_alive());
    Ok(())
}

/// A thousand have sent half a header, a thousand a header and some data.
fn senders_stop(bed: &Bed) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &["--header-timeout", "60s"])?;
    let mut held: Vec<TcpStream> = Vec::new();
    let load = Load::during(|load| {
        for number in 0..1000 {
            let header = header_of(nth_client(1_000_000 + number))?;
            let mut half = knock()?;
            half.write_all(&header[..header.len() / 2])?;
            let mut some = knock()?;
            some.write_all(&header)?;
            some.write_all(&Pattern::bytes(1000))?;
            held.extend([half, some]);
        }
        load.wait_for_more()
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}

/// A session needs two descriptors, so 20,000 of them are enough for these and the load.
fn silent_senders(bed: &Bed) -> anyhow::Result<()> {
    const SILENT: usize = 8_000;
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &["--header-timeout", "60s"])?;
    let load = Load::during(|load| {
        let _crowd = gather(bed, SILENT, DOOR_V4)?;
        bed.wait_for("their connections", || truepeer.descriptors().is_ok_and(|held| held > SILENT))?;
        load.wait_for_more()
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}

fn stands_still(bed: &Bed, seconds: u64) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &[])?;
    let load = Load::during(|_| {
        truepeer.signal(Signal::STOP)?;
        thread::sleep(Duration::from_secs(seconds));
        truepeer.signal(Signal::CONT)
    })?;
    load.none_failed()
}

/// At random moments. The next start removes what the killed process has left, or adopts it.
fn is_killed(bed: &Bed, times: usize) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let mut truepeer = Killed::make(bed, 7, |bed, waits| {
        let truepeer = bare_proxy().listen(DOOR_V4).ipv4(BACKEND_V4).ipv6(BACKEND_OF_THIS_HOST);
        match (peers::peer(), waits) {
            (Some(_), _) => peers::start(bed, &[]),
            (None, true) => truepeer.start(bed),
            (None, false) => truepeer.start_unready(bed),
        }
    })?;
    ensure!(peers::peer().is_some() || truepeer.sets("ipv4/tcp_fwmark_accept"), "it sets no switch");
    Load::during(|load| truepeer.times(times, || load.wait_for_more()))?;
    truepeer.end()
}

fn network_goes_down(bed: &Bed) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &[])?;
    Load::during(|load| {
        ip_here(&["rule flush protocol 123", "-6 rule flush protocol 123"])?;
        load.wait_for_more()?;
        ip_here(&["link set lo down"])?;
        thread::sleep(Duration::from_millis(300));
        ip_here(&["link set lo up"])
    })?;
    ensure!(truepeer.is_alive());
    Ok(())
}
