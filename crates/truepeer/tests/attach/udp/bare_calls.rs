//! What a server and a sender do with the datagrams of a flow whose header comes once: calls with many
//! datagrams, each way to answer, and what a socket tells of a datagram.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use socket2::SockRef;
use truepeer_sys::udp::{Local, Run, send_runs};
use truepeer_testbed::datagrams::{ask, receive, send, socket, v2};
use truepeer_testbed::{Bed, Program, Test, Topology, tests};

use super::bare::attach;
use super::{CLIENTS, DESTINATIONS, Pair};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        datagrams_sent_in_one_call_belong_to_one_flow,
        each_way_to_answer_reaches_the_sender,
        a_server_learns_of_a_datagram_what_it_learns_without_truepeer,
    ]
}

/// By UDP_SEGMENT: on the link they are one packet, of which the first part has a header.
fn datagrams_sent_in_one_call_belong_to_one_flow(bed: &Bed) -> Result<()> {
    const COUNT: usize = 40;
    let pair = Pair::new()?;
    attach(&pair, bed, "first", &["--port", "53/udp"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned(), "[::1]:53".to_owned()])?;
    for v6 in [false, true] {
        let (client, sender) = (CLIENTS[usize::from(v6)], pair.sender(v6, 53)?);
        let header = v2(client, DESTINATIONS[usize::from(v6)])?;
        let mut parts = vec![[&header[..], &[0; 60]].concat()];
        let len = parts[0].len();
        parts.extend((1..COUNT).map(|n| vec![n.to_le_bytes()[0]; if n + 1 == COUNT { 33 } else { len }]));
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        for _ in 0..2 {
            let run = Run { parts: &slices, segment_bytes: Some(u16::try_from(len)?) };
            ensure!(send_runs(sender.as_fd(), None, None, &[run])? == 1);
        }
        backend.wait_seen(if v6 { 4 * COUNT } else { 2 * COUNT })?;
        let seen: Vec<_> = backend.seen().iter().rev().take(2 * COUNT).rev().cloned().collect();
        ensure!(seen.iter().all(|one| one.from.to_string() == client), "{seen:?}");
        ensure!(
            seen[0].payload == [0; 60]
                && seen[1..COUNT].iter().zip(&parts[1..]).all(|(a, b)| a.payload == *b)
        );
        ensure!(seen[COUNT].payload == parts[0], "the second call's header is data");
    }
    Ok(())
}

/// To an address, from an address as well (IP_PKTINFO), or connected; one by one or in one call.
fn each_way_to_answer_reaches_the_sender(bed: &Bed) -> Result<()> {
    let pair = Pair { line: Topology::line(&["lb", "host"])? };
    for (dialect, port, bound) in [("first", "53/udp", 53), ("standalone", "53:5353/udp", 5353)] {
        attach(&pair, bed, dialect, &["--port", port])?;
        for (v6, is_connected) in [(false, false), (false, true), (true, false), (true, true)] {
            let bind = if v6 { format!("[::]:{bound}") } else { format!("0.0.0.0:{bound}") };
            let backend = pair.host().run(|| socket(bind))??;
            let (client, sender) = (CLIENTS[usize::from(v6)], pair.sender(v6, 53)?);
            send(&sender, &[&v2(client, DESTINATIONS[usize::from(v6)])?, b"question"])?;
            let (_, from) = backend.recv_from(&mut [0; 100]).context("the question")?;
            ensure!(from.to_string() == client, "{from}");
            if is_connected {
                pair.host().run(|| backend.connect(from))??;
            }
            let to = (!is_connected).then_some(&from);
            answers_arrive(&pair, &backend, &sender, to)
                .with_context(|| format!("{dialect} {port} {client}, connected: {is_connected}"))?;
            send(&sender, &[b"bare"])?;
            ensure!(backend.recv_from(&mut [0; 100]).context("a bare one")? == (4, from));
        }
    }
    Ok(())
}

fn answers_arrive(
    pair: &Pair,
    backend: &UdpSocket,
    sender: &UdpSocket,
    to: Option<&SocketAddr>,
) -> Result<()> {
    for payload in [b"one".as_slice(), b"", b"another"] {
        pair.host().run(|| match to {
            Some(to) => backend.send_to(payload, to),
            None => backend.send(payload),
        })??;
        ensure!(receive(sender)? == payload);
    }
    if let Some(to) = to {
        let from = Local { ip: pair.host().at(to.is_ipv6(), 53).ip(), interface: 0 };
        let parts = [IoSlice::new(b"from an address")];
        let run = Run { parts: &parts, segment_bytes: None };
        ensure!(pair.host().run(|| send_runs(backend.as_fd(), Some(to), Some(from), &[run]))?? == 1);
        ensure!(receive(sender)? == b"from an address");
    }
    let parts: Vec<Vec<u8>> = (0..20).map(|n| vec![n; if n == 19 { 33 } else { 101 }]).collect();
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let run = Run { parts: &slices, segment_bytes: Some(101) };
    ensure!(pair.host().run(|| send_runs(backend.as_fd(), to, None, &[run]))?? == 1);
    let mut answers = (0..20).map(|_| receive(sender)).collect::<Result<Vec<_>>>()?;
    answers.sort();
    ensure!(answers == parts, "in one call");
    Ok(())
}

/// By IP_PKTINFO, its TTL and its TOS, for both families: the address is the client's, all else stays.
fn a_server_learns_of_a_datagram_what_it_learns_without_truepeer(bed: &Bed) -> Result<()> {
    const SERVER: &str = "
import socket, sys
family, host, port, level, *options = sys.argv[1:]
s = socket.socket(int(family), socket.SOCK_DGRAM)
s.bind((host, int(port)))
for option in options:
    s.setsockopt(int(level), int(option), 1)
while True:
    data, controls, _, client = s.recvmsg(9000, 500)
    told = sorted((kind, value.hex()) for _, kind, value in controls)
    s.sendto(repr((data, len(told), told)).encode(), client)
";
    let pair = Pair::new()?;
    attach(&pair, bed, "first", &["--port", "53/udp"])?;
    for v6 in [false, true] {
        let (family, host, level, options) = if v6 {
            ("10", "::", "41", ["49", "51", "66"])
        } else {
            ("2", "0.0.0.0", "0", ["8", "12", "13"])
        };
        let start = |port: u16| -> Result<_> {
            let port = port.to_string();
            let args = [&["-c", SERVER, family, host, &port, level][..], &options].concat();
            let server = Program::new("python3").args(args).in_netns(&pair.host().netns).start(bed)?;
            server.wait_bound_udp(if v6 { format!("[::]:{port}") } else { format!("0.0.0.0:{port}") })?;
            Ok(server)
        };
        let _servers = [start(53)?, start(153)?];
        let (attached, plain) = (pair.sender(v6, 53)?, pair.sender(v6, 153)?);
        for sender in [&attached, &plain] {
            let sender = SockRef::from(sender);
            if v6 {
                sender.set_unicast_hops_v6(33)?;
                sender.set_tclass_v6(0x48)?;
            } else {
                sender.set_ttl_v4(33)?;
                sender.set_tos_v4(0x48)?;
            }
        }
        let header = v2(CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)])?;
        for header in [&header[..], b"", b""] {
            let (told, wanted) = (ask(&attached, &[header, b"some bytes"])?, ask(&plain, &[b"some bytes"])?);
            ensure!(told == wanted, "{} and not {}", told.escape_ascii(), wanted.escape_ascii());
            ensure!(told.starts_with(b"(b'some bytes', 3, "), "{}", told.escape_ascii());
        }
    }
    Ok(())
}
