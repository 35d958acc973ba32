//! Datagrams of all lengths, aggregated ones, and SPP.

use std::io::IoSlice;
use std::os::fd::AsFd;

use anyhow::{Context, Result, ensure};
use truepeer_sys::udp::{Run, send_runs};
use truepeer_testbed::datagrams::{ask, hears_nothing, receive, send, socket, spp, v2};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Program, Test, Topology, client, tests};

use super::{CLIENTS, DESTINATIONS, Pair, exchange, nth_client};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        answers_in_spp_carry_the_header_back,
        every_length_of_header_and_payload_arrives,
        aggregated_datagrams_are_split,
        aggregated_answers_in_spp_each_carry_the_header_back,
        aggregates_of_parts_that_are_too_long_are_counted,
    ]
}

fn answers_in_spp_carry_the_header_back(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--udp-dialect", "spp"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned(), "[::1]:53".to_owned()])?;
    for v6 in [false, true] {
        let (client, sender) = (CLIENTS[usize::from(v6)], pair.sender(v6, 53)?);
        let header = spp(client, DESTINATIONS[usize::from(v6)])?;
        for len in [0, 1, 2, 511, 512, 513, 1024, 1300] {
            let payload = Pattern::bytes(len);
            let answer = ask(&sender, &[&header, &payload])?;
            let expected = [&header, client.as_bytes(), b" ", &payload].concat();
            ensure!(answer == expected, "{client}, {len} bytes came back as {}", answer.len());
        }
        // There is no room for the 38 additional bytes.
        let limit = if v6 { 1500 - 48 } else { 1500 - 28 };
        send(&sender, &[&header, &Pattern::bytes(limit - 38)])?;
        hears_nothing(&sender)?;
    }
    ensure!(pair.counter(bed, "answers_too_long")? == 2, "{}", pair.status(bed)?);
    ensure!(pair.counter(bed, "header_spp")? == 18, "{}", pair.status(bed)?);
    Ok(())
}

/// With checksums from the kernel, and with unfinished ones; headers of even and odd lengths.
fn every_length_of_header_and_payload_arrives(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
    for offloads in ["on", "off"] {
        for (host, device) in [(pair.lb(), "host"), (pair.host(), "lb")] {
            let set = ["-K", device, "tx", offloads, "rx", offloads];
            Program::new("ethtool").args(set).in_netns(&host.netns).run(bed)?;
        }
        for v6 in [false, true] {
            let (client, sender) = (CLIENTS[usize::from(v6)], pair.sender(v6, 53)?);
            for (tlv, len) in
                [(0, 0), (0, 1), (1, 0), (1, 1), (2, 512), (3, 513), (480, 600), (481, 601), (700, 400)]
            {
                let header =
                    client::v2_with_tlvs(client, DESTINATIONS[usize::from(v6)], &[(4, &vec![7; tlv])])?;
                let mut header = header;
                header[13] += 1;
                exchange(&sender, client, &header, &Pattern::bytes(len))
                    .with_context(|| format!("offloads {offloads}, {client}, a TLV of {tlv}, {len} bytes"))?;
            }
        }
    }
    ensure!(pair.counter(bed, "failed")? == 0);
    Ok(())
}

/// Datagrams sent in one call (UDP_SEGMENT) stay together as far as the link supports it, each with its own
/// header.
fn aggregated_datagrams_are_split(bed: &Bed) -> Result<()> {
    const COUNT: usize = 40;
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
    for v6 in [false, true] {
        let sender = pair.sender(v6, 53)?;
        let client = |n: usize| if v6 { format!("[2001:db8::7]:{}", 5000 + n) } else { nth_client(n) };
        let part = |n: usize, len: usize| -> Result<Vec<u8>> {
            Ok([v2(client(n), DESTINATIONS[usize::from(v6)])?, Pattern::bytes(len)].concat())
        };
        let mut parts = (0..COUNT - 1).map(|n| part(n, 101)).collect::<Result<Vec<_>>>()?;
        let segment_bytes = u16::try_from(parts[0].len())?;
        parts.push(part(COUNT - 1, 33)?);
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let run = Run { parts: &slices, segment_bytes: Some(segment_bytes) };
        ensure!(send_runs(sender.as_fd(), None, None, &[run])? == 1);
        let mut expected: Vec<Vec<u8>> = (0..COUNT)
            .map(|n| {
                let len = if n + 1 == COUNT { 33 } else { 101 };
                [client(n).as_bytes(), b" ", &Pattern::bytes(len)].concat()
            })
            .collect();
        let mut answers = (0..COUNT).map(|_| receive(&sender)).collect::<Result<Vec<_>>>()?;
        expected.sort();
        answers.sort();
        ensure!(answers == expected);
    }
    ensure!(backend.seen().len() == 2 * COUNT);
    ensure!(pair.counter(bed, "split_up")? == 2, "{}", pair.status(bed)?);
    Ok(())
}

/// Answers sent in one call (UDP_SEGMENT), from a socket that is connected to its client and from one that
/// isn't.
fn aggregated_answers_in_spp_each_carry_the_header_back(bed: &Bed) -> Result<()> {
    const COUNT: usize = 20;
    let pair = Pair { line: Topology::line(&["lb", "host"])? };
    pair.attach(bed, &["--port", "53/udp", "--udp-dialect", "spp"])?;
    for (v6, is_connected) in [(false, false), (false, true), (true, false), (true, true)] {
        let backend = pair.host().run(|| socket(if v6 { "[::]:53" } else { "0.0.0.0:53" }))??;
        let (client, sender) = (CLIENTS[usize::from(v6)], pair.sender(v6, 53)?);
        let header = spp(client, DESTINATIONS[usize::from(v6)])?;
        send(&sender, &[&header, b"question"])?;
        let (_, from) = backend.recv_from(&mut [0; 100]).context("the question")?;
        ensure!(from.to_string() == client, "{from}");
        if is_connected {
            pair.host().run(|| backend.connect(from))??;
        }
        let parts: Vec<Vec<u8>> = (0..COUNT)
            .map(|n| vec![u8::try_from(n).unwrap_or(0); if n + 1 == COUNT { 33 } else { 101 }])
            .collect();
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let run = Run { parts: &slices, segment_bytes: Some(101) };
        let to = (!is_connected).then_some(&from);
        ensure!(pair.host().run(|| send_runs(backend.as_fd(), to, None, &[run]))?? == 1);
        let mut answers = (0..COUNT).map(|_| receive(&sender)).collect::<Result<Vec<_>>>()?;
        answers.sort();
        let expected: Vec<Vec<u8>> = parts.iter().map(|part| [&header, part.as_slice()].concat()).collect();
        ensure!(answers == expected, "{client}, connected: {is_connected}");
    }
    ensure!(pair.counter(bed, "split_up")? == 4, "{}", pair.status(bed)?);
    Ok(())
}

/// On a link that carries them. The programs can split only parts that fit into their memory.
fn aggregates_of_parts_that_are_too_long_are_counted(bed: &Bed) -> Result<()> {
    const PART_BYTES: u16 = 17_000;
    let pair = Pair { line: Topology::line(&["lb", "host"])? };
    pair.lb().ip(&["link set host mtu 40000"])?;
    pair.host().ip(&["link set lb mtu 40000"])?;
    pair.attach(bed, &["--port", "53/udp", "--udp-dialect", "spp"])?;
    let backend = pair.host().run(|| socket("0.0.0.0:53"))??;
    let sender = pair.sender(false, 53)?;
    let header = spp(CLIENTS[0], DESTINATIONS[0])?;
    let long = [&header, Pattern::bytes(usize::from(PART_BYTES) - header.len()).as_slice()].concat();
    let parts = [IoSlice::new(&long); 2];
    let run = Run { parts: &parts, segment_bytes: Some(PART_BYTES) };
    ensure!(send_runs(sender.as_fd(), None, None, &[run])? == 1);

    send(&sender, &[&header, b"question"])?;
    let (bytes, client) = backend.recv_from(&mut [0; 100]).context("the question")?;
    ensure!(bytes == b"question".len() && client.to_string() == CLIENTS[0], "{bytes} from {client}");
    ensure!(pair.counter(bed, "refused_aggregated")? == 1, "{}", pair.status(bed)?);

    let run = Run { parts: &parts, segment_bytes: Some(PART_BYTES) };
    ensure!(pair.host().run(|| send_runs(backend.as_fd(), Some(&client), None, &[run]))?? == 1);
    pair.host().run(|| backend.send_to(b"answer", client))??;
    ensure!(receive(&sender)? == [&header, b"answer".as_slice()].concat());
    ensure!(pair.counter(bed, "answers_aggregated")? == 1, "{}", pair.status(bed)?);
    Ok(())
}
