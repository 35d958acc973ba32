//! A third host knows the addresses and ports of a session, and sees none of its packets.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_splice::Progress;
use truepeer_sys::packet::PacketSocket;
use truepeer_sys::repair::offered_window;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, FIN, PSH, Packet, RST, SYN, Segment, Wire, timestamps};
use truepeer_testbed::{Bed, NetNs, ip_here};

use crate::line::{Backend, ByHand, Line};

/// Hand-made packets of each kind, in each stage, from each side.
const BLIND: u64 = 300;
/// Around each number that the table knows.
const NEAR: u32 = 70_000;

/// No peer offers a window that is wider than half of this. An acknowledgement this far from what was sent is
/// never believed.
const FAR: u32 = 1 << 27;

/// Its only way is through a router, which forwards whatever it sends.
struct ThirdHost {
    socket: PacketSocket,
    _netns: NetNs,
}

const ITS_LINK: &str = "02:00:00:00:09:01";
const ROUTERS_LINK: [u8; 6] = [2, 0, 0, 0, 9, 2];

impl ThirdHost {
    /// Joined to the router `near`.
    fn join(line: &Line) -> Result<ThirdHost> {
        let (near, netns) = (line.host("near"), NetNs::create()?);
        let other = format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
        let [a, b, c, d, e, f] = ROUTERS_LINK;
        near.ip(&[
            &format!("link add third address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} type veth peer name wire address {ITS_LINK} netns {other}"),
            "link set third up",
        ])?;
        crate::stand::without_rp_filter(near)?;
        let socket = netns.run(|| -> Result<_> {
            ip_here(&["link set wire up"])?;
            Ok(PacketSocket::open("wire")?)
        })??;
        Ok(ThirdHost { socket, _netns: netns })
    }

    fn send(&self, packet: &Packet) -> Result<()> {
        let frame = Wire::frame_to(ROUTERS_LINK, packet, &[]);
        // A full queue: the router has to work first.
        while self.socket.send(&frame).is_err() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Numbers that a third host makes up. `expected`, the number that we expect of this peer, it guesses nearly
/// right half of the time. It never guesses an acknowledgement near `nxt`, the number that we send next: with
/// one of some 60,000 it does, and then a kernel's socket, too, takes the segment.
fn blind(
    chance: &mut Chance,
    (peer, own): (SocketAddr, SocketAddr),
    has_syns: bool,
    (expected, nxt): (u32, u32),
) -> Result<Packet> {
    let mut number = || u32::try_from(chance.next() >> 32);
    let (mut seq, far, value, echo) = (number()?, number()?, number()?, number()?);
    let ack = nxt.wrapping_add(FAR + far % (u32::MAX - 2 * FAR));
    if chance.below(2) == 0 {
        seq = expected.wrapping_add(u32::try_from(1 + chance.below(2000))?);
    }
    let flags = chance.one_of(&[
        SYN,
        SYN | ACK,
        RST,
        RST | ACK,
        FIN,
        FIN | ACK,
        ACK,
        ACK | PSH,
        ACK | PSH | FIN,
        0,
        SYN | FIN,
        SYN | RST,
    ]);
    let flags = if has_syns { flags } else { flags & !SYN };
    let len = chance.one_of(&[0, 0, 1, 500, 1400]);
    let payload = if flags & (RST | SYN) == 0 { chance.bytes(len) } else { Vec::new() };
    // A peer that believes a window of zero stops.
    let window = chance.one_of(&[0, 0, 1, 1000, u16::MAX]);
    let options = if chance.below(2) == 0 { timestamps(value, echo) } else { Vec::new() };
    let segment = Segment { seq, ack, flags, window, payload, options, ..Segment::new(peer, own) };
    if chance.below(3) > 0 {
        return Ok(segment.packet());
    }
    // About a segment that we may have sent, by a router that there may be.
    let quoted = Segment { seq, ack, flags: ACK, ..Segment::new(own, peer) }.packet();
    let (kind, code) = if own.is_ipv4() {
        chance.one_of(&[(3, 4), (3, 1), (3, 3), (11, 0), (4, 0), (12, 0), (5, 1)])
    } else {
        chance.one_of(&[(2, 0), (1, 0), (1, 4), (3, 0), (4, 1)])
    };
    let router: IpAddr = if own.is_ipv4() { "10.77.0.1" } else { "fd77::1" }.parse()?;
    Ok(quoted.error(router, kind, code, 576))
}

/// All that was sent has been answered.
fn settle(session: &ByHand) -> Vec<(String, u64)> {
    let mut last = session.entry();
    loop {
        thread::sleep(Duration::from_millis(60));
        let now = session.entry();
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Ignores a wider window: a peer that had to answer may have read more meanwhile.
fn is_same(was: &(String, u64), is: &(String, u64)) -> bool {
    let grown = is.1.wrapping_sub(was.1) & 0xffff_ffff;
    was == is || (["edge", "said_edge", "max_window"].contains(&was.0.as_str()) && grown < 1 << 20)
}

/// The window that each end believes that it is offered.
fn offered_windows(session: &ByHand) -> Result<[u32; 2]> {
    let [sender, backend] = &session.ends;
    Ok([offered_window(sender.as_fd())?, offered_window(backend.as_fd())?])
}

fn is_unchanged(session: &ByHand, before: &[(String, u64)], what: &str) -> Result<()> {
    let after = settle(session);
    let differs: Vec<_> = before.iter().zip(&after).filter(|(was, is)| !is_same(was, is)).collect();
    ensure!(differs.is_empty() && before.len() == after.len(), "{what}: changed (from, to): {differs:?}");
    Ok(())
}

/// A word of both faces.
pub(crate) fn words(entry: &[(String, u64)], name: &str) -> Vec<u32> {
    let of_name = entry.iter().filter(|(other, _)| other == name);
    of_name.filter_map(|(_, value)| u32::try_from(*value).ok()).collect()
}

/// The session in a stage: nothing that a third host sends changes the table, and its bytes go on.
fn withstands(third: &ThirdHost, session: &mut ByHand, stage: &str, has_syns: bool) -> Result<()> {
    let sides = session.tuples;
    let mut chance = Chance::new(stage.len() as u64);
    let before = settle(session);
    ensure!(before.len() > 30, "the table's entry was not read: {before:?}");
    let numbers: Vec<_> = words(&before, "ack").into_iter().zip(words(&before, "nxt")).collect();
    for number in 0..BLIND {
        for (side, numbers) in sides.into_iter().zip(&numbers) {
            third
                .send(&blind(&mut chance, side, has_syns, *numbers)?)
                .with_context(|| format!("{stage}, number {number}"))?;
        }
    }
    is_unchanged(session, &before, stage)
}

pub(crate) fn changes_nothing(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let mut session = line.session(v6)?;
    session.say(0, b"before")?;
    line.arm(&mut session)?;
    let both_speak = |session: &mut ByHand, stage: &str| -> Result<()> {
        for side in [0, 1] {
            session.say(side, &[5; 3000]).with_context(|| format!("{stage}, from {side}"))?;
        }
        Ok(())
    };
    both_speak(&mut session, "armed")?;
    withstands(&third, &mut session, "armed", true)?;
    both_speak(&mut session, "armed, after the attack")?;
    session.go_to(Progress::Held)?;
    withstands(&third, &mut session, "held", true)?;
    both_speak(&mut session, "held")?;
    session.go_to(Progress::Tail)?;
    both_speak(&mut session, "tail")?;
    withstands(&third, &mut session, "tail", true)?;
    both_speak(&mut session, "tail, after the attack")?;
    session.offload()?;
    both_speak(&mut session, "spliced")?;
    withstands(&third, &mut session, "spliced", true)?;
    both_speak(&mut session, "spliced, after the attack")?;
    // One end has ended; the other goes on.
    session.ends[0].shutdown(std::net::Shutdown::Write)?;
    session.hear_end(1)?;
    withstands(&third, &mut session, "half closed", true)?;
    session.say(1, &[6; 3000])?;
    session.ends[1].shutdown(std::net::Shutdown::Write)?;
    session.hear_end(0)?;
    let stage = |session: &ByHand| session.entry().first().map(|(_, stage)| *stage);
    truepeer_testbed::wait_for("CLOSING", || stage(&session) == Some(4))?;
    // A SYN behind all numbers of the old connection is a new one's, as in TIME_WAIT: half of all blind SYNs
    // are.
    withstands(&third, &mut session, "closing", false)?;
    ensure!(line.counter("errors_translated")? == 0, "a forged ICMP error went on");
    Ok(())
}

/// RFC 5961: of all numbers near the window only the exact one resets, and no acknowledgement or window of a
/// third host counts.
pub(crate) fn sweep(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let mut session = line.spliced(v6)?;
    session.say(0, &[5; 3000])?;
    session.say(1, &[6; 3000])?;
    let before = settle(&session);
    let (acks, nxts) = (words(&before, "ack"), words(&before, "nxt"));
    for (side, (peer, own)) in session.tuples.into_iter().enumerate() {
        // The number of a reset that would count, and the acknowledgement of a segment that would.
        let (exact, nxt) = (acks[side], nxts[side]);
        let mut segment = Segment::new(peer, own);
        for off in (0..2 * NEAR).map(|off| off.wrapping_sub(NEAR)).filter(|off| *off != 0) {
            (segment.seq, segment.ack) = (exact.wrapping_add(off), nxt);
            segment.flags = if off % 2 == 0 { RST } else { RST | ACK };
            third.send(&segment.packet())?;
        }
        is_unchanged(&session, &before, &format!("resets from side {side}"))?;
        // The exact place, but acknowledging what was not sent, or was acknowledged too long ago.
        for off in (1..NEAR).step_by(7) {
            (segment.seq, segment.ack) = (exact, nxt.wrapping_add(off));
            (segment.flags, segment.window) = (ACK | FIN, 0);
            third.send(&segment.packet())?;
            // An error about a segment which is not under way: everything is acknowledged.
            let seq = nxt.wrapping_add(off).wrapping_sub(NEAR / 2);
            let quoted = Segment { seq, flags: ACK, ..Segment::new(own, peer) }.packet();
            let (kind, code) = if v6 { (2, 0) } else { (3, 4) };
            third.send(&quoted.error(peer.ip(), kind, code, 576))?;
        }
        is_unchanged(&session, &before, &format!("acknowledgements from side {side}"))?;
    }
    ensure!(line.counter("errors_translated")? == 0, "a forged ICMP error went on");
    ensure!(line.counter("errors_dropped")? > u64::from(NEAR / 7), "the forged errors did not come");
    session.say(0, &[5; 3000])?;
    session.say(1, &[6; 3000])
}

/// A segment that was overtaken may acknowledge less than the table's window reaches back, and yet enough for
/// the other peer, which was offered more before the session left. If it went on, the other peer would take
/// its end, and the table would never learn of it.
pub(crate) fn an_old_end_ends_nothing(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let mut session = line.session_to(v6, Backend { receive_buffer: Some(16384), ..Backend::default() })?;
    session.say(0, b"before")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    session.go_to(Progress::Held)?;
    // Until our offer, which was wider than the backend's, is used up.
    for _ in 0..30 {
        session.say(0, &[5; 4000])?;
    }
    session.offload()?;
    session.say(0, &[5; 3000])?;
    session.say(1, &[6; 3000])?;
    let before = settle(&session);
    let of_backend = |name| words(&before, name)[1];
    let (peer, own) = session.tuples[1];
    let ack = of_backend("una").wrapping_sub(of_backend("max_window") + 1);
    let end =
        Segment { seq: of_backend("ack"), ack, flags: ACK | FIN, window: 1000, ..Segment::new(peer, own) };
    let dropped = line.counter("not_judged_good")?;
    third.send(&end.packet())?;
    truepeer_testbed::wait_for("the end", || line.counter("not_judged_good").ok() == Some(dropped + 1))?;
    session.say(1, b"and on")?;
    session.ends[1].shutdown(std::net::Shutdown::Write)?;
    session.hear_end(0)
}

/// With bytes under way each number of theirs is within the window: still only the exact one resets, and a
/// SYN behind it opens nothing.
pub(crate) fn sweep_in_flight(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let mut session = line.spliced(v6)?;
    session.say(0, &[5; 3000])?;
    // From now on the sender's segments are lost behind the relay.
    let (peer, own) = session.tuples[0];
    let away = format!("route add blackhole {}/{}", session.tuples[1].0.ip(), if v6 { 128 } else { 32 });
    line.host("far").ip(&[&away])?;
    let bytes = [6; 12_000];
    session.ends[0].write_all(&bytes)?;
    thread::sleep(Duration::from_millis(50));
    let entry = session.entry();
    let (exact, end) = (words(&entry, "ack")[0], words(&entry, "end")[0]);
    let in_flight = end.wrapping_sub(exact);
    ensure!(in_flight > 5000, "only {in_flight} bytes are under way");
    for off in 1..in_flight {
        let seq = exact.wrapping_add(off);
        third.send(&Segment { seq, flags: RST, ..Segment::new(peer, own) }.packet())?;
    }
    let seq = end.wrapping_add(1_000_000);
    third.send(&Segment { seq, flags: SYN, ..Segment::new(peer, own) }.packet())?;
    thread::sleep(Duration::from_millis(100));
    ensure!(session.entry()[0] == entry[0], "{:?}, not {:?}", session.entry()[0], entry[0]);
    line.host("far").ip(&[&away.replace(" add ", " del ")])?;
    session.hear(1, &bytes)?;
    session.say(1, b"and back")
}

/// The answer to a SYN goes to the true peer, which believes the answer's window.
pub(crate) fn a_syn_closes_no_window(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let mut session = line.spliced(v6)?;
    for side in [0, 1] {
        session.say(side, &[5; 3000])?;
    }
    settle(&session);
    let before = offered_windows(&session)?;
    ensure!(before.iter().all(|window| *window > 1000), "{before:?}");
    for (peer, own) in session.tuples {
        third.send(&Segment { flags: SYN, ..Segment::new(peer, own) }.packet())?;
    }
    truepeer_testbed::wait_for("two questions", || line.counter("syn_asked").ok() == Some(2))?;
    settle(&session);
    let after = offered_windows(&session)?;
    ensure!(after == before, "the ends are offered {after:?}, not {before:?} as before");
    session.say(0, &[5; 3000])?;
    session.say(1, &[6; 3000])
}

/// The other peer may not believe a reset, so the addresses are free only a second later.
pub(crate) fn syn_after_reset(bed: &Bed, v6: bool) -> Result<()> {
    const DEAD: u64 = 5;
    const GONE: u64 = 6;
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let mut session = line.spliced(v6)?;
    let (peer, own) = session.tuples[0];
    let stage = |session: &ByHand| session.entry().first().map(|(_, stage)| *stage);
    session.reset(0)?;
    truepeer_testbed::wait_for("DEAD", || stage(&session) == Some(DEAD))?;
    let seq = words(&session.entry(), "end")[0].wrapping_add(1_000_000);
    let syn = Segment { seq, flags: SYN, ..Segment::new(peer, own) }.packet();
    third.send(&syn)?;
    thread::sleep(Duration::from_millis(200));
    ensure!(stage(&session) == Some(DEAD), "a SYN has made room at once");
    // Those that are answered meanwhile don't keep the addresses.
    for _ in 0..4 {
        thread::sleep(Duration::from_millis(600));
        third.send(&syn)?;
    }
    truepeer_testbed::wait_for("GONE", || stage(&session) == Some(GONE))
}

/// As TIME_WAIT validates a SYN (RFC 6191): a newer timestamp makes room, whatever its number, and an older
/// one never does.
pub(crate) fn a_newer_timestamp_makes_room(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let session = closing(&line, v6)?;
    let (peer, own) = session.tuples[0];
    let end = words(&session.entry(), "end")[0];
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let milliseconds = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
    let of_sender = words(&session.entry(), "said_clock")[0].wrapping_add(u32::try_from(milliseconds)?);
    let syn = |off: u32, clock: u32| {
        let (seq, options) = (end.wrapping_add(off), timestamps(of_sender.wrapping_add(clock), 0));
        Segment { seq, flags: SYN, options, ..Segment::new(peer, own) }.packet()
    };
    let asked = line.counter("syn_asked")?;
    third.send(&syn(1_000_000, 0_u32.wrapping_sub(100_000)))?;
    truepeer_testbed::wait_for("a question", || line.counter("syn_asked").ok() == Some(asked + 1))?;
    ensure!(stage_of(&session) == Some(CLOSING), "an old SYN has made room");
    third.send(&syn(0_u32.wrapping_sub(1_000_000), 100_000))?;
    truepeer_testbed::wait_for("GONE", || stage_of(&session) == Some(GONE))
}

/// A sender that has forgotten the connection answers each question about its SYN by a reset. That must not
/// keep the addresses.
pub(crate) fn resets_keep_no_addresses(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let third = ThirdHost::join(&line)?;
    let session = closing(&line, v6)?;
    let (peer, own) = session.tuples[0];
    let (seq, translated) = (words(&session.entry(), "ack")[0], line.counter("segments_translated")?);
    let before = session.segments();
    third.send(&Segment { seq, flags: RST, ..Segment::new(peer, own) }.packet())?;
    truepeer_testbed::wait_for("the reset", || {
        line.counter("segments_translated").is_ok_and(|now| now > translated)
    })?;
    ensure!(session.segments() == before, "a reset counts as a segment of the session");
    Ok(())
}

const CLOSING: u64 = 4;
const GONE: u64 = 6;

fn stage_of(session: &ByHand) -> Option<u64> {
    session.entry().first().map(|(_, stage)| *stage)
}

/// A session whose ends have both ended.
fn closing(line: &Line, v6: bool) -> Result<ByHand> {
    let mut session = line.spliced(v6)?;
    session.ends[1].shutdown(std::net::Shutdown::Write)?;
    session.hear_end(0)?;
    session.ends[0].shutdown(std::net::Shutdown::Write)?;
    session.hear_end(1)?;
    truepeer_testbed::wait_for("CLOSING", || stage_of(&session) == Some(CLOSING))?;
    Ok(session)
}
