//! Faults while datagrams come and go. One may be lost, by the fault itself. None reaches the backend changed
//! or with another client's name, and no client gets another's answer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::crowd::nth_client;
use truepeer_testbed::datagrams::{Backend, receive, send, socket, v2};
use truepeer_testbed::packets::{BadLink, Mischief};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::peers::{Place, over_udp};
use truepeer_testbed::{Bed, Running, Test, Truepeer, wait_for};

use crate::kills::{BACKEND_OF_THIS_HOST, Killed};
use crate::peers;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, SITE_V4, TRUEPEER};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work).time_limit(Duration::from_secs(300))
    };
    vec![
        test("a_bad_link_changes_no_datagram_and_no_name", over_a_bad_link).needs_program("ethtool"),
        test("killed_10_times_it_answers_datagrams_again_each_time", |bed| is_killed(bed, 10)),
        test("killed_200_times_it_answers_datagrams_again_each_time", |bed| is_killed(bed, 200))
            .time_limit(Duration::from_secs(900))
            .long(),
    ]
}

const SENDERS: usize = 4;
/// Of each sender. They take turns.
const CLIENTS_EACH: usize = 250;
/// An answer that has not come by then is counted as lost.
const LOST_AFTER: Duration = Duration::from_millis(50);
const MOST_BYTES: usize = 1200;

/// The text after the header. It depends on the number, so that each end can check it.
fn payload(number: usize) -> Vec<u8> {
    let length = Chance::new(number as u64).below(MOST_BYTES);
    [format!("{number} ").as_bytes(), &Pattern::bytes(length)].concat()
}

/// Datagrams are numbered from one sender to the next.
fn client(number: usize) -> String {
    let (sender, turn) = (number % SENDERS, number / SENDERS % CLIENTS_EACH);
    nth_client(sender * CLIENTS_EACH + turn).to_string()
}

fn number(payload: &[u8]) -> Option<usize> {
    let digits = payload.split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether these are the bytes and the client of one of the datagrams.
fn check(from: &str, bytes: &[u8]) -> anyhow::Result<usize> {
    let number = number(bytes).with_context(|| format!("{} bytes of {from}, changed", bytes.len()))?;
    ensure!(bytes == payload(number), "datagram {number}, changed");
    ensure!(from == client(number), "datagram {number} of {} has the name {from}", client(number));
    Ok(number)
}

/// The datagrams of one test.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    right: AtomicUsize,
    lost: AtomicUsize,
    wrong: Mutex<Vec<String>>,
}

impl Load {
    /// Causes `fault` while datagrams come and go. The senders are in the calling thread's network.
    fn during(
        bed: &Bed,
        listener: &str,
        backend: &Backend,
        fault: impl FnOnce(&Load) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let load = Load::default();
        let outcome = thread::scope(|scope| -> anyhow::Result<()> {
            for sender in 0..SENDERS {
                let load = &load;
                scope.spawn(move || {
                    if let Err(error) = load.run(listener, sender) {
                        load.is_wrong(&error);
                    }
                });
            }
            let outcome =
                load.wait_for_more().and_then(|()| fault(&load)).and_then(|()| load.wait_for_more());
            load.is_over.store(true, Relaxed);
            outcome
        });
        for seen in backend.seen().iter() {
            if let Err(error) = check(&seen.from.to_string(), &seen.payload) {
                load.is_wrong(&error);
            }
        }
        let program = peers::peer().unwrap_or_else(|| "truepeer".into());
        let wrong = load.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        eprintln!(
            "{program}: {}: {} datagrams were answered, {} not, {} were wrong",
            bed.name(),
            load.right.load(Relaxed),
            load.lost.load(Relaxed),
            wrong.len()
        );
        ensure!(wrong.is_empty(), "{}", wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n"));
        outcome
    }

    fn is_wrong(&self, error: &anyhow::Error) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{error:#}"));
    }

    fn run(&self, listener: &str, sender: usize) -> anyhow::Result<()> {
        let socket = socket("0.0.0.0:0")?;
        socket.connect(listener)?;
        socket.set_read_timeout(Some(LOST_AFTER))?;
        let mut next = sender;
        while !self.is_over.load(Relaxed) {
            let sent = send(&socket, &[&v2(client(next), SITE_V4)?, &payload(next)]);
            // The port is closed at this moment, and an ICMP error has said so.
            if sent.is_err() {
                thread::sleep(Duration::from_millis(1));
            }
            let is_answered = sent.is_ok() && self.is_answered(&socket, next, sender);
            if is_answered { &self.right } else { &self.lost }.fetch_add(1, Relaxed);
            next += SENDERS;
        }
        Ok(())
    }

    /// Late and doubled answers to earlier datagrams may come before.
    fn is_answered(&self, socket: &std::net::UdpSocket, sent: usize, sender: usize) -> bool {
        loop {
            let Ok(answer) = receive(socket) else { return false };
            let at = answer.iter().position(|byte| *byte == b' ').unwrap_or(answer.len());
            let (from, bytes) =
                (String::from_utf8_lossy(&answer[..at]), answer.get(at + 1..).unwrap_or_default());
            match check(&from, bytes) {
                Ok(number) if number % SENDERS != sender => {
                    self.is_wrong(&anyhow::anyhow!("sender {sender} has the answer to datagram {number}"));
                }
                Ok(number) if number == sent => return true,
                // On a busy machine most are late.
                Ok(_) => _ = self.right.fetch_add(1, Relaxed),
                Err(error) => self.is_wrong(&error.context("an answer")),
            }
        }
    }

    fn wait_for_more(&self) -> anyhow::Result<()> {
        let before = self.right.load(Relaxed);
        wait_for("100 datagrams to be answered", || self.right.load(Relaxed) >= before + 100)
    }
}

fn truepeer_at(listener: &str, ipv6: &str) -> Truepeer {
    let options = ["-p", "udp", "--allow", "any", "--routes", "auto", "-l", listener];
    Truepeer::proxy(TRUEPEER).args(&options).ipv4(BACKEND_V4).ipv6(ipv6)
}

/// In the calling thread's network.
fn start(bed: &Bed, listener: &str) -> anyhow::Result<Running> {
    start_with(bed, listener, || truepeer_at(listener, BACKEND_V6))
}

/// The same with another truepeer.
fn start_with(bed: &Bed, listener: &str, truepeer: impl Fn() -> Truepeer) -> anyhow::Result<Running> {
    let Some(name) = peers::peer() else {
        let truepeer = truepeer().start_unready(bed)?;
        truepeer.wait_for_log(&format!("listening on {listener}"))?;
        return Ok(truepeer);
    };
    peers::add_rules(bed)?;
    let peer = over_udp(&name, Place { listen: listener, ipv4: BACKEND_V4, ipv6: BACKEND_V6 })?.start(bed)?;
    peer.wait_bound_udp(listener)?;
    Ok(peer)
}

/// Of 1000 packets, so many are damaged, as many delayed, as many doubled, and as many lost.
const SHARE: usize = 50;
/// Hundreds of datagrams that are answered.
const PARTS: usize = 15;

fn over_a_bad_link(bed: &Bed) -> anyhow::Result<()> {
    let link = BadLink::make(bed, Mischief::of_each(SHARE), 3)?;
    let listener = link.right.at(false, 8443).to_string();
    let (backend, truepeer) = link
        .right
        .run(|| -> anyhow::Result<_> { Ok((Backend::who(&[BACKEND_V4])?, start(bed, &listener)?)) })??;
    link.left.run(|| {
        Load::during(bed, &listener, &backend, |load| (0..PARTS).try_for_each(|_| load.wait_for_more()))
    })??;
    ensure!(truepeer.is_alive());
    let deeds = &link.deeds;
    let hit = [&deeds.damaged, &deeds.late, &deeds.doubled, &deeds.lost].map(|deed| deed.load(Relaxed));
    let carried = deeds.carried.load(Relaxed);
    eprintln!("{carried} packets; damaged, late, doubled, lost: {hit:?}");
    ensure!(hit.iter().all(|deed| *deed > carried / 40), "the link was too good: {hit:?} of {carried}");
    Ok(())
}

/// At random moments. A flow begins again with its next datagram.
fn is_killed(bed: &Bed, times: usize) -> anyhow::Result<()> {
    let backend = Backend::who(&[BACKEND_V4])?;
    let mut truepeer = Killed::make(bed, 11, |bed, waits| {
        let truepeer = || truepeer_at(DOOR_V4, BACKEND_OF_THIS_HOST);
        if waits { start_with(bed, DOOR_V4, truepeer) } else { truepeer().start_unready(bed) }
    })?;
    Load::during(bed, DOOR_V4, &backend, |load| truepeer.times(times, || load.wait_for_more()))?;
    truepeer.end()
}
