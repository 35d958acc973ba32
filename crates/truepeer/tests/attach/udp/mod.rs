//! Datagrams.

mod bare;
mod bare_calls;
mod beside_relay;
mod crowds;
mod delivery;
mod dns;
mod quic;
mod refusals;
mod shapes;

use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::datagrams::{Backend, ask, socket};
use truepeer_testbed::{Bed, Host, Test, Topology};

use crate::kit::command;

const CLIENTS: [&str; 2] = ["203.0.113.7:5000", "[2001:db8::7]:5000"];
const DESTINATIONS: [&str; 2] = ["192.0.2.1:53", "[2001:db8::1]:53"];

pub(crate) fn tests() -> Vec<Test> {
    let all = [
        delivery::tests(),
        shapes::tests(),
        refusals::tests(),
        bare::tests(),
        bare_calls::tests(),
        beside_relay::tests(),
        dns::tests(),
        quic::tests(),
        crowds::tests(),
    ];
    all.into_iter().flatten().map(|test| test.of_group("udp")).collect()
}

/// A sender's host and a backend's, which has no route to any client.
struct Pair {
    line: Topology,
}

impl Pair {
    fn new() -> Result<Pair> {
        let line = Topology::line(&["lb", "host"])?;
        line.host("host").ip(&["route del default"])?;
        line.host("host").ip(&["-6 route del default"])?;
        Ok(Pair { line })
    }

    fn lb(&self) -> &Host {
        self.line.host("lb")
    }

    fn host(&self) -> &Host {
        self.line.host("host")
    }

    /// A sender's socket towards a port of the backend's host.
    fn sender(&self, v6: bool, port: u16) -> Result<UdpSocket> {
        self.lb().run(|| {
            let socket = socket(if v6 { "[::]:0" } else { "0.0.0.0:0" })?;
            socket.connect(self.host().at(v6, port))?;
            Ok(socket)
        })?
    }

    fn attach(&self, bed: &Bed, args: &[&str]) -> Result<()> {
        command(bed, &[&["--allow", "private"], args].concat())?.in_netns(&self.host().netns).run(bed)?;
        Ok(())
    }

    fn backend(&self, addresses: &[String]) -> Result<Backend> {
        self.host().run(|| Backend::who(addresses))?
    }

    fn status(&self, bed: &Bed) -> Result<Value> {
        let text = command(bed, &["status", "--json"])?.in_netns(&self.host().netns).run(bed)?;
        Ok(serde_json::from_str(&text)?)
    }

    fn counter(&self, bed: &Bed, name: &str) -> Result<u64> {
        counter_in(&self.status(bed)?, name)
    }
}

fn counter_in(status: &Value, name: &str) -> Result<u64> {
    status["ports"][0]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
}

/// A client's header and payload, and the answer of a backend that sees the client.
fn exchange(socket: &UdpSocket, client: &str, header: &[u8], payload: &[u8]) -> Result<()> {
    let answer = ask(socket, &[header, payload])?;
    let expected = [client.as_bytes(), b" ", payload].concat();
    ensure!(answer == expected, "{:?}", String::from_utf8_lossy(&answer[..answer.len().min(100)]));
    Ok(())
}

fn nth_client(n: usize) -> String {
    format!("203.0.{}.{}:{}", 100 + n / 200, 1 + n % 200, 1024 + n % 7)
}
