//! A plain port is the oracle for datagrams, too. A sender's datagrams go to an attached port, and, without
//! their header, straight from the client to a plain port. Both servers must see the same clients and the
//! same data, and their answers must reach the sender as they reach the client.
//!
//! Each script is generated from a number. A failure prints it, and `TRUEPEER_SCRIPT=NUMBER` runs only that
//! one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::packets::{Datagram, Packet, Tag, Wire};
use truepeer_testbed::{Bed, Test};

use crate::stage::Stage;
use crate::udp_parties::{Ear, Heard, Server};
use crate::udp_words::{Rules, Said, say};

/// The plain server's port.
const PLAIN: u16 = 153;
/// The attached ports and the ports of their servers: the first is the same, the second is mapped.
const PORTS: [(u16, u16); 2] = [(53, 53), (54, 5354)];
const MARKER: [&str; 2] = ["203.0.113.250:9999", "[2001:db8:7::250]:9999"];

pub(crate) fn tests() -> Vec<Test> {
    let test = |name: &str, count: u64| {
        Test::new(name, move |bed| agree(bed, count))
            .of_group("udp_beside_plain")
            .time_limit(Duration::from_secs(110 + count / 50))
    };
    vec![
        test("the_servers_see_the_same", 800),
        test("the_servers_see_the_same_of_40_000_scripts", 40_000).long(),
    ]
}

/// Plays `count` scripts, the same for each way to attach.
fn agree(bed: &Bed, count: u64) -> Result<()> {
    let only = std::env::var("TRUEPEER_SCRIPT").ok().and_then(|number| number.parse().ok());
    let numbers = only.map_or(0..count / 4, |only| only..only + 1);
    let mut tally = BTreeMap::<&str, u64>::new();
    for rules in Rules::ALL {
        let mut ground = Ground::make(bed, rules)?;
        for number in numbers.clone() {
            let script = Script::new(number, rules);
            let outcome = ground.play(&script, &mut tally);
            if let Err(error) = outcome {
                let status = ground.stage.status().unwrap_or_else(|error| format!("{error:#}").into());
                // The script is long: the error comes first.
                bail!("{error:#}\nTRUEPEER_SCRIPT={number}, {rules:?}: {script:#?}\n{status}");
            }
        }
    }
    println!("{tally:?}");
    // If one of these did not happen, the scripts prove too little.
    for what in [
        "delivered",
        "refused",
        "dropped by both",
        "answered",
        "answered by a connected socket",
        "unreachable",
    ] {
        ensure!(only.is_some() || tally.get(what).is_some_and(|times| *times > 10), "never tried: {what}");
    }
    Ok(())
}

/// The actions of senders and link. After each round the servers read and answer.
#[derive(Debug)]
struct Script {
    v6: bool,
    port: usize,
    rounds: Vec<Round>,
}

#[derive(Debug)]
struct Round {
    /// The client to which the servers first connect a separate socket.
    connect: Option<SocketAddr>,
    /// The servers' sockets are closed in this round.
    is_closed: bool,
    /// The sender's host reports that the answers of the round before reached no socket (ICMP).
    is_unwanted: bool,
    sent: Vec<(Said, Fate)>,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Arrives,
    Doubled,
    /// One bit is flipped.
    Damaged(usize),
    WrongIpSum,
    NoSum,
    /// The UDP header's length is too short by this many bytes, and it has no checksum.
    Short(u16),
    Options,
    Tagged,
    /// In fragments of this many words of 8 bytes.
    Fragments(usize),
    /// Behind IPv6 extension headers.
    BehindExtensions,
}

impl Script {
    fn new(number: u64, rules: Rules) -> Script {
        let mut chance = Chance::new(number);
        let v6 = chance.below(2) == 1;
        let port = chance.below(PORTS.len());
        let mut rounds: Vec<Round> = Vec::new();
        for _ in 0..=chance.below(4) {
            let count = 1 + chance.below(6);
            let one = |_| {
                let said = say(&mut chance, rules, v6, number);
                let fate = Fate::new(&mut chance, v6, &said);
                (said, fate)
            };
            let sent: Vec<_> = (0..count).map(one).collect();
            let known: Vec<SocketAddr> = sent.iter().filter_map(|(said, _)| said.shown).collect();
            let connect = (chance.below(4) == 0 && !known.is_empty()).then(|| chance.one_of(&known));
            rounds.push(Round { connect, is_closed: false, is_unwanted: chance.below(6) == 0, sent });
        }
        if let Some(last) = rounds.last_mut().filter(|_| chance.below(6) == 0) {
            (last.is_closed, last.connect) = (true, None);
        }
        Script { v6, port, rounds }
    }
}

impl Fate {
    fn new(chance: &mut Chance, v6: bool, said: &Said) -> Fate {
        let len = said.payload.len();
        match chance.below(20) {
            0 => Fate::Doubled,
            1 | 2 => Fate::Damaged(chance.below(10_000)),
            3 => Fate::WrongIpSum,
            4 if !v6 => Fate::NoSum,
            5 if !v6 && len > 0 => Fate::Short(u16::try_from(1 + chance.below(len)).unwrap_or(1)),
            6 if !v6 => Fate::Options,
            6 => Fate::BehindExtensions,
            7 => Fate::Tagged,
            8 if said.bytes.len() > 16 => Fate::Fragments(1 + chance.below((said.bytes.len() - 9) / 8)),
            _ => Fate::Arrives,
        }
    }

    /// Whether attach refuses it: a header in fragments, or behind extensions.
    fn is_refused(self) -> bool {
        matches!(self, Fate::Fragments(_) | Fate::BehindExtensions)
    }

    /// The frames that arrive.
    fn frames(self, packet: Packet) -> Vec<Vec<u8>> {
        let one = |packet: Packet| vec![Wire::frame(&packet, &[])];
        let udp = packet.payload_at();
        match self {
            Fate::Arrives => one(packet),
            Fate::Doubled => [one(packet.clone()), one(packet)].concat(),
            Fate::Damaged(place) => {
                // Not in the ports: the datagram would be another socket's. Not in the checksum: it might
                // become 0, "none".
                let data = packet.bytes().len() - udp - 8;
                one(if data == 0 {
                    packet.flip(udp + 5, 0x40)
                } else {
                    packet.flip(udp + 8 + place % data, 0x10)
                })
            }
            Fate::WrongIpSum => one(packet.with_wrong_ip_sum()),
            Fate::NoSum => one(packet.write(udp + 6, &[0, 0])),
            Fate::Short(by) => {
                let len = u16::from_be_bytes([packet.bytes()[udp + 4], packet.bytes()[udp + 5]]) - by;
                one(packet.write(udp + 4, &len.to_be_bytes()).write(udp + 6, &[0, 0]))
            }
            Fate::Options => one(packet.with_ip_options(&[1; 4])),
            Fate::Tagged => vec![Wire::frame(&packet, &[Tag { ethertype: 0x8100, id: 0xe000 }])],
            Fate::Fragments(words) => {
                packet.fragments(words * 8, 7).iter().map(|part| Wire::frame(part, &[])).collect()
            }
            Fate::BehindExtensions => one(packet.behind(&[60])),
        }
    }
}

/// A host with three servers: at an attached port, behind a mapped port, and at a plain port.
struct Ground<'b> {
    stage: Stage<'b>,
    ear: Ear,
    servers: [Server; 2],
    plain: Server,
    rules: Rules,
}

impl<'b> Ground<'b> {
    fn make(bed: &'b Bed, rules: Rules) -> Result<Ground<'b>> {
        let stage = Stage::without_attach(bed)?;
        // The kernel computes and checks the checksums itself, and sends an ICMP error for each datagram
        // without a socket.
        stage.run("ethtool", &["-K", "wire", "rx", "off", "tx", "off"])?;
        let unlimited = ["net.ipv4.icmp_ratemask=0", "net.ipv6.icmp.ratemask=128"];
        stage.run("sysctl", &[&["-q"], &unlimited[..]].concat())?;
        let ear = Ear::on(&stage.wire)?;
        let netns = &stage.wire.host.netns;
        let servers = [Server::open(netns, PORTS[0].1)?, Server::open(netns, PORTS[1].1)?];
        let plain = Server::open(netns, PLAIN)?;
        let ports = PORTS.map(|(port, bound)| format!("{port}:{bound}/udp"));
        let senders = ["--allow", "10.77.0.0/16", "--allow", "fd77::/16"];
        let ports = ["--port", &ports[0], "--port", &ports[1]];
        stage.attach(&[&ports[..], &senders, rules.args()].concat())?;
        Ok(Ground { stage, ear, servers, plain, rules })
    }

    fn play(&mut self, script: &Script, tally: &mut BTreeMap<&'static str, u64>) -> Result<()> {
        // The destination of a client's answers, and the bytes before them. Its newest datagram decides both.
        let mut ways = BTreeMap::<SocketAddr, (SocketAddr, Vec<u8>)>::new();
        let mut last: Option<(Heard, Heard)> = None;
        for round in &script.rounds {
            if round.is_closed {
                self.is_unreachable(script, round, tally)?;
                continue;
            }
            // Without attach a connected socket gets the error; with attach it does not:
            // docs/internals/attach-udp.md.
            let is_unwanted = round.is_unwanted && !self.plain.has_connections();
            if let (true, Some((attached, plain))) = (is_unwanted, last.take()) {
                self.ear.refuse(&self.stage.wire, &attached)?;
                self.ear.refuse(&self.stage.wire, &plain)?;
            }
            if let Some(client) = round.connect {
                self.servers[script.port].connect(client)?;
                self.plain.connect(client)?;
            }
            self.send(script, round, &mut ways, tally)?;
            last = self.compare(script, &ways, tally)?;
        }
        self.servers[script.port].forget_connections();
        self.plain.forget_connections();
        self.ear.nothing_is_left()
    }

    fn send(
        &self,
        script: &Script,
        round: &Round,
        ways: &mut BTreeMap<SocketAddr, (SocketAddr, Vec<u8>)>,
        tally: &mut BTreeMap<&'static str, u64>,
    ) -> Result<()> {
        let to = |port| self.stage.wire.host.at(script.v6, port);
        for (said, fate) in &round.sent {
            let attached =
                Datagram { from: said.sender, to: to(PORTS[script.port].0), payload: said.bytes.clone() };
            for frame in fate.frames(attached.packet()) {
                self.stage.wire.send_frame(&frame)?;
            }
            let Some(client) = said.shown.filter(|_| !fate.is_refused()) else {
                *tally.entry("refused").or_default() += 1;
                continue;
            };
            let beside = Datagram { from: client, to: to(PLAIN), payload: said.payload.clone() };
            for frame in fate.frames(beside.packet()) {
                self.stage.wire.send_frame(&frame)?;
            }
            let is_dropped =
                matches!(fate, Fate::Damaged(_)) || (matches!(fate, Fate::WrongIpSum) && !script.v6);
            *tally.entry(if is_dropped { "dropped by both" } else { "delivered" }).or_default() += 1;
            if !is_dropped {
                ways.insert(client, (said.sender, said.answer_start.clone()));
            }
        }
        Ok(())
    }

    /// Both servers read and answer. Returns the last answer of each.
    fn compare(
        &mut self,
        script: &Script,
        ways: &BTreeMap<SocketAddr, (SocketAddr, Vec<u8>)>,
        tally: &mut BTreeMap<&'static str, u64>,
    ) -> Result<Option<(Heard, Heard)>> {
        let marker: SocketAddr = MARKER[usize::from(script.v6)].parse()?;
        let to = |port| self.stage.wire.host.at(script.v6, port);
        let mark = self.rules.header(marker, script.v6)?;
        let sender = crate::udp_words::senders(script.v6)[0];
        let (port, _) = PORTS[script.port];
        let payload = [mark.clone(), b"marker".to_vec()].concat();
        self.stage.wire.send(&Datagram { from: sender, to: to(port), payload }.packet())?;
        self.stage
            .wire
            .send(&Datagram { from: marker, to: to(PLAIN), payload: b"marker".to_vec() }.packet())?;
        let seen = self.servers[script.port].serve()?;
        let beside = self.plain.serve()?;
        ensure!(seen == beside, "the attached server saw {seen:?}\nthe plain one     {beside:?}");
        *tally.entry("answered by a connected socket").or_default() +=
            seen.iter().filter(|read| read.by_connection).count() as u64;

        let heard = self.ear.hear(&to(port), 1 + seen.len())?;
        let wanted = self.ear.hear(&to(PLAIN), 1 + beside.len())?;
        *tally.entry("answered").or_default() += heard.len() as u64;
        let start = if self.rules.is_spp() { mark } else { Vec::new() };
        let way = |client: &SocketAddr| match ways.get(client) {
            _ if *client == marker => Ok((sender, start.clone())),
            way => way.cloned().with_context(|| format!("{client} was answered and has sent nothing")),
        };
        for (answer, beside) in heard.iter().zip(&wanted) {
            let (sender, start) = way(&beside.to)?;
            let payload = [start, beside.payload.clone()].concat();
            ensure!(
                (answer.to, &answer.payload) == (sender, &payload),
                "{answer:?} is what the sender gets, not {payload:?} to {sender} as the client {beside:?}"
            );
        }
        Ok(heard.into_iter().zip(wanted).next_back())
    }

    /// Without servers, the kernel sends each sender an ICMP error that quotes the datagram.
    fn is_unreachable(
        &mut self,
        script: &Script,
        round: &Round,
        tally: &mut BTreeMap<&'static str, u64>,
    ) -> Result<()> {
        let netns = self.stage.wire.host.netns.clone();
        let bound = PORTS[script.port].1;
        self.servers[script.port].close()?;
        self.plain.close()?;
        let port = self.stage.wire.host.at(script.v6, PORTS[script.port].0);
        let plain = self.stage.wire.host.at(script.v6, PLAIN);
        for (said, fate) in &round.sent {
            // Only datagrams that both ports would accept: attach refuses some that a plain port takes.
            if said.shown.is_none() || !matches!(fate, Fate::Arrives | Fate::Damaged(_) | Fate::Tagged) {
                continue;
            }
            let is_dropped = matches!(fate, Fate::Damaged(_));
            for (from, to, payload) in
                [(said.sender, port, &said.bytes), (said.shown.unwrap_or(said.sender), plain, &said.payload)]
            {
                for frame in fate.frames(Datagram { from, to, payload: payload.clone() }.packet()) {
                    self.stage.wire.send_frame(&frame)?;
                }
                if !is_dropped {
                    self.ear.hears_unreachable(from, to, payload)?;
                    *tally.entry("unreachable").or_default() += 1;
                }
            }
        }
        self.servers[script.port] = Server::open(&netns, bound)?;
        self.plain = Server::open(&netns, PLAIN)?;
        Ok(())
    }
}
