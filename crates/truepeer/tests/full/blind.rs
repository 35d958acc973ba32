//! Forged packets: the kernel remembers nothing of a SYN, and only a host that has got our SYN-ACK can go on.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::stand::SERVED;
use anyhow::{Context as _, Result, ensure};
use truepeer_sys::packet::PacketSocket;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::packets::{ACK, FIN, PSH, RST, SYN, Segment, Talker, Wire, timestamps};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Truepeer, client, kernel_counter, tests};

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const DOOR: &str = "10.77.0.2:8443";
const BACKEND: &str = "10.77.0.2:80";
/// A backend behind the sender.
const FAR: &str = "10.77.0.3:80";
/// Another sender that is allowed, there.
const NEW_SENDER: &str = "10.77.0.5";
const SITE: &str = "192.0.2.1:443";
/// How long nothing must happen.
const MOMENT: Duration = Duration::from_millis(300);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        our_numbers_are_told_to_nobody_else,
        who_has_not_heard_our_answer_makes_no_session,
        the_right_number_with_another_clock_makes_no_session,
        other_programs_connections_to_the_backend_teach_nothing,
        a_header_within_the_stream_is_not_taken,
        a_wrong_sum_makes_no_session,
        a_new_sender_is_answered_by_its_own_device_only,
        a_header_by_another_device_than_its_syn_makes_no_session,
        a_clock_that_stands_still_is_not_old_for_the_backend,
        forwarded_connections_to_other_hosts_pass,
        a_forged_syn_in_the_middle_is_answered_to_the_true_sender,
        a_third_host_changes_nothing_of_a_session,
        a_client_on_the_doors_own_port_is_served_at_once,
        a_listener_on_loopback_is_not_reached_from_a_wire,
    ]
}

/// A header that the kernel gives up comes to truepeer after so long.
const GIVEN_UP: Duration = Duration::from_secs(3);

/// The test is the sender and makes its packets by hand; relay and backend are on the host at the wire's end.
struct Ground {
    wire: Wire,
    /// The near end of another device of the host. The programs are attached to it as well: it has an
    /// address, and was there before truepeer.
    far: PacketSocket,
    truepeer: Running,
    backend: Running,
}

impl Ground {
    fn make(bed: &Bed) -> Result<Ground> {
        Self::listening(bed, DOOR)
    }

    fn listening(bed: &Bed, at: &str) -> Result<Ground> {
        mount_bpf_in_place()?;
        let wire = Wire::make()?;
        let far = wire.another_device("far")?;
        wire.host.ip(&["addr add 10.99.0.1/24 dev far"])?;
        // The client's segments come in at the loopback device.
        wire.host.run(|| fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0"))??;
        let backend =
            Behaviour::Echo.start_program(bed, &[BACKEND], |program| program.in_netns(&wire.host.netns))?;
        let truepeer = Truepeer::proxy(TRUEPEER)
            .listen(at)
            .ipv4(BACKEND)
            .allow("10.77.0.1")
            .allow(NEW_SENDER)
            .args(&["--splice", "full", "--routes", "auto", "--log-format", "text", "-v", "2"])
            .with(|program| program.in_netns(&wire.host.netns))
            .start(bed)?;
        let ground = Ground { wire, far, truepeer, backend };
        ground.truepeer.wait_for_log(SERVED)?;
        ensure!(ground.truepeer.log().contains(", on far, lo, wire"), "{}", ground.truepeer.log());
        // Without a window scale: truepeer's own.
        let mut first = Talker::new(&ground.wire, "10.77.0.1:1000".parse()?, DOOR.parse()?, 77).with_clock(1);
        first.open()?;
        first.say(&header(4999)?)?;
        ground.backend.wait_for_log("203.0.113.7:4999 accepted")?;
        Ok(ground)
    }

    fn talker(&self, port: u16, isn: u32) -> Result<Talker<'_>> {
        Ok(Talker::new(&self.wire, SocketAddr::new("10.77.0.1".parse()?, port), DOOR.parse()?, isn)
            .with_clock(5000))
    }

    /// Sends a SYN with the usual options, and hears the kernel's answer.
    fn ask(&self, talker: &mut Talker<'_>) -> Result<Segment> {
        talker.send(&usual_syn(talker))?;
        let answer = talker.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
        ensure!(answer.flags == SYN | ACK && answer.ack == talker.isn.wrapping_add(1), "{answer:?}");
        talker.seq = talker.isn.wrapping_add(1);
        talker.ack = answer.seq.wrapping_add(1);
        let (value, _) = answer.timestamps().context("no timestamps")?;
        talker.clock = Some((5001, value));
        Ok(answer)
    }

    /// Checks that the kernel makes a session of this sender, which knows the numbers, and that the backend
    /// echoes.
    fn goes_on(&self, talker: &mut Talker<'_>, client: u16) -> Result<()> {
        talker.say(&header(client)?)?;
        talker.is_acknowledged()?;
        self.backend.wait_for_log(&format!("203.0.113.7:{client} accepted"))?;
        talker.say(b"hello")?;
        talker.hear("the echo", |segment| segment.payload == b"hello").map(drop)
    }

    fn has_none_of(&self, client: &str) -> Result<()> {
        std::thread::sleep(MOMENT);
        ensure!(!self.backend.log().contains(client), "{}\n{}", self.backend.log(), self.truepeer.log());
        Ok(())
    }
}

fn header(port: u16) -> Result<Vec<u8>> {
    client::v2(format!("203.0.113.7:{port}"), SITE)
}

/// A SYN with the options as Linux writes them.
fn usual_syn(talker: &Talker<'_>) -> Segment {
    let clock = talker.clock.map(|(now, _)| timestamps(now, 0)).unwrap_or_default();
    // The helper pads the option in front.
    let clock = clock.strip_prefix(&[1, 1]).unwrap_or(&clock);
    Segment {
        seq: talker.isn,
        flags: SYN,
        options: [&[2, 4, 0x05, 0xb4, 4, 2], clock, &[1, 3, 3, 7]].concat(),
        ..Segment::new(talker.from, talker.to)
    }
}

fn our_numbers_are_told_to_nobody_else(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut seen = BTreeSet::new();
    let (mut last, mut near) = (0_u32, 0);
    for port in 2000..4000_u16 {
        let answer = ground.ask(&mut ground.talker(port, u32::from(port) << 8)?)?;
        ensure!(answer.window == 1024, "port {port}: {} bytes can't be held", answer.window);
        ensure!(seen.insert(answer.seq), "{} twice", answer.seq);
        near += u32::from(answer.seq.wrapping_sub(last) < 1 << 22 || last.wrapping_sub(answer.seq) < 1 << 22);
        last = answer.seq;
    }
    // 2 of 2000 by chance.
    ensure!(near < 12, "{near} of 2000 numbers are near the one before");
    // The same SYN again: the same number, though nothing was remembered.
    let mut talker = ground.talker(2000, 2000 << 8)?;
    let again = ground.ask(&mut talker)?;
    ensure!(seen.contains(&again.seq), "another number for the same SYN");
    // And one with another number of the sender's: another cookie.
    let other = ground.ask(&mut ground.talker(2000, 4711)?)?;
    ensure!(other.seq != again.seq, "the same number for another SYN");
    ground.goes_on(&mut talker, 5000)
}

fn who_has_not_heard_our_answer_makes_no_session(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut chance = Chance::new(1);
    let mut talker = ground.talker(2000, 1 << 20)?;
    let answer = ground.ask(&mut talker)?;
    let true_ack = talker.ack;
    for number in 0..10_000_u32 {
        let guess = u32::try_from(chance.next() >> 32)?;
        // And once the right first half, with a second one that is next to the right one.
        talker.ack = if number == 0 { true_ack ^ 1 } else { guess };
        if talker.ack >> 16 != true_ack >> 16 || number == 0 {
            talker.send(&talker.data(&header(6000)?))?;
        }
    }
    ground.has_none_of("203.0.113.7:6000")?;
    // Resets, and acknowledgements that the sender would not send, change nothing either.
    talker.ack = true_ack;
    talker.send(&Segment { seq: talker.seq.wrapping_add(70_000), ..talker.segment(RST, b"") })?;
    ensure!(answer.seq.wrapping_add(1) == talker.ack);
    ground.goes_on(&mut talker, 5000)
}

/// A host that guesses the number must guess our clock as well.
fn the_right_number_with_another_clock_makes_no_session(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut talker = ground.talker(2000, 1 << 20)?;
    ground.ask(&mut talker)?;
    let (own, echo) = talker.clock.context("no clock")?;
    // The options' bits stay, which the cookie covers.
    for away in [600_064, 1 << 30, 1 << 31, 12_800_u32.wrapping_neg()] {
        talker.clock = Some((own, echo.wrapping_sub(away)));
        talker.send(&talker.data(&header(6000)?))?;
    }
    ground.has_none_of("203.0.113.7:6000")?;
    // The first of these is that of a sender which has been silent for ten minutes.
    let reset = talker.hear("a reset", |segment| segment.flags & RST != 0)?;
    ensure!(reset.seq == talker.ack, "the sender does not believe {reset:?}");
    talker.clock = Some((own, echo));
    ground.goes_on(&mut talker, 5000)
}

/// A health check of this host connects without the mark that routes the answers of a backend on this host.
fn other_programs_connections_to_the_backend_teach_nothing(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let _check = ground.wire.host.run(|| client::connect(BACKEND))??;
    let mut talker = ground.talker(2000, 99)?;
    ground.ask(&mut talker)?;
    let began = Instant::now();
    ground.goes_on(&mut talker, 5000)?;
    let took = began.elapsed();
    ensure!(took < GIVEN_UP, "the session took {took:?}");
    Ok(())
}

/// The segment with the sender's header is lost, and the client has written another header into its data.
fn a_header_within_the_stream_is_not_taken(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut talker = ground.talker(2000, 99)?;
    ground.ask(&mut talker)?;
    let first = talker.seq;
    talker.seq = first.wrapping_add(28);
    talker.send(&talker.data(&header(6000)?))?;
    ground.has_none_of("203.0.113.7:6000")?;
    let is_reset = talker.hears_within(Duration::ZERO, |segment| segment.flags & RST != 0)?;
    ensure!(!is_reset, "the sender was reset");
    talker.seq = first;
    ground.goes_on(&mut talker, 5000)?;
    ground.has_none_of("203.0.113.7:6000")
}

fn a_wrong_sum_makes_no_session(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut talker = ground.talker(2000, 99)?;
    ground.wire.send(&usual_syn(&talker).packet().with_wrong_sum())?;
    let is_answered = talker.hears_within(MOMENT, |segment| segment.flags & SYN != 0)?;
    ensure!(!is_answered, "a damaged SYN was answered");
    ground.ask(&mut talker)?;
    ground.wire.send(&talker.segment(ACK | PSH, &header(6000)?).packet().with_wrong_sum())?;
    ground.has_none_of("203.0.113.7:6000")?;
    ground.goes_on(&mut talker, 5000)
}

/// The sender is new. The route to it leads by the wire.
fn a_new_sender_is_answered_by_its_own_device_only(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    ground.wire.host.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    let from = SocketAddr::new(NEW_SENDER.parse()?, 2000);
    let mut talker = Talker::new(&ground.wire, from, DOOR.parse()?, 99).with_clock(5000);
    ground.far.send(&Wire::frame_to([2, 0, 0, 0, 1, 2], &usual_syn(&talker).packet(), &[]))?;
    // truepeer's own listener answers by the wire; its window is another.
    let answer = talker.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
    ensure!(answer.window != 1024, "the kernel's answer to a SYN by another device: {answer:?}");
    let mut buffer = vec![0; 2000];
    while let Some(len) = ground.far.try_recv(&mut buffer)? {
        let segment = buffer.get(14..len).and_then(Segment::parse);
        ensure!(segment.is_none_or(|segment| segment.flags & SYN == 0), "an answer by the other device");
    }
    talker.from.set_port(2001);
    let answer = ground.ask(&mut talker)?;
    ensure!(answer.window == 1024, "not the kernel's answer: {answer:?}");
    ground.goes_on(&mut talker, 5000)
}

/// Somebody on another link knows all numbers, but can't send as this sender's device.
fn a_header_by_another_device_than_its_syn_makes_no_session(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut talker = ground.talker(2000, 99)?;
    ground.ask(&mut talker)?;
    ground.far.send(&Wire::frame_to([2, 0, 0, 0, 1, 2], &talker.data(&header(6000)?).packet(), &[]))?;
    ground.has_none_of("203.0.113.7:6000")?;
    ensure!(!ground.truepeer.log().contains("203.0.113.7:6000"), "{}", ground.truepeer.log());
    ground.goes_on(&mut talker, 5000)
}

/// A clock may tick once in 10 ms (RFC 7323: in a second), and segments may overtake each other. Here the
/// test is the backend as well.
fn a_clock_that_stands_still_is_not_old_for_the_backend(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let wire = Wire::make()?;
    wire.host.run(|| fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0"))??;
    let truepeer = Truepeer::proxy(TRUEPEER)
        .listen(DOOR)
        .ipv4(FAR)
        .allow("10.77.0.1")
        .args(&["--splice", "full", "--routes", "auto", "--log-format", "text", "-v", "2"])
        .with(|program| program.in_netns(&wire.host.netns))
        .start(bed)?;
    truepeer.wait_for_log(SERVED)?;
    let talker = |port, clock| -> Result<Talker<'_>> {
        Ok(Talker::new(&wire, SocketAddr::new("10.77.0.1".parse()?, port), DOOR.parse()?, 77)
            .with_clock(clock))
    };
    let mut first = talker(1000, 1)?;
    first.open()?;
    first.say(&header(4999)?)?;
    answer_as_backend(&wire, 4999)?;
    wire.hear("truepeer's connection", |segment| segment.to == far() && segment.flags == ACK)?;

    let mut talker = talker(2000, 5000)?;
    talker.send(&usual_syn(&talker))?;
    let answer = talker.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
    ensure!(answer.window == 1024, "not the kernel's: {answer:?}");
    talker.seq = 78;
    talker.ack = answer.seq.wrapping_add(1);
    talker.clock = Some((5001, answer.timestamps().context("no timestamps")?.0));
    talker.say(&header(5000)?)?;
    let asked = answer_as_backend(&wire, 5000)?;
    let told = |what, wanted: &dyn Fn(&Segment) -> bool| -> Result<u32> {
        let segment = wire.hear(what, |segment| segment.to == far() && wanted(segment))?;
        Ok(segment.timestamps().context("no timestamps")?.0)
    };
    let begun = told("the session", &|segment| segment.flags == ACK && segment.from.port() == 5000)?;
    talker.say(b"hello")?;
    let data = told("data", &|segment| segment.payload == b"hello")?;
    ensure!(begun.wrapping_sub(asked) <= 1, "{begun} after {asked}, though the sender's clock stands still");
    ensure!(data.wrapping_sub(begun) < 1 << 31, "{data} is older than {begun}");
    Ok(())
}

fn far() -> SocketAddr {
    FAR.parse().expect("an address")
}

/// Takes the SYN of this client 60 ms later. Returns its timestamp.
fn answer_as_backend(wire: &Wire, client: u16) -> Result<u32> {
    let syn = wire.hear("the SYN", |segment| segment.to == far() && segment.from.port() == client)?;
    ensure!(syn.flags == SYN, "{syn:?}");
    let (value, _) = syn.timestamps().context("no timestamps")?;
    std::thread::sleep(Duration::from_millis(60));
    let clock = timestamps(9000, value);
    let clock = clock.strip_prefix(&[1, 1]).unwrap_or(&clock);
    let answer = Segment {
        seq: 100,
        ack: syn.seq.wrapping_add(1),
        flags: SYN | ACK,
        options: [&[2, 4, 0x05, 0xb4, 4, 2], clock, &[1, 3, 3, 7]].concat(),
        ..Segment::new(far(), syn.from)
    };
    wire.send(&answer.packet())?;
    Ok(value)
}

/// One of 65,536 forwarded connections looks by chance like an answer to the kernel's handshakes, if its port
/// is that of a listener at all addresses.
fn forwarded_connections_to_other_hosts_pass(bed: &Bed) -> Result<()> {
    let ground = Ground::listening(bed, "0.0.0.0:8443")?;
    ground
        .wire
        .host
        .ip(&["route add 10.88.0.0/24 dev far", "neigh add 10.88.0.9 lladdr 02:00:00:00:01:01 dev far"])?;
    ground.wire.host.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
    let passed = || ground.wire.host.run(|| kernel_counter("ForwDatagrams"))?;
    let before = passed()?;
    let other =
        Talker::new(&ground.wire, "10.77.0.1:2000".parse()?, "10.88.0.9:8443".parse()?, 1).with_clock(5000);
    for half in 0..=u16::MAX {
        other.send(&Segment { ack: (u32::from(half) << 16) + 1, ..other.data(b"x") })?;
        if half % 512 == 0 {
            // The host's queue is short.
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    std::thread::sleep(MOMENT);
    let count = passed()? - before;
    ensure!(count == 1 << 16, "{count} of 65536 have passed");
    Ok(())
}

/// The answer tells the numbers of the session.
fn a_forged_syn_in_the_middle_is_answered_to_the_true_sender(bed: &Bed) -> Result<()> {
    let ground = Ground::make(bed)?;
    let mut talker = ground.talker(2000, 99)?;
    ground.ask(&mut talker)?;
    ground.goes_on(&mut talker, 5000)?;
    ground.wire.forget()?;
    ground.far.send(&Wire::frame_to([2, 0, 0, 0, 1, 2], &usual_syn(&talker).packet(), &[]))?;
    // Other acknowledgements have timestamps.
    let is_question = |segment: &Segment| {
        segment.flags == ACK && segment.timestamps().is_none() && segment.ack == talker.seq
    };
    let question = talker.hear("the question", is_question)?;
    ensure!(question.window > 0, "the sender believes that it may send nothing more");
    let mut buffer = vec![0; 2000];
    while let Some(len) = ground.far.try_recv(&mut buffer)? {
        let segment = buffer.get(14..len).and_then(Segment::parse);
        ensure!(segment.is_none_or(|segment| segment.from != talker.to), "told to the other host");
    }
    talker.ack = talker.ack.wrapping_add(5);
    talker.say(b"world")?;
    talker.hear("the echo", |segment| segment.payload == b"world").map(drop)
}

/// It knows the addresses and ports of a session that the kernel has made, but none of its numbers.
fn a_third_host_changes_nothing_of_a_session(bed: &Bed) -> Result<()> {
    const FLAGS: [u8; 8] = [SYN, RST | ACK, FIN | ACK, ACK, ACK | PSH, ACK | PSH | FIN, 0, RST];
    const ERRORS: [(u8, u8); 5] = [(3, 4), (3, 1), (3, 3), (11, 0), (12, 0)];
    let ground = Ground::make(bed)?;
    let mut talker = ground.talker(2000, 99)?;
    ground.ask(&mut talker)?;
    ground.goes_on(&mut talker, 5000)?;
    talker.ack = talker.ack.wrapping_add(5);
    let mut chance = Chance::new(1);
    let mut number = move || u32::try_from(chance.next() >> 32);
    for round in 0..600_u32 {
        // The last segment is a reset: nothing undoes it if it is believed.
        // Half of the numbers are within the window, and none is the exact one. No acknowledgement is near
        // what was sent.
        let seq = if round % 2 == 0 { number()? } else { talker.seq.wrapping_add(1 + number()? % 2000) };
        let ack = talker.ack.wrapping_add(1 << 27).wrapping_add(number()? % (3 << 30));
        let flags = FLAGS[round as usize % FLAGS.len()];
        let payload =
            if flags & (SYN | RST) == 0 { vec![b'X'; (number()? % 500) as usize] } else { Vec::new() };
        let options = if round % 3 == 0 { timestamps(number()?, number()?) } else { Vec::new() };
        let segment = Segment::new(talker.from, talker.to);
        talker.send(&Segment { seq, ack, flags, window: 0, payload, options, ..segment })?;
        // A router's error about a segment that we may have sent.
        let quoted = Segment { seq: ack, flags: ACK, ..Segment::new(talker.to, talker.from) }.packet();
        let (kind, code) = ERRORS[round as usize % ERRORS.len()];
        ground.wire.send(&quoted.error("10.77.0.9".parse()?, kind, code, 576))?;
        if round % 50 == 0 {
            // The host's queue is short.
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    // truepeer looks at each session once a second, and logs its end.
    std::thread::sleep(Duration::from_secs(2));
    let is_ended = |line: &str| line.contains("203.0.113.7:5000") && line.contains("duration");
    ensure!(!ground.truepeer.log().lines().any(is_ended), "{}", ground.truepeer.log());
    let is_reset = talker.hears_within(Duration::ZERO, |segment| segment.flags & (RST | FIN | SYN) != 0)?;
    ensure!(!is_reset, "the sender hears an end, or a beginning");
    talker.say(b"world")?;
    talker.hear("the echo", |segment| segment.payload == b"world")?;
    // The line that was looked for above.
    talker.send(&Segment { flags: RST, ..talker.data(b"") })?;
    truepeer_testbed::wait_for("the session's line", || ground.truepeer.log().lines().any(is_ended))
}

/// The listener is at all addresses, so the backend's answer to this client looks like a segment for it.
fn a_client_on_the_doors_own_port_is_served_at_once(bed: &Bed) -> Result<()> {
    let ground = Ground::listening(bed, "0.0.0.0:8443")?;
    let mut talker = ground.talker(2000, 99)?;
    ground.ask(&mut talker)?;
    let began = Instant::now();
    ground.goes_on(&mut talker, 8443)?;
    let took = began.elapsed();
    ensure!(took < GIVEN_UP, "the session took {took:?}");
    Ok(())
}

/// The kernel drops such a packet as a martian, but the programs run before that. They don't answer it
/// either.
fn a_listener_on_loopback_is_not_reached_from_a_wire(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let wire = Wire::make()?;
    wire.host.run(|| -> Result<()> {
        fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")?;
        // Where a host forwards, its routes say by which device a sender is answered.
        fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
        Ok(fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?)
    })??;
    let backends = [BACKEND, "[fd77::2]:80"];
    let listeners = ["127.0.0.1:8443", "[::1]:8443"];
    let backend =
        Behaviour::Echo.start_program(bed, &backends, |program| program.in_netns(&wire.host.netns))?;
    let admin = bed.dir().join("admin").display().to_string();
    let truepeer = Truepeer::proxy(TRUEPEER)
        .listen(listeners[0])
        .listen(listeners[1])
        .ipv4(backends[0])
        .ipv6(backends[1])
        .allow("any")
        .option("--admin", &admin)
        .args(&["--splice", "full", "--routes", "auto", "--log-format", "text", "-v", "2"])
        .with(|program| program.in_netns(&wire.host.netns))
        .start(bed)?;
    let answered = || -> Result<Option<String>> {
        let status = Program::new(TRUEPEER).args(["status", "--admin", &admin]).run(bed)?;
        Ok(status.lines().find(|line| line.ends_with("(syn_answered)")).map(str::to_owned))
    };
    let senders = ["10.77.0.1:2000", "[fd77::1]:2000"];
    let (clients, sites) = (["203.0.113.7", "[2001:db8::7]"], [SITE, "[2001:db8::1]:443"]);
    for family in 0..2 {
        truepeer.wait_for_log(&format!("{SERVED} {}", listeners[family]))?;
        let session = |port: u16| -> Result<()> {
            let client = format!("{}:{port}", clients[family]);
            let mut stream = wire.host.run(|| client::connect(listeners[family]))??;
            stream.write_all(&client::v2(&client, sites[family])?)?;
            backend.wait_for_log(&format!("{client} accepted"))
        };
        session(4999)?;
        let before = answered()?;
        let (from, to) = (senders[family].parse()?, listeners[family].parse()?);
        let talker = Talker::new(&wire, from, to, 99).with_clock(5000);
        for _ in 0..3 {
            talker.send(&usual_syn(&talker))?;
            let is_answered = talker.hears_within(MOMENT, |segment| segment.flags & SYN != 0)?;
            ensure!(!is_answered, "a host at the wire is answered as {to}");
        }
        ensure!(before.is_some() && answered()? == before, "{before:?}, {:?}", answered()?);
        session(5000)?;
        ensure!(answered()? != before, "the kernel's programs don't serve {to}");
    }
    Ok(())
}
