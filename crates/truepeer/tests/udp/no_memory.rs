//! The kernel's calls fail for want of memory (ENOBUFS, by strace's injection). Only the datagrams of a
//! failed call are lost, and each is counted. No name and no byte is wrong.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::{Bed, Program, Running, Test, wait_for};

use crate::kit::{
    BACKENDS, Backend, DESTINATIONS, LISTENERS, ask, counted, send, sender_towards, start_proxy, v2,
    wait_counted,
};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> Result<()>| Test::new(name, work).needs_program("strace");
    vec![
        test("datagrams_that_the_kernel_has_no_memory_for_are_lost_alone_and_counted", one_by_one),
        test("of_a_burst_only_what_the_kernel_has_no_memory_for_is_lost_and_counted", bursts),
        test("a_flow_that_the_kernel_has_no_memory_for_begins_with_the_next_datagram", flows),
    ]
}

/// Makes calls of a running process fail. strace(1): `when=3+7` is the third call of each thread, and each
/// seventh after it.
struct Failing {
    strace: Running,
    list: PathBuf,
}

impl Failing {
    fn start(bed: &Bed, truepeer: &Running, calls: &[(&str, &str)]) -> Result<Failing> {
        let list = bed.dir().join(bed.fresh_name("calls"));
        let pid = truepeer.pid().to_string();
        let mut strace = Program::new("strace").args(["-f", "-qq", "-p", &pid, "-o"]).arg(&list);
        let names: Vec<_> = calls.iter().map(|(call, _)| *call).collect();
        strace = strace.arg(format!("--trace={}", names.join(",")));
        for (call, when) in calls {
            strace = strace.arg(format!("--inject={call}:error=ENOBUFS:when={when}"));
        }
        let strace = strace.stop_by(Signal::INT).start(bed)?;
        strace.wait_state("strace at all threads", || is_traced(truepeer).unwrap_or(false))?;
        Ok(Failing { strace, list })
    }

    /// How often this call has failed.
    fn times(&self, call: &str) -> usize {
        let list = fs::read_to_string(&self.list).unwrap_or_default();
        let failed = |line: &&str| line.contains("(INJECTED)") && line.contains(&format!(" {call}"));
        // The last line may not be complete.
        list.split_inclusive('\n').filter(|line| line.ends_with('\n')).filter(failed).count()
    }

    fn stop(self) -> Result<()> {
        self.strace.stop().map(drop)
    }
}

fn is_traced(truepeer: &Running) -> Result<bool> {
    for thread in fs::read_dir(format!("/proc/{}/task", truepeer.pid()))? {
        let status = fs::read_to_string(thread?.path().join("status"))?;
        if status.contains("TracerPid:\t0\n") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A datagram's number is its payload and decides its client's port.
fn client(number: usize) -> String {
    format!("192.0.2.7:{}", 10_000 + number)
}

/// What has come back to a sender.
struct Answers {
    socket: UdpSocket,
    numbers: Vec<usize>,
    wrong: Vec<String>,
}

impl Answers {
    fn new() -> Result<Answers> {
        let socket = sender_towards(LISTENERS[0])?;
        socket.set_nonblocking(true)?;
        Ok(Answers { socket, numbers: Vec::new(), wrong: Vec::new() })
    }

    /// Takes all that has come; `client` is the client of a number. Returns how many have come in all.
    fn take(&mut self, client: impl Fn(usize) -> String) -> usize {
        let mut buffer = [0; 2048];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let number = text.split(' ').nth(1).and_then(|number| number.parse().ok());
            match number {
                Some(number) if text.starts_with(&format!("{} ", client(number))) => {
                    self.numbers.push(number);
                }
                _ => self.wrong.push(text),
            }
        }
        self.numbers.len()
    }

    fn are_right(&self) -> Result<()> {
        ensure!(self.wrong.is_empty(), "{:?}", self.wrong);
        let different: BTreeSet<_> = self.numbers.iter().collect();
        ensure!(different.len() == self.numbers.len(), "an answer came twice");
        Ok(())
    }
}

/// All names and bytes that the backend has seen. Returns their number.
fn seen_rightly(backend: &Backend, client: impl Fn(usize) -> String) -> Result<usize> {
    let seen = backend.seen();
    for one in seen.iter() {
        let text = std::str::from_utf8(&one.payload)?;
        let number = text.split(' ').next().and_then(|number| number.parse().ok());
        let number: usize = number.with_context(|| format!("{text:?} of {}", one.from))?;
        ensure!(one.from.to_string() == client(number), "datagram {number} has the name {}", one.from);
    }
    Ok(seen.len())
}

/// Each datagram is of another client, so each call has one datagram.
fn one_by_one(bed: &Bed) -> Result<()> {
    const DATAGRAMS: usize = 400;
    const AT_A_TIME: usize = 8;
    let mut chance = Chance::new(5);
    let backend = Backend::who(&BACKENDS[..1])?;
    let truepeer = start_proxy(bed, "--splice off")?;
    let failing = Failing::start(bed, &truepeer, &[("sendmmsg", "3+5"), ("recvmmsg", "2+5")])?;
    let mut answers = Answers::new()?;
    let mut sent = 0;
    while sent < DATAGRAMS {
        // Not always as many: otherwise the calls that fail could always be of one direction.
        for _ in 0..=chance.below(AT_A_TIME).min(DATAGRAMS - sent - 1) {
            let header = v2(client(sent), DESTINATIONS[0])?;
            send(&answers.socket, &[&header, sent.to_string().as_bytes()])?;
            sent += 1;
        }
        // A receive that failed loses nothing.
        let is_accounted_for = || answers.take(client) + failing.times("sendmmsg") == sent;
        let outcome = wait_for("an answer to each datagram but the lost ones", is_accounted_for);
        outcome.with_context(|| {
            format!(
                "{sent} were sent, {} answered, {} sends and {} receives have failed",
                answers.numbers.len(),
                failing.times("sendmmsg"),
                failing.times("recvmmsg")
            )
        })?;
    }
    let (sends, receives) = (failing.times("sendmmsg"), failing.times("recvmmsg"));
    failing.stop()?;
    answers.are_right()?;
    let seen = seen_rightly(&backend, client)?;
    let answered = answers.numbers.len();
    eprintln!(
        "{DATAGRAMS} sent, {seen} reached the backend, {answered} answered; {sends} sends and {receives} receives failed"
    );
    ensure!(seen < DATAGRAMS && answered < seen && receives > 10, "not each kind of call has failed");
    // The kernel knows of the last one before truepeer does.
    wait_counted(&truepeer, "datagrams_dropped", sends as u64)?;
    all_are_answered(&truepeer)
}

/// After the fault.
fn all_are_answered(truepeer: &Running) -> Result<()> {
    let sender = sender_towards(LISTENERS[0])?;
    for number in 0..50 {
        let header = v2(client(number), DESTINATIONS[0])?;
        let answer = ask(&sender, &[&header, b"afterwards"])?;
        ensure!(answer == format!("{} afterwards", client(number)).into_bytes(), "{}", truepeer.log());
    }
    Ok(())
}

/// Of one client, so that a call has several datagrams, also merged ones.
fn bursts(bed: &Bed) -> Result<()> {
    const BURSTS: usize = 50;
    const EACH: usize = 16;
    let one = |_| client(0);
    let backend = Backend::who(&BACKENDS[..1])?;
    let truepeer = start_proxy(bed, "--splice off")?;
    let failing = Failing::start(bed, &truepeer, &[("sendmmsg", "3+7"), ("recvmmsg", "2+5")])?;
    let mut answers = Answers::new()?;
    let header = v2(client(0), DESTINATIONS[0])?;
    for first in (0..BURSTS * EACH).step_by(EACH) {
        for number in first..first + EACH {
            send(&answers.socket, &[&header, format!("{number:05} {}", "x".repeat(200)).as_bytes()])?;
        }
        let sent = first + EACH;
        let mut dropped = 0;
        let outcome = wait_for("an answer to each datagram but the lost ones", || {
            // Each look at the counter adds a line to the log.
            std::thread::sleep(Duration::from_millis(5));
            dropped = counted(&truepeer, "datagrams_dropped")
                .map_or(0, |count| usize::try_from(count).unwrap_or(0));
            answers.take(one) + dropped == sent
        });
        outcome.with_context(|| {
            format!("{sent} were sent, {} answered, {dropped} counted as dropped", answers.numbers.len())
        })?;
    }
    let sends = failing.times("sendmmsg");
    failing.stop()?;
    answers.are_right()?;
    ensure!(answers.numbers.is_sorted(), "not in their order: {:?}", answers.numbers);
    let seen = seen_rightly(&backend, one)?;
    let (sent, answered) = (BURSTS * EACH, answers.numbers.len());
    eprintln!("{sent} sent, {seen} reached the backend, {answered} answered; {sends} sends failed");
    ensure!(sends > 5 && sends < sent - answered, "no call that failed had several datagrams");
    all_are_answered(&truepeer)
}

/// Each call that begins a flow fails now and then. That datagram is refused with a reason, and the next one
/// of its client begins the flow.
fn flows(bed: &Bed) -> Result<()> {
    const FLOWS: usize = 120;
    const CALLS: [(&str, &str); 3] = [("socket", "2+7"), ("bind", "4+9"), ("connect", "3+11")];
    let backend = Backend::who(&BACKENDS[..1])?;
    let truepeer = start_proxy(bed, "--splice off")?;
    let failing = Failing::start(bed, &truepeer, &CALLS)?;
    let mut answers = Answers::new()?;
    let mut refused = 0;
    for number in 0..FLOWS {
        let header = v2(client(number), DESTINATIONS[0])?;
        loop {
            send(&answers.socket, &[&header, number.to_string().as_bytes()])?;
            let before = refused;
            wait_for("an answer or a refusal", || {
                if answers.take(client) > number {
                    return true;
                }
                // Each look at the counters adds a line to the log.
                std::thread::sleep(Duration::from_millis(2));
                refused = counted(&truepeer, "datagrams_refused").unwrap_or(before);
                refused > before
            })?;
            if answers.numbers.len() > number {
                break;
            }
        }
    }
    let counts = CALLS.map(|(call, _)| (call, failing.times(call)));
    eprintln!("{FLOWS} flows, {refused} datagrams refused; failed: {counts:?}");
    failing.stop()?;
    answers.are_right()?;
    seen_rightly(&backend, client)?;
    ensure!(counts.iter().all(|(_, count)| *count > 5) && refused > 10, "not each kind of call has failed");
    all_are_answered(&truepeer)
}
