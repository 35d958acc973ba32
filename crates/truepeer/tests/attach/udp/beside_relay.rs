//! `truepeer proxy` is the oracle for the dialects with bare datagrams: the same datagrams, sent to it and to
//! an attached port, show both servers the same clients with the same payloads.
//!
//! Each script is generated from a number. A failure prints it, and `TRUEPEER_SCRIPT=NUMBER` runs only that
//! one.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::datagrams::{Backend, send, socket, v2};
use truepeer_testbed::{Bed, Running, Test, Topology, Truepeer, client, wait_for};

use super::{DESTINATIONS, Pair};

pub(crate) fn tests() -> Vec<Test> {
    let test = |dialect: &'static str| {
        let name = format!("attach_shows_the_clients_that_proxy_shows_in_{dialect}");
        Test::new(name, move |bed| agree(bed, dialect))
    };
    ["first", "standalone"].map(test).into()
}

const SCRIPTS: u64 = 40;
const DATAGRAMS: usize = 200;
const SENDERS: usize = 12;

/// What a server has seen of each client, in order.
type Seen = BTreeMap<SocketAddr, Vec<String>>;

fn agree(bed: &Bed, dialect: &str) -> Result<()> {
    let only = std::env::var("TRUEPEER_SCRIPT").ok().and_then(|number| number.parse().ok());
    let numbers = only.map_or(0..SCRIPTS, |only| only..only + 1);
    let (relayed, attached) = (Side::relayed(bed, dialect)?, Side::attached(bed, dialect)?);
    let mut clients = 0;
    for number in numbers {
        let script = script(number)?;
        let (relayed, attached) = (relayed.play(number, &script)?, attached.play(number, &script)?);
        ensure!(
            attached == relayed,
            "TRUEPEER_SCRIPT={number}: attach showed {attached:?}, proxy {relayed:?}"
        );
        clients += relayed.len();
    }
    ensure!(
        only.is_some() || clients > 6 * usize::try_from(SCRIPTS)?,
        "the scripts prove too little: {clients}"
    );
    Ok(())
}

/// From which sender, and what. Each number has clients and senders of its own.
fn script(number: u64) -> Result<Vec<(usize, Vec<u8>)>> {
    let mut chance = Chance::new(number);
    (0..DATAGRAMS)
        .map(|n| {
            let sender = chance.below(SENDERS);
            Ok((sender, datagram(&mut chance, number, sender % 2, n)?))
        })
        .collect()
}

fn datagram(chance: &mut Chance, number: u64, family: usize, n: usize) -> Result<Vec<u8>> {
    let host = 1 + chance.below(5);
    let client = if family == 0 { format!("203.0.113.{host}") } else { format!("[2001:db8::{host}]") };
    let client = format!("{client}:{}", 5000 + number);
    let header = v2(&client, DESTINATIONS[family])?;
    let nobody = if family == 0 { "127.0.0.1:5000" } else { "[::1]:5000" };
    let payload = format!("{n}").into_bytes();
    let (start, payload): (Vec<u8>, Vec<u8>) = match chance.below(20) {
        0..6 => (header, payload),
        6 => (header, Vec::new()),
        7 => (client::v2_local(), payload),
        8 => (header[..chance.below(header.len())].to_vec(), Vec::new()),
        9 => (v2(nobody, DESTINATIONS[family])?, payload),
        10 => (client::v2(&client, DESTINATIONS[family])?, payload),
        11 => (client::v1(&client, DESTINATIONS[family])?, payload),
        12 => (Vec::new(), Vec::new()),
        _ => (Vec::new(), payload),
    };
    Ok([start, payload].concat())
}

/// A server behind one of the two.
struct Side {
    pair: Pair,
    backend: Backend,
    _truepeer: Option<Running>,
}

impl Side {
    fn relayed(bed: &Bed, dialect: &str) -> Result<Side> {
        let pair = Pair { line: Topology::line(&["lb", "host"])? };
        let backend = pair.backend(&["127.0.0.1:53".to_owned(), "[::1]:53".to_owned()])?;
        let at = [false, true].map(|v6| pair.host().at(v6, 53).to_string());
        let options = ["-p", "udp", "--udp-dialect", dialect, "--workers", "1", "--routes", "auto"];
        let truepeer = Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer"))
            .args(&options)
            .args(&["--allow", "private", "-l", &at[0], "-l", &at[1], "--drain-timeout", "0"])
            .ipv4("127.0.0.1:53")
            .ipv6("[::1]:53")
            .with(|program| program.in_netns(&pair.host().netns))
            .start_unready(bed)?;
        at.iter().try_for_each(|at| truepeer.wait_for_log(&format!("listening on {at}")))?;
        Ok(Side { pair, backend, _truepeer: Some(truepeer) })
    }

    fn attached(bed: &Bed, dialect: &str) -> Result<Side> {
        let pair = Pair { line: Topology::line(&["lb", "host"])? };
        pair.attach(bed, &["--port", "53/udp", "--udp-dialect", dialect])?;
        let backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
        Ok(Side { pair, backend, _truepeer: None })
    }

    fn play(&self, number: u64, script: &[(usize, Vec<u8>)]) -> Result<Seen> {
        let senders = (0..SENDERS).map(|n| self.sender(number, n)).collect::<Result<Vec<_>>>()?;
        let from = self.backend.seen().len();
        for (sender, datagram) in script {
            send(&senders[*sender], &[datagram])?;
        }
        // After the second pair, all that was read together with the first one has been delivered.
        (SENDERS..SENDERS + 4).try_for_each(|n| self.mark(number, n))?;
        let mut seen = Seen::new();
        for one in self.backend.seen().iter().skip(from).filter(|one| one.payload != b"marker") {
            seen.entry(one.from).or_default().push(one.payload.escape_ascii().to_string());
        }
        Ok(seen)
    }

    fn mark(&self, number: u64, n: usize) -> Result<()> {
        let family = n % 2;
        let address = if family == 0 { format!("198.51.100.{n}") } else { format!("[2001:db8:9::{n}]") };
        let marker = format!("{address}:{}", 5000 + number);
        send(&self.sender(number, n)?, &[&v2(&marker, DESTINATIONS[family])?, b"marker"])?;
        let is_seen = || self.backend.seen().iter().any(|one| one.from.to_string() == marker);
        wait_for("the marker at the server", is_seen).with_context(|| format!("of script {number}"))
    }

    /// The same address and port on both sides.
    fn sender(&self, number: u64, n: usize) -> Result<UdpSocket> {
        let (v6, port) = (n % 2 == 1, 20_000 + 20 * number + n as u64);
        self.pair.lb().run(|| {
            let socket = socket(format!("{}:{port}", if v6 { "[::]" } else { "0.0.0.0" }))?;
            socket.connect(self.pair.host().at(v6, 53))?;
            Ok(socket)
        })?
    }
}
