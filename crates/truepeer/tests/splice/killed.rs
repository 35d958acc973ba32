//! kill -9 again and again, while short sessions leave user space and long ones have left it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, KernelState, Test, client, ip_here, wait_for};

use crate::stand::{DOOR, SITE, Stand, echo, open, spliced};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("killed_10_times_it_finds_each_spliced_session_again", |bed| is_killed(bed, 10)),
        Test::new("killed_200_times_it_finds_each_spliced_session_again", |bed| is_killed(bed, 200))
            .time_limit(Duration::from_secs(1200))
            .long(),
    ]
}

const SEED: u64 = 13;
/// Sessions that stay, of one client.
const LONG: u16 = 20;
/// Threads with short sessions, of other clients.
const SHORT: usize = 3;
/// A short session's parts: it leaves at any of them.
const PARTS: usize = 6;

/// An address of this host: for its sake truepeer sets a switch of the kernel.
const BACKEND_OF_THIS_HOST: [&str; 2] = ["-6", "[fd09::1]:8000"];

/// Each next one lists all sessions that stay, and ends the oldest of them in order. While it serves, the
/// kernel has the same rules, routes, switches, pins and programs as at first. After its end, only an empty
/// directory is left, as after an end without a kill.
fn is_killed(bed: &Bed, times: u16) -> Result<()> {
    ip_here(&["-6 addr add fd09::1/128 dev lo nodad"])?;
    let before = KernelState::now(bed, None)?;
    let mut stand = Stand::make(bed, &BACKEND_OF_THIS_HOST)?;
    let serves = KernelState::now(bed, None)?;
    ensure!(serves.routing.contains("tcp_fwmark_accept=1"), "no switch: {serves:#?}");
    ensure!(serves.programs.contains("truepeer-splice"), "no pins: {serves:#?}");
    stand.truepeer.stop()?;
    let programs = format!("/sys/fs/bpf/truepeer-splice\n{}", before.programs);
    let ended = KernelState { programs, ..before };
    ended.wait_until_again(bed, None).context("after an end without a kill")?;
    stand.truepeer = spliced(bed, &BACKEND_OF_THIS_HOST).start(bed)?;
    let mut long = (0..LONG).map(open).collect::<Result<Vec<_>>>()?;
    stand.wait_spliced(bed, &mut long)?;
    let load = Short::default();
    let mut chance = Chance::new(SEED);
    let mut killed_at_start = 0;
    thread::scope(|scope| {
        (0..SHORT).for_each(|thread| {
            let load = &load;
            scope.spawn(move || load.run(thread));
        });
        let outcome = (0..times).try_for_each(|number| {
            thread::sleep(Duration::from_millis(chance.below(100) as u64));
            stand.truepeer.signal(Signal::KILL)?;
            stand.truepeer.wait_end()?;
            long.iter_mut().try_for_each(|stream| echo(stream, b"nobody is there"))?;
            let _ = std::fs::remove_file(&stand.admin);
            if chance.below(3) == 0 {
                killed_at_start += 1;
                killed_while_it_starts(bed, &stand, &mut chance)?;
                long.iter_mut().try_for_each(|stream| echo(stream, b"nobody is there"))?;
            }
            stand.truepeer = spliced(bed, &BACKEND_OF_THIS_HOST).start(bed)?;
            serves.wait_until_again(bed, None).with_context(|| format!("kill {number}"))?;
            finds_again(bed, &stand, &mut long, number).with_context(|| format!("kill {number}"))?;
            load.wait_for_more()
        });
        load.is_over.store(true, Relaxed);
        outcome
    })?;
    eprintln!(
        "seed {SEED}; {times} kills while it served, {killed_at_start} while it started: {} short sessions were right, {} were cut",
        load.right.load(Relaxed),
        load.cut.load(Relaxed)
    );
    eprintln!("{}", stand.ask(bed, &["status"])?);
    let wrong = load.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    long.into_iter().try_for_each(end)?;
    let nothing_is_left = || stand.ask(bed, &["sessions"]).is_ok_and(|list| !list.contains("203.0.113."));
    stand
        .truepeer
        .wait_state("all sessions to be forgotten", nothing_is_left)
        .with_context(|| stand.ask(bed, &["sessions"]).unwrap_or_default())?;
    stand.truepeer.stop()?;
    ended.wait_until_again(bed, None).context("at the end")
}

/// It may have taken over some sessions already.
fn killed_while_it_starts(bed: &Bed, stand: &Stand, chance: &mut Chance) -> Result<()> {
    let truepeer = spliced(bed, &BACKEND_OF_THIS_HOST).start_unready(bed)?;
    thread::sleep(Duration::from_millis(chance.below(200) as u64));
    truepeer.signal(Signal::KILL)?;
    truepeer.wait_end()?;
    let _ = std::fs::remove_file(&stand.admin);
    Ok(())
}

/// All are listed and go on. The oldest ends, and another takes its place.
fn finds_again(bed: &Bed, stand: &Stand, long: &mut Vec<TcpStream>, number: u16) -> Result<()> {
    let are_listed = |count: usize| {
        let listed = || {
            let list = stand.ask(bed, &["sessions", "--client", "203.0.113.7"]).unwrap_or_default();
            list.matches(" spliced ").count() == count
        };
        stand.truepeer.wait_state(&format!("{count} listed sessions"), listed)
    };
    are_listed(long.len())?;
    long.iter_mut().try_for_each(|stream| echo(stream, b"goes on"))?;
    end(long.remove(0))?;
    long.push(another(bed, stand, number)?);
    Ok(())
}

/// A session that has left. Any may stay in user space, for a reason that is counted: then another one is
/// opened.
fn another(bed: &Bed, stand: &Stand, number: u16) -> Result<TcpStream> {
    const TRIES: u16 = 10;
    for client in (LONG + number * TRIES..).take(TRIES.into()) {
        let mut stream = open(client)?;
        for _ in 0..20 {
            // Small exchanges might not move the windows far enough.
            echo(&mut stream, &[5; 8000])?;
            let list = stand.ask(bed, &["sessions", "--client", "203.0.113.7"])?;
            let is_it = |line: &&str| line.contains(&format!(":{} ", 5000 + client));
            if list.lines().find(is_it).is_some_and(|line| line.contains(" spliced ")) {
                return Ok(stream);
            }
        }
    }
    anyhow::bail!("none of {TRIES} sessions has left:\n{}", stand.ask(bed, &["status"])?)
}

fn end(mut stream: TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    Ok(())
}

/// Sessions that a kill may cut, by an end or a reset. None may hang, or get other bytes than it has sent.
#[derive(Default)]
struct Short {
    is_over: AtomicBool,
    begun: AtomicUsize,
    right: AtomicUsize,
    cut: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Short {
    fn run(&self, thread: usize) {
        let mut chance = Chance::new(thread as u64);
        while !self.is_over.load(Relaxed) {
            let number = self.begun.fetch_add(1, Relaxed);
            match short_session(number, &mut chance) {
                Ok(true) => self.right.fetch_add(1, Relaxed),
                Ok(false) => self.cut.fetch_add(1, Relaxed),
                Err(error) => {
                    let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    wrong.push(format!("short session {number}: {error:#}"));
                    0
                }
            };
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_for_more(&self) -> Result<()> {
        let before = self.right.load(Relaxed);
        wait_for("short sessions that are right", || self.right.load(Relaxed) >= before + 5)
    }
}

/// Whether it was served to its end.
fn short_session(number: usize, chance: &mut Chance) -> Result<bool> {
    const PORTS: usize = 20_000;
    let host = 8 + number / PORTS;
    let client: SocketAddr = format!("203.0.113.{host}:{}", 10_000 + number % PORTS).parse()?;
    let Ok(mut stream) = client::connect(DOOR) else { return Ok(false) };
    let mut converse = || -> std::io::Result<Option<String>> {
        stream.write_all(&client::v2(client, SITE).unwrap_or_default())?;
        for _ in 0..PARTS {
            let sent = Pattern::bytes(1 + chance.below(8000));
            let mut back = vec![0; sent.len()];
            stream.write_all(&sent)?;
            stream.read_exact(&mut back)?;
            if back != sent {
                return Ok(Some("other bytes came back".into()));
            }
        }
        stream.shutdown(Shutdown::Write)?;
        let more = stream.read(&mut [0])?;
        Ok((more > 0).then(|| "more bytes came than were sent".into()))
    };
    match converse() {
        Ok(None) => Ok(true),
        Ok(Some(wrong)) => anyhow::bail!(wrong),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(error).context("it hangs")
        }
        Err(_) => Ok(false),
    }
}
