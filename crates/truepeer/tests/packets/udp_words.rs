//! Generated datagrams of senders: with headers of both dialects, with wrong headers, and without one.

use std::net::SocketAddr;

use anyhow::Result;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::{client, datagrams};

/// The way to attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    Every,
    EveryOptional,
    Spp,
    SppOptional,
}

impl Rules {
    pub(crate) const ALL: [Rules; 4] = [Rules::Every, Rules::EveryOptional, Rules::Spp, Rules::SppOptional];

    pub(crate) fn args(self) -> &'static [&'static str] {
        match self {
            Rules::Every => &[],
            Rules::EveryOptional => &["--header", "optional"],
            Rules::Spp => &["--udp-dialect", "spp"],
            Rules::SppOptional => &["--udp-dialect", "spp", "--header", "optional"],
        }
    }

    pub(crate) fn is_spp(self) -> bool {
        matches!(self, Rules::Spp | Rules::SppOptional)
    }

    fn is_optional(self) -> bool {
        matches!(self, Rules::EveryOptional | Rules::SppOptional)
    }

    /// A header that names this client.
    pub(crate) fn header(self, client: SocketAddr, v6: bool) -> Result<Vec<u8>> {
        let destination = if v6 { "[2001:db8::1]:53" } else { "192.0.2.1:53" };
        if self.is_spp() { datagrams::spp(client, destination) } else { datagrams::v2(client, destination) }
    }
}

/// A datagram of a sender.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    pub(crate) sender: SocketAddr,
    pub(crate) bytes: Vec<u8>,
    /// The client that the server sees. `None`: attach refuses the datagram.
    pub(crate) shown: Option<SocketAddr>,
    /// The data that the server gets.
    pub(crate) payload: Vec<u8>,
    /// The bytes before an answer (SPP).
    pub(crate) answer_start: Vec<u8>,
}

/// Three senders: two ports of one host, and a second host.
pub(crate) fn senders(v6: bool) -> [SocketAddr; 3] {
    let all = if v6 {
        ["[fd77::1]:4000", "[fd77::1]:4001", "[fd77::9]:4000"]
    } else {
        ["10.77.0.1:4000", "10.77.0.1:4001", "10.77.0.9:4000"]
    };
    all.map(|text| text.parse().expect("an address"))
}

/// One of the five clients of this script.
fn client_of(chance: &mut Chance, v6: bool, number: u64) -> SocketAddr {
    let port = 1024 + number % 60_000;
    let host = 1 + chance.below(5);
    let text = if v6 { format!("[2001:db8:7::{host}]:{port}") } else { format!("203.0.113.{host}:{port}") };
    text.parse().expect("an address")
}

/// Generates a sender's datagram.
pub(crate) fn say(chance: &mut Chance, rules: Rules, v6: bool, number: u64) -> Said {
    let sender = chance.one_of(&senders(v6));
    let len = match chance.below(6) {
        0 => 0,
        1 => 1,
        2 => chance.below(1300),
        _ => chance.below(80),
    };
    let payload = chance.bytes(len);
    let client = client_of(chance, v6, number);
    if chance.below(4) == 0 {
        return if rules.is_spp() {
            seldom_spp(chance, rules, v6, sender, client, payload)
        } else {
            seldom_every(chance, rules, v6, sender, client, payload)
        };
    }
    let header = rules.header(client, v6).expect("two addresses of a family");
    let answer_start = if rules.is_spp() { header.clone() } else { Vec::new() };
    Said { sender, bytes: [header, payload.clone()].concat(), shown: Some(client), payload, answer_start }
}

/// A datagram whose client is the sender itself.
fn itself(sender: SocketAddr, header: Vec<u8>, payload: Vec<u8>) -> Said {
    let bytes = [header, payload.clone()].concat();
    Said { sender, bytes, shown: Some(sender), payload, answer_start: Vec::new() }
}

fn refused(sender: SocketAddr, bytes: Vec<u8>) -> Said {
    Said { sender, bytes, shown: None, payload: Vec::new(), answer_start: Vec::new() }
}

fn bare(rules: Rules, sender: SocketAddr, bytes: Vec<u8>) -> Said {
    if rules.is_optional() { itself(sender, Vec::new(), bytes) } else { refused(sender, bytes) }
}

fn seldom_every(
    chance: &mut Chance,
    rules: Rules,
    v6: bool,
    sender: SocketAddr,
    client: SocketAddr,
    payload: Vec<u8>,
) -> Said {
    let good = rules.header(client, v6).expect("two addresses of a family");
    let destination = if v6 { "[2001:db8::1]:53" } else { "192.0.2.1:53" };
    match chance.below(9) {
        0 => itself(sender, client::v2_local(), payload),
        // A header for TCP names no client for datagrams.
        1 => itself(sender, client::v2(client, destination).expect("two addresses"), payload),
        // The client's family is not the datagram's: no server can see it.
        2 => {
            let other = client_of(chance, !v6, 7);
            itself(sender, rules.header(other, !v6).expect("two addresses"), payload)
        }
        3 => {
            let len = chance.below(60);
            let value = chance.bytes(len);
            let mut header = client::v2_with_tlvs(client, destination, &[(0xE0, &value)]).expect("short");
            header[13] += 1; // STREAM to DGRAM
            let bytes = [header, payload.clone()].concat();
            Said { sender, bytes, shown: Some(client), payload, answer_start: Vec::new() }
        }
        // PROXY 2.1: "v1 … only supports TCP".
        4 => bare(rules, sender, [client::v1(client, destination).expect("v1"), payload].concat()),
        5 => bare(rules, sender, [b"a query".to_vec(), payload].concat()),
        6 => {
            let end = 1 + chance.below(good.len() - 1);
            let start = good[..end].to_vec();
            if end < 12 { bare(rules, sender, start) } else { refused(sender, start) }
        }
        7 => {
            let mut bytes = [good, payload].concat();
            bytes[12] = chance.one_of(&[0x11, 0x22, 0x31, 0xff]); // another version or command
            refused(sender, bytes)
        }
        _ => {
            let nobody = if v6 { "[::1]:5000" } else { "127.0.0.1:5000" }.parse().expect("an address");
            refused(sender, [rules.header(nobody, v6).expect("two addresses"), payload].concat())
        }
    }
}

fn seldom_spp(
    chance: &mut Chance,
    rules: Rules,
    v6: bool,
    sender: SocketAddr,
    client: SocketAddr,
    payload: Vec<u8>,
) -> Said {
    let good = rules.header(client, v6).expect("two addresses of a family");
    match chance.below(5) {
        0 => bare(rules, sender, [b"a query".to_vec(), payload].concat()),
        1 => bare(rules, sender, [datagrams::v2(client, client).expect("v2"), payload].concat()),
        2 => {
            let end = 1 + chance.below(good.len() - 1);
            let start = good[..end].to_vec();
            if end < 2 { bare(rules, sender, start) } else { refused(sender, start) }
        }
        // One datagram has one family, and so have its answers.
        3 => {
            let other = client_of(chance, !v6, 7);
            refused(sender, [rules.header(other, !v6).expect("two addresses"), payload].concat())
        }
        _ => {
            let nobody = if v6 { "[::1]:5000" } else { "127.0.0.1:5000" }.parse().expect("an address");
            refused(sender, [rules.header(nobody, v6).expect("two addresses"), payload].concat())
        }
    }
}
