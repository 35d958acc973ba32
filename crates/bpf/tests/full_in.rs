//! `full_in` on two CPUs at once: another connection gets the place of a dial while segments of the first one
//! come. Each session must begin, as its own client and with its own bytes, and no lock or key of a dial may
//! be left. The moment between look-up and lock is too short to hit by chance, so in the other test the
//! program stops there.
//!
//! `ROUNDS=N` tries so many times.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use truepeer_bpf::test::full::FullHarness;
use truepeer_proto::{Addresses, Command, Transport, V2Encoder};
use truepeer_testbed::packets::{ACK, PSH, RST, SYN, Segment, timestamps};
use truepeer_testbed::{Bed, Test, ip_here, skip};

const DOOR: &str = "127.0.0.1:8443";
const BACKEND: &str = "127.0.0.1:80";
const PASS: i32 = -1;
const DROP: i32 = 2;
/// Where each dial of a round stands.
const PLACE: u32 = 77;
/// How many sessions may begin (`FullHarness`).
const PLACES: u16 = 8;
/// The number of ports of the first senders, from 10,000 on; those of the second ones follow.
const PORTS: u16 = 20_000;

fn main() -> ExitCode {
    let rounds = std::env::var("ROUNDS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    truepeer_testbed::main(vec![
        Test::new("no_byte_goes_to_another_dial", move |bed| no_byte(bed, rounds)),
        Test::new("a_late_reset_ends_no_other_dial", a_late_reset),
        Test::new("a_guessed_reset_ends_no_dial", a_guessed_reset),
        Test::new("a_header_that_comes_again_as_its_session_begins_is_the_sessions", again_as_it_begins),
        Test::new("without_a_slot_for_its_dial_a_connection_is_truepeers", without_a_slot),
        Test::new("a_lack_of_places_is_no_fault_of_the_backend", a_lack_of_places),
    ])
}

fn harness(bed: &Bed, stops: bool) -> Result<FullHarness> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !truepeer_bpf::can_begin_again() {
        return skip("needs Linux 6.9");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the machine's own user namespace: run as root");
    }
    let pins = bed.dir().join("bpf");
    fs::create_dir_all(&pins)?;
    rustix::mount::mount("bpf", &pins, "bpf", rustix::mount::MountFlags::empty(), None)?;
    let sender = "127.0.0.1".parse()?;
    let load = if stops { FullHarness::load_stopping } else { FullHarness::load };
    Ok(load(&pins.join("splices"), DOOR.parse()?, sender, BACKEND.parse()?)?)
}

/// A connection, as far as its handshake with the kernel.
struct Sender {
    from: SocketAddr,
    client: SocketAddr,
    ack: u32,
    echo: u32,
    /// What it sends, again and again.
    byte: u8,
}

const ISN: u32 = 1000;
const CLOCK: u32 = 5000;

fn frame(segment: &Segment) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00]);
    frame.extend(segment.packet().bytes());
    frame
}

fn parse(frame: &[u8]) -> Result<Segment> {
    Segment::parse(frame.get(14..).unwrap_or_default()).context("no segment")
}

/// As Linux writes the options of a SYN.
fn syn_options(value: u32, echo: u32) -> Vec<u8> {
    let clock = timestamps(value, echo);
    [&[2, 4, 0x05, 0xb4, 4, 2], clock.strip_prefix(&[1, 1]).unwrap_or(&clock), &[1, 3, 3, 7]].concat()
}

impl Sender {
    fn connect(harness: &FullHarness, port: u16, client: u8, byte: u8) -> Result<Sender> {
        let from = SocketAddr::new("127.0.0.1".parse()?, port);
        let client = SocketAddr::new(format!("203.0.113.{client}").parse()?, port);
        let syn = Segment {
            seq: ISN,
            flags: SYN,
            options: syn_options(CLOCK, 0),
            ..Segment::new(from, DOOR.parse()?)
        };
        let outcome = harness.comes_in(&frame(&syn))?;
        let answer = parse(&outcome.frame)?;
        ensure!(outcome.verdict == PASS && answer.flags == SYN | ACK, "{outcome:?}");
        let echo = answer.timestamps().context("no timestamps")?.0;
        Ok(Sender { from, client, ack: answer.seq.wrapping_add(1), echo, byte })
    }

    fn segment(&self, seq: u32, flags: u8, payload: Vec<u8>) -> Result<Vec<u8>> {
        Ok(frame(&Segment {
            seq,
            ack: self.ack,
            flags,
            options: timestamps(CLOCK, self.echo),
            payload,
            ..Segment::new(self.from, DOOR.parse()?)
        }))
    }

    /// Header and twenty bytes.
    fn first(&self) -> Result<Vec<u8>> {
        self.segment(ISN + 1, ACK | PSH, [header(self.client)?, vec![self.byte; 20]].concat())
    }

    /// Fifty more.
    fn second(&self) -> Result<Vec<u8>> {
        self.segment(ISN + 1 + 28 + 20, ACK | PSH, vec![self.byte; 50])
    }

    fn reset(&self) -> Result<Vec<u8>> {
        self.segment(ISN + 1, RST, Vec::new())
    }
}

fn header(client: SocketAddr) -> Result<Vec<u8>> {
    let mut bytes = [0; 64];
    let addresses = Addresses::Inet {
        transport: Transport::Stream,
        source: client,
        destination: "192.0.2.1:443".parse()?,
    };
    let len = V2Encoder::new(&mut bytes, Command::Proxy, &addresses)?.finish()?;
    Ok(bytes[..len].to_vec())
}

/// The backend's answer to this SYN.
fn answer_to(syn: &Segment) -> Result<Vec<u8>> {
    Ok(frame(&Segment {
        seq: 100,
        ack: syn.seq.wrapping_add(1),
        flags: SYN | ACK,
        options: syn_options(9000, syn.timestamps().context("no timestamps")?.0),
        ..Segment::new(syn.to, syn.from)
    }))
}

fn pin_to(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // If it is not allowed, the threads run on any CPU.
    let _ = sched_setaffinity(None, &set);
}

/// The segment that another CPU shows to the program all the time.
#[derive(Default)]
struct Late {
    frames: Mutex<Vec<Vec<u8>>>,
    shown: AtomicU64,
    is_over: AtomicBool,
}

impl Late {
    fn run(&self, harness: &FullHarness) -> Result<()> {
        pin_to(1);
        while !self.is_over.load(Ordering::Relaxed) {
            let frames = self.frames.lock().expect("no panic").clone();
            for frame in &frames {
                harness.comes_in(frame)?;
            }
            self.shown.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn show(&self, frames: Vec<Vec<u8>>) {
        *self.frames.lock().expect("no panic") = frames;
    }
}

fn no_byte(bed: &Bed, rounds: u64) -> Result<()> {
    ip_here(&["link set lo up"])?;
    let _listener = std::net::TcpListener::bind(DOOR)?;
    let harness = harness(bed, false)?;
    let late = Late::default();
    let mut resets = VecDeque::new();
    std::thread::scope(|scope| -> Result<()> {
        let other = scope.spawn(|| late.run(&harness));
        pin_to(0);
        let outcome: Result<()> = (0..rounds).try_for_each(|round| {
            resets.push_front(one_round(&harness, &late, round).with_context(|| format!("round {round}"))?);
            resets.truncate(usize::from(PORTS));
            Ok(())
        });
        late.is_over.store(true, Ordering::Relaxed);
        other.join().expect("no panic")?;
        outcome
    })?;
    // A reset of a dial whose lock was taken at that moment has done nothing.
    for reset in &resets {
        harness.comes_in(reset)?;
    }
    let (busy, begun) = (harness.counter("too_early")?, harness.counter("begun")?);
    println!(
        "{rounds} rounds, {} times beside, {begun} sessions, {busy} segments too early",
        late.shown.load(Ordering::Relaxed)
    );
    ensure!(begun >= rounds * 9 / 10, "{begun} sessions of {rounds} rounds");
    ensure!(harness.dialled() == 0, "{} keys of dials are left", harness.dialled());
    Ok(())
}

/// The first sender's dial is given up, and the second one's takes its place. The first one's second segment
/// comes all the time.
fn one_round(harness: &FullHarness, late: &Late, round: u64) -> Result<Vec<u8>> {
    if round.is_multiple_of(1000) {
        harness.look()?;
    }
    let port = 10_000 + u16::try_from(round % u64::from(PORTS))?;
    let one = Sender::connect(harness, port, 1, b'A')?;
    let other = Sender::connect(harness, port + PORTS, 2, b'B')?;
    harness.dial_next_at(PLACE)?;
    late.show(vec![one.second()?]);
    harness.comes_in(&one.first()?)?;
    // It may be that the other CPU has the lock just now.
    let mut tries = 0;
    let (first, second, reset) = (other.first()?, other.second()?, one.reset()?);
    harness.comes_in(&reset)?;
    harness.dial_next_at(PLACE)?;
    let asked = loop {
        let outcome = harness.comes_in(&first)?;
        match parse(&outcome.frame) {
            Ok(asked) if outcome.verdict == PASS && asked.flags == SYN => break asked,
            _ => tries += 1,
        }
        ensure!(tries < 1000, "no dial: {outcome:?}");
    };
    ensure!(asked.from == other.client, "asked as {}", asked.from);
    harness.comes_in(&second)?;
    let answer = answer_to(&asked)?;
    let told = loop {
        let outcome = harness.comes_in(&answer)?;
        match parse(&outcome.frame) {
            Ok(told) if outcome.verdict == PASS && told.flags & SYN == 0 => break told,
            _ => tries += 1,
        }
        ensure!(tries < 1000, "no session: {outcome:?}");
    };
    ensure!(told.from == other.client && told.to == BACKEND.parse()?, "{told:?}");
    ensure!(told.payload.iter().all(|byte| *byte == b'B'), "bytes of another sender: {told:?}");
    ensure!(told.payload.len() == 20 || told.payload.len() == 70, "{} bytes", told.payload.len());
    harness.end([other.from, DOOR.parse()?], [BACKEND.parse()?, other.client]);
    Ok(reset)
}

/// A sender and its session.
fn begun(harness: &FullHarness) -> Result<Sender> {
    let sender = Sender::connect(harness, 10_000, 1, b'A')?;
    let asked = parse(&harness.comes_in(&sender.first()?)?.frame)?;
    ensure!(asked.flags == SYN && asked.from == sender.client, "{asked:?}");
    let told = parse(&harness.comes_in(&answer_to(&asked)?)?.frame)?;
    ensure!(told.flags & SYN == 0 && told.payload == [b'A'; 20], "no session: {told:?}");
    Ok(sender)
}

/// How often the program has left a connection to truepeer, or has tried to: without a real packet the kernel
/// does not let it.
fn left_to_truepeer(harness: &FullHarness) -> Result<u64> {
    Ok(harness.counter("to_truepeer")? + harness.counter("failed")?)
}

/// splice_in has looked for the session before it began, so full_in gets the segment.
fn again_as_it_begins(bed: &Bed) -> Result<()> {
    ip_here(&["link set lo up"])?;
    let _listener = std::net::TcpListener::bind(DOOR)?;
    let harness = harness(bed, false)?;
    let sender = begun(&harness)?;
    let outcome = harness.comes_in(&sender.first()?)?;
    ensure!(outcome.verdict == DROP, "it goes on: {outcome:?}");
    ensure!(left_to_truepeer(&harness)? == 0, "truepeer gets a connection that has a session");
    ensure!(harness.counter("too_early")? == 1);
    Ok(())
}

fn without_a_slot(bed: &Bed) -> Result<()> {
    ip_here(&["link set lo up"])?;
    let _listener = std::net::TcpListener::bind(DOOR)?;
    let harness = harness(bed, false)?;
    let sender = Sender::connect(&harness, 10_000, 1, b'A')?;
    harness.fill_slots_of(sender.from, DOOR.parse()?);
    harness.comes_in(&sender.first()?)?;
    let counted = [harness.counter("too_early")?, harness.counter("no_place")?, left_to_truepeer(&harness)?];
    ensure!(counted == [0, 1, 1], "too early, no place, left to truepeer: {counted:?}");
    Ok(())
}

/// All places are taken while the backend answers one more dial. Its answer was as before, so the next sender
/// is answered.
fn a_lack_of_places(bed: &Bed) -> Result<()> {
    ip_here(&["link set lo up"])?;
    let _listener = std::net::TcpListener::bind(DOOR)?;
    let harness = harness(bed, false)?;
    let senders =
        (0..=PLACES).map(|n| Sender::connect(&harness, 10_000 + n, 1, b'A')).collect::<Result<Vec<_>>>()?;
    let ask = |sender: &Sender| parse(&harness.comes_in(&sender.first()?)?.frame);
    let asked = senders.iter().map(ask).collect::<Result<Vec<_>>>()?;
    for asked in &asked {
        ensure!(asked.flags == SYN, "{asked:?}");
        harness.comes_in(&answer_to(asked)?)?;
    }
    let counted = [harness.counter("begun")?, harness.counter("no_place")?];
    ensure!(counted == [u64::from(PLACES), 1], "begun, no place: {counted:?}");
    harness.end([senders[0].from, DOOR.parse()?], [BACKEND.parse()?, senders[0].client]);
    Sender::connect(&harness, 11_000, 1, b'A').map(drop)
}

/// A third host knows the addresses. Of the numbers it must guess one that the sender may use: the one behind
/// the SYN, or behind the last byte.
fn a_guessed_reset(bed: &Bed) -> Result<()> {
    const BYTES: u32 = 28 + 20;
    ip_here(&["link set lo up"])?;
    let _listener = std::net::TcpListener::bind(DOOR)?;
    let harness = harness(bed, false)?;
    let sender = Sender::connect(&harness, 10_000, 1, b'A')?;
    let asked = parse(&harness.comes_in(&sender.first()?)?.frame)?;
    for offset in (0..2000).filter(|offset| ![1, 1 + BYTES].contains(offset)) {
        harness.comes_in(&sender.segment(ISN + offset, RST, Vec::new())?)?;
    }
    let told = parse(&harness.comes_in(&answer_to(&asked)?)?.frame)?;
    ensure!(told.flags & SYN == 0 && told.payload == [b'A'; 20], "no session: {told:?}");
    for (port, offset) in [(10_001, 1), (10_002, 1 + BYTES)] {
        let sender = Sender::connect(&harness, port, 1, b'A')?;
        harness.comes_in(&sender.first()?)?;
        ensure!(harness.dialled() == 2, "no dial");
        harness.comes_in(&sender.segment(ISN + offset, RST, Vec::new())?)?;
        ensure!(harness.dialled() == 0, "the sender's own reset at {offset}");
    }
    Ok(())
}

/// So many times the other CPU must have done its part while the program stood still.
const IN_TIME: u32 = 20;

/// A program has found the dial that a reset is for. Before it has the lock, the dial is given up, and its
/// place is another connection's.
fn a_late_reset(bed: &Bed) -> Result<()> {
    ip_here(&["link set lo up"])?;
    let _listener = std::net::TcpListener::bind(DOOR)?;
    let harness = harness(bed, true)?;
    pin_to(0);
    let mut in_time = 0;
    for round in 0..1000 {
        harness.look()?;
        in_time += u32::from(one_late_reset(&harness, round).with_context(|| format!("round {round}"))?);
        if in_time == IN_TIME {
            return Ok(());
        }
    }
    anyhow::bail!("the program has waited long enough {in_time} times only")
}

/// Whether the program has waited until the place was the other connection's. If not, that one's dial must
/// stand, too.
fn one_late_reset(harness: &FullHarness, round: u16) -> Result<bool> {
    let (one, other) = (
        Sender::connect(harness, 10_000 + round, 1, b'A')?,
        Sender::connect(harness, 30_000 + round, 2, b'B')?,
    );
    harness.dial_next_at(PLACE)?;
    harness.comes_in(&one.first()?)?;
    let (first, reset) = (other.first()?, one.reset()?);
    harness.stop_next();
    let (asked, in_time) = std::thread::scope(|scope| -> Result<_> {
        let late = scope.spawn(|| {
            pin_to(1);
            harness.comes_in(&reset)
        });
        while !harness.has_stopped() && !late.is_finished() {
            std::thread::yield_now();
        }
        ensure!(harness.has_stopped(), "it has found no dial");
        harness.comes_in(&reset)?;
        harness.dial_next_at(PLACE)?;
        let asked = harness.comes_in(&first);
        harness.let_go();
        late.join().expect("no panic")?;
        Ok((parse(&asked?.frame)?, harness.has_waited()))
    })?;
    ensure!(asked.flags == SYN && asked.from == other.client, "{asked:?}");
    let told = parse(&harness.comes_in(&answer_to(&asked)?)?.frame)?;
    ensure!(
        told.flags & SYN == 0 && told.payload == [b'B'; 20],
        "the reset has ended another dial: {told:?}"
    );
    harness.end([other.from, DOOR.parse()?], [BACKEND.parse()?, other.client]);
    Ok(in_time)
}
