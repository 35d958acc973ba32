//! Faults while sessions come and go. Whatever happens, no backend gets other bytes than a client has sent or
//! another client's name, and no client gets another's answer. Sessions that a fault does not touch are
//! served meanwhile, and all are served after it.

use std::collections::HashSet;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::account::{self, read_account};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::crowd::{gather, nth_client};
use truepeer_testbed::{Bed, Running, Test, ip_here};

use crate::kills::{BACKEND_OF_THIS_HOST, Killed};
use crate::ledger::{Accounts, Ledger, open_in};
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
        test("flushed_rules_and_an_interface_that_goes_down_are_survived", network_goes_down),
    ]
}

/// The clients at a time.
const CLIENTS: usize = 4;
/// After each session. Without it they use up the ports that they connect from: each stays in TIME_WAIT for a
/// minute.
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

/// The sessions of one test.
#[derive(Default)]
pub(crate) struct Load {
    is_over: AtomicBool,
    begun: AtomicUsize,
    right: AtomicUsize,
    failed: Mutex<Vec<SocketAddr>>,
    wrong: Mutex<Vec<String>>,
    ledger: Ledger,
    /// Sessions of killed backends, which say nothing more about them.
    lost: Mutex<HashSet<SocketAddr>>,
}

impl Load {
    /// Causes `fault` while sessions come and go. At the end it compares what the backends say of all
    /// sessions.
    pub(crate) fn during(bed: &Bed, fault: impl FnOnce(&Load) -> anyhow::Result<()>) -> anyhow::Result<Load> {
        let load = Load::default();
        let outcome = thread::scope(|scope| {
            for seed in 0..CLIENTS {
                let load = &load;
                scope.spawn(move || load.run(seed as u64));
            }
            let outcome =
                load.wait_for_more().and_then(|()| fault(&load)).and_then(|()| load.wait_for_more());
            load.is_over.store(true, Relaxed);
            outcome
        });
        let outcome = outcome.and_then(|()| load.all_are_right_afterwards());
        let accounts = load.accounts(bed);
        let wrong = load.told(bed, accounts.as_ref().ok());
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        outcome.and(accounts)?;
        Ok(load)
    }

    fn run(&self, seed: u64) {
        let mut chance = Chance::new(seed);
        while !self.is_over.load(Relaxed) {
            let most = chance.one_of(&[64, 4096, 32 << 10, MOST_BYTES]);
            let client = nth_client(self.begun.fetch_add(1, Relaxed));
            match self.session_at(DOOR_V4, client, chance.below(most)) {
                Outcome::Right => _ = self.right.fetch_add(1, Relaxed),
                Outcome::Failed(_) => lock(&self.failed).push(client),
                Outcome::Wrong(what) => lock(&self.wrong).push(what),
            }
            thread::sleep(PAUSE);
        }
    }

    /// One session with `length` bytes; the backend says whom and what it has seen.
    pub(crate) fn session_at(&self, listener: &str, client: SocketAddr, length: usize) -> Outcome {
        let (mut expected, mut answer) = (String::new(), String::new());
        let mut converse = || -> anyhow::Result<()> {
            let mut stream = truepeer_testbed::client::connect(listener)?;
            let data;
            (data, expected) = self.note(client, length);
            stream.write_all(&header_of(client)?)?;
            stream.write_all(&data)?;
            let end;
            (answer, end) = read_account(&mut stream);
            Ok(end?)
        };
        let outcome = converse();
        let session = format!("{client} with {length} bytes");
        match outcome {
            Ok(()) if answer == expected => Outcome::Right,
            Ok(()) if answer.is_empty() => Outcome::Failed(format!("{session}: no answer")),
            // A reset may leave only a part of the answer.
            Err(error) if expected.starts_with(&answer) => Outcome::Failed(format!("{session}: {error:#}")),
            _ => Outcome::Wrong(format!("{session}: the backend saw {answer:?} instead of {expected:?}")),
        }
    }

    /// Writes a client down that is about to send its header. Returns its data, and the account that the
    /// backend must give of it.
    pub(crate) fn note(&self, client: SocketAddr, length: usize) -> (Vec<u8>, String) {
        self.ledger.note(client, length)
    }

    /// Waits until some more sessions were right.
    pub(crate) fn wait_for_more(&self) -> anyhow::Result<()> {
        let before = self.right.load(Relaxed);
        truepeer_testbed::wait_for("sessions that are right", || self.right.load(Relaxed) >= before + 20)
    }

    /// Kills a backend. It gives no account of the sessions that are open.
    pub(crate) fn kill(&self, backend: &Running) -> anyhow::Result<()> {
        backend.signal(Signal::KILL)?;
        backend.wait_end()?;
        lock(&self.lost).extend(open_in(&[backend.stdout()]));
        Ok(())
    }

    fn all_are_right_afterwards(&self) -> anyhow::Result<()> {
        for _ in 0..AFTERWARDS {
            let outcome = self.session_at(DOOR_V4, nth_client(self.begun.fetch_add(1, Relaxed)), 4096);
            ensure!(outcome == Outcome::Right, "a session after the fault: {outcome:?}");
        }
        Ok(())
    }

    /// The backends' accounts, when they have one of each failed session.
    fn accounts(&self, bed: &Bed) -> anyhow::Result<Accounts> {
        let (failed, lost) = (lock(&self.failed), lock(&self.lost));
        let is_complete = || {
            let open = open_in(&bed.outputs());
            failed.iter().all(|client| lost.contains(client) || !open.contains(client))
        };
        let complete = bed.wait_for("the end of each failed session at the backend", is_complete);
        let accounts = self.ledger.compare(&bed.outputs());
        lock(&self.wrong).extend(accounts.wrong.iter().cloned());
        complete.map(|()| accounts)
    }

    /// Prints the counts. Returns what was wrong.
    fn told(&self, bed: &Bed, accounts: Option<&Accounts>) -> Vec<String> {
        let program = peers::peer().unwrap_or_else(|| "truepeer".into());
        let (right, failed, wrong) =
            (self.right.load(Relaxed), lock(&self.failed), lock(&self.wrong).clone());
        let count = right + failed.len() + wrong.len();
        eprintln!(
            "{program}: {}: {count} sessions, {} failed, {} wrong",
            bed.name(),
            failed.len(),
            wrong.len()
        );
        if let (false, Some(accounts)) = (failed.is_empty(), accounts) {
            let ended: Vec<_> = failed.iter().filter_map(|client| accounts.ended.get(client)).collect();
            let early = ended.iter().filter(|is_early| ***is_early).count();
            eprintln!(
                "  the backend has accounted for {} of the failed; {early} of these had a FIN after a part of their bytes",
                ended.len()
            );
        }
        wrong
    }

    pub(crate) fn none_failed(&self) -> anyhow::Result<()> {
        let failed = lock(&self.failed).len();
        ensure!(failed == 0, "{failed} sessions failed, {} were right", self.right.load(Relaxed));
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn start_backend(bed: &Bed) -> anyhow::Result<Running> {
    account::behaviour().start(bed, &[BACKEND_V4, BACKEND_V6])
}

fn backend_restarts(bed: &Bed, times: usize) -> anyhow::Result<()> {
    let mut backend = Some(start_backend(bed)?);
    let truepeer = peers::start(bed, &[])?;
    Load::during(bed, |load| {
        (0..times).try_for_each(|_| {
            if let Some(backend) = backend.take() {
                load.kill(&backend)?;
            }
            thread::sleep(Duration::from_millis(200));
            backend = Some(start_backend(bed)?);
            load.wait_for_more()
        })
    })?;
    ensure!(truepeer.is_alive());
    Ok(())
}

/// A thousand have sent half a header, a thousand a header and some data. All are still held when others have
/// been served.
fn senders_stop(bed: &Bed) -> anyhow::Result<()> {
    const EACH: usize = 1000;
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &["--header-timeout", "60s"])?;
    let client = |number| nth_client(1_000_000 + number);
    let load = Load::during(bed, |load| {
        let mut held: Vec<TcpStream> = Vec::new();
        for number in 0..EACH {
            let header = header_of(client(number))?;
            let mut half = knock()?;
            half.write_all(&header[..header.len() / 2])?;
            held.push(half);
        }
        // The peers end such a connection as soon as they read it. They may (PROXY 2.2).
        let held_from = if peers::peer().is_some() { EACH } else { 0 };
        bed.wait_for("their connections", || {
            held_from > 0 || truepeer.descriptors().is_ok_and(|open| open > EACH)
        })?;
        for number in 0..EACH {
            let (data, _) = load.note(client(EACH + number), 1000);
            let mut some = knock()?;
            some.write_all(&header_of(client(EACH + number))?)?;
            // With its number, this may be a part of the data.
            some.write_all(&data[..1000])?;
            held.push(some);
        }
        let has_all =
            |open: &HashSet<SocketAddr>| (EACH..2 * EACH).all(|number| open.contains(&client(number)));
        bed.wait_for("their sessions", || has_all(&open_in(&bed.outputs())))?;
        load.wait_for_more()?;
        ensure!(has_all(&open_in(&bed.outputs())), "sessions have ended");
        for (number, sender) in held.iter().enumerate().skip(held_from) {
            sender.set_nonblocking(true)?;
            let told = sender.peek(&mut [0]);
            ensure!(told.as_ref().is_err_and(would_block), "sender {number} was told something: {told:?}");
        }
        Ok(())
    })?;
    ensure!(truepeer.is_alive());
    load.none_failed()
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// A session needs two descriptors, so 20,000 of them are enough for these and the load.
fn silent_senders(bed: &Bed) -> anyhow::Result<()> {
    const SILENT: usize = 8_000;
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &["--header-timeout", "60s"])?;
    let load = Load::during(bed, |load| {
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
    let load = Load::during(bed, |_| {
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
    Load::during(bed, |load| truepeer.times(times, || load.wait_for_more()))?;
    truepeer.end()
}

fn network_goes_down(bed: &Bed) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &[])?;
    Load::during(bed, |load| {
        ip_here(&["rule flush protocol 123", "-6 rule flush protocol 123"])?;
        load.wait_for_more()?;
        ip_here(&["link set lo down"])?;
        thread::sleep(Duration::from_millis(300));
        ip_here(&["link set lo up"])
    })?;
    ensure!(truepeer.is_alive());
    Ok(())
}
