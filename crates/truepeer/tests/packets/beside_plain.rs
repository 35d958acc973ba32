//! The kernel's own socket is the oracle: the same segments, with the header cut out of their numbers, go to
//! a plain port and to the attached one. Both backends must see the same: whether accept() returns, which
//! bytes in which order, and how the connection ends.
//!
//! Each script is generated from a number. A failure prints it, and `TRUEPEER_SCRIPT=NUMBER` runs only that
//! one.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{ACK, FIN, PSH, Packet, RST, SYN, Segment, Talker, timestamps};
use truepeer_testbed::{Bed, Test, client};

use crate::stage::{Stage, listen};

const CLIENT: &str = "203.0.113.1:1001";
const PLAIN: u16 = 81;
const STALL: Duration = Duration::from_secs(60);

pub(crate) fn tests() -> Vec<Test> {
    let test = |name: &str, count: u64| {
        Test::new(name, move |bed| agree(bed, count))
            .of_group("beside_plain")
            .time_limit(Duration::from_secs(110 + count / 50))
    };
    vec![
        test("the_backends_see_the_same", 400),
        test("the_backends_see_the_same_of_50_000_scripts", 50_000).long(),
    ]
}

fn agree(bed: &Bed, count: u64) -> Result<()> {
    let stage = Stage::make(bed, &["--header-timeout", "60s"])?;
    let plain = stage.wire.host.run(|| listen(PLAIN))??;
    let only = std::env::var("TRUEPEER_SCRIPT").ok().and_then(|number| number.parse().ok());
    for number in only.map_or(0..count, |only| only..only + 1) {
        let script = Script::new(number);
        let attached = script.play(&stage, &stage.listener, true)?;
        let beside = script.play(&stage, &plain, false)?;
        let name = attached.client.map(|client| client.to_string());
        let problem = if attached.seen != beside.seen {
            format!("the attached backend saw {:?}, the plain one {:?}", attached.seen, beside.seen)
        } else if name.as_deref().is_some_and(|name| name != CLIENT) {
            format!("{name:?} was shown")
        } else {
            continue;
        };
        anyhow::bail!("TRUEPEER_SCRIPT={number}: {problem}\n{script:#?}");
    }
    Ok(())
}

/// What a sender, the link and a blind attacker do, in this order.
#[derive(Debug)]
struct Script {
    number: u64,
    v6: bool,
    has_clock: bool,
    isn: u32,
    header: Vec<u8>,
    data: Vec<u8>,
    steps: Vec<Step>,
    end: End,
}

#[derive(Debug, Clone)]
enum Step {
    /// Bytes of header and data, from here to there.
    Part { from: usize, to: usize, fate: Fate },
    /// An ACK without data.
    Bare,
    /// An attacker who knows addresses and ports, but no acknowledged number.
    Blind { flags: u8, away: u32, payload: Vec<u8> },
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Doubled,
    Lost,
    /// The bit at this position is flipped.
    Damaged(usize),
    /// The last bytes are missing.
    Cut(usize),
    /// The timestamp is old.
    Old,
    NoAckFlag,
    WrongAck,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Fin,
    Rst,
    Open,
}

/// What the backend has seen.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    bytes: Vec<u8>,
    end: &'static str,
}

struct Played {
    client: Option<SocketAddr>,
    seen: Option<Seen>,
}

impl Script {
    fn new(number: u64) -> Script {
        let mut chance = Chance::new(number);
        let header = match chance.below(5) {
            0 => client::v1(CLIENT, "192.0.2.1:443").expect("v1"),
            1 => {
                let len = chance.below(100);
                let tlv = chance.bytes(len);
                client::v2_with_tlvs(CLIENT, "192.0.2.1:443", &[(0xE0, &tlv)]).expect("v2")
            }
            _ => client::v2(CLIENT, "192.0.2.1:443").expect("v2"),
        };
        let len = chance.below(400);
        let data = chance.bytes(len);
        // Near the wrap-around in one case of four.
        let isn = match chance.below(4) {
            0 => 0u32.wrapping_sub(u32::try_from(chance.below(300)).unwrap_or(0)),
            _ => u32::try_from(chance.next() >> 32).unwrap_or(0),
        };
        let all = header.len() + data.len();
        let steps = (0..chance.below(20)).map(|_| Step::new(&mut chance, all)).collect();
        let end = chance.one_of(&[End::Fin, End::Fin, End::Rst, End::Open]);
        let (v6, has_clock) = (chance.below(2) == 1, chance.below(2) == 1);
        Script { number, v6, has_clock, isn, header, data, steps, end }
    }

    /// Plays it to one of the ports and records what the backend gets.
    fn play(&self, stage: &Stage<'_>, listener: &TcpListener, with_header: bool) -> Result<Played> {
        let port = 1024 + u16::try_from(self.number % 60_000)?;
        let mut talker = stage.talker(self.v6, port);
        (talker.isn, talker.seq) = (self.isn, self.isn);
        talker.to = SocketAddr::new(talker.to.ip(), listener.local_addr()?.port());
        if self.has_clock {
            talker = talker.with_clock(1_000_000);
        }
        stage.wire.forget()?;
        // With its ACK: until then any RST or SYN in its window ends a request socket, which is no standard
        // for attach.
        talker.open()?;
        let mut player = Player { stage, talker, script: self, with_header };
        self.steps.iter().try_for_each(|step| player.step(step))?;
        player.finish()?;
        let expected = self.data.len();
        accepted(listener, expected, self.end)
    }
}

impl Step {
    fn new(chance: &mut Chance, all: usize) -> Step {
        if chance.below(8) == 0 {
            return Step::Bare;
        }
        if chance.below(4) == 0 {
            let near = u32::try_from(chance.below(200)).unwrap_or(0).wrapping_sub(100);
            let far = u32::try_from(chance.next() >> 32).unwrap_or(0);
            let away = chance.one_of(&[near, near.wrapping_mul(500), far]);
            let flags = chance.one_of(&[
                SYN,
                RST,
                RST | ACK,
                FIN,
                FIN | ACK,
                ACK,
                PSH | ACK,
                SYN | ACK,
                SYN | FIN,
                0,
            ]);
            let len = chance.below(30) * chance.below(2);
            return Step::Blind { flags, away, payload: chance.bytes(len) };
        }
        let from = chance.below(all + 1);
        let to = from + chance.below((all - from).min(120) + 1);
        let fate = match chance.below(12) {
            0 => Fate::Doubled,
            1 => Fate::Lost,
            2 | 3 => Fate::Damaged(chance.below(10_000)),
            4 => Fate::Cut(1 + chance.below(10)),
            5 => Fate::Old,
            6 => Fate::NoAckFlag,
            7 => Fate::WrongAck,
            _ => Fate::Arrives,
        };
        // From the start more often, otherwise few scripts would deliver much.
        if chance.below(2) == 0 {
            return Step::Part { from: 0, to: to.max(1), fate };
        }
        Step::Part { from, to, fate }
    }
}

struct Player<'p, 'b> {
    stage: &'p Stage<'b>,
    talker: Talker<'p>,
    script: &'p Script,
    with_header: bool,
}

impl Player<'_, '_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        if let Some((now, echo)) = self.talker.clock {
            self.talker.clock = Some((now + 1, echo));
        }
        match step {
            Step::Bare => self.talker.send(&self.talker.segment(ACK, b"")),
            Step::Blind { flags, away, payload } => self.blind(*flags, *away, payload),
            Step::Part { from, to, fate } => match self.segment(*from, *to, PSH | ACK) {
                Some(segment) => self.meet(segment, *fate),
                None => Ok(()),
            },
        }
    }

    /// These bytes of header and data. For the plain port the header doesn't exist: `None` if nothing is
    /// left.
    fn segment(&self, from: usize, to: usize, flags: u8) -> Option<Segment> {
        let cut = if self.with_header { 0 } else { self.script.header.len() };
        let (from, to) = (from.max(cut), to.max(cut));
        if from == to {
            return None;
        }
        let all = [self.script.header.as_slice(), &self.script.data].concat();
        let start = self.script.isn.wrapping_add(1);
        let seq = start.wrapping_add(u32::try_from(from - cut).ok()?);
        Some(Segment { seq, ..self.talker.segment(flags, &all[from..to]) })
    }

    fn meet(&self, segment: Segment, fate: Fate) -> Result<()> {
        let send = |packet: Packet| self.stage.wire.send(&packet);
        match fate {
            Fate::Arrives => self.talker.send(&segment),
            Fate::Lost => Ok(()),
            Fate::Doubled => {
                self.talker.send(&segment)?;
                self.talker.send(&segment)
            }
            Fate::Damaged(place) => {
                let packet = segment.packet();
                // For IPv6 some bits of the header are in no checksum: changing them is not damage.
                let at = if packet.is_ipv6() { 40 } else { 0 };
                let place = at + place % (packet.bytes().len() - at);
                send(packet.flip(place, 0x10))
            }
            Fate::Cut(len) => {
                let packet = segment.packet();
                let end = packet.bytes().len() - len.min(segment.payload.len());
                send(packet.cut(end))
            }
            Fate::Old => match self.talker.clock {
                Some((now, echo)) => {
                    self.talker.send(&Segment { options: timestamps(now - 500_000, echo), ..segment })
                }
                None => Ok(()),
            },
            Fate::NoAckFlag => self.talker.send(&Segment { flags: PSH, ..segment }),
            Fate::WrongAck => self.talker.send(&Segment { ack: segment.ack.wrapping_add(54_321), ..segment }),
        }
    }

    fn blind(&self, flags: u8, away: u32, payload: &[u8]) -> Result<()> {
        let segment = self.talker.segment(flags, payload);
        // A blind attacker doesn't hit the numbers that end a connection.
        let away = if flags & (RST | SYN) != 0 && away < 1000 { away + 1000 } else { away };
        let seq = segment.seq.wrapping_add(away);
        self.talker.send(&Segment { seq, ack: segment.ack.wrapping_add(12_345), ..segment })
    }

    /// Repeats everything that is not acknowledged, as a sender does; then the end.
    fn finish(&mut self) -> Result<()> {
        let all = self.script.header.len() + self.script.data.len();
        if let Some((now, echo)) = self.talker.clock {
            self.talker.clock = Some((now + 1000, echo));
        }
        self.talker.send(&self.talker.segment(ACK, b""))?;
        for from in (0..all).step_by(100) {
            if let Some(segment) = self.segment(from, (from + 100).min(all), PSH | ACK) {
                self.talker.send(&segment)?;
            }
        }
        let len = if self.with_header { all } else { self.script.data.len() };
        self.talker.seq = self.script.isn.wrapping_add(1).wrapping_add(u32::try_from(len)?);
        match self.script.end {
            End::Fin => self.talker.send(&self.talker.segment(FIN | ACK, b"")),
            End::Rst => self.talker.send(&self.talker.segment(RST, b"")),
            End::Open => Ok(()),
        }
    }
}

/// The result of accept(), and the received bytes until nothing more can come.
fn accepted(listener: &TcpListener, expected: usize, end: End) -> Result<Played> {
    let deadline = Instant::now() + STALL;
    let (mut stream, client) = loop {
        match listener.accept() {
            Ok(accepted) => break accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Ok(Played { client: None, seen: None });
            }
            Err(error) => return Err(error).context("accept"),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STALL))?;
    let mut bytes = vec![0; expected];
    let got = read_some(&mut stream, &mut bytes)?;
    bytes.truncate(got);
    // Extra bytes, or a false end, would show at once.
    if matches!(end, End::Open) {
        stream.set_read_timeout(Some(Duration::from_millis(2)))?;
    }
    let mut more = [0; 64];
    let end = match stream.read(&mut more) {
        Ok(0) => "end",
        Ok(_) => "more",
        Err(error) if error.kind() == ErrorKind::WouldBlock => "open",
        Err(error) if error.kind() == ErrorKind::ConnectionReset => "reset",
        Err(error) => return Err(error).context("read"),
    };
    let client = SocketAddr::new(client.ip().to_canonical(), client.port());
    ensure!(listener.accept().is_err(), "accept() has returned a second connection");
    Ok(Played { client: Some(client), seen: Some(Seen { bytes, end }) })
}

fn read_some(stream: &mut std::net::TcpStream, bytes: &mut [u8]) -> Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match stream.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(len) => got += len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset) => break,
            Err(error) => return Err(error).context("read"),
        }
    }
    Ok(got)
}
