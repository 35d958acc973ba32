//! Datagrams.

use std::collections::HashMap;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_sys::udp::{Run, send_runs};
use truepeer_testbed::datagrams::{Backend, ask, hears_nothing, receive, send, socket, spp, v2};
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::servers::dns::{self, Dnsdist, Unbound};
use truepeer_testbed::{Bed, Host, Program, Test, Topology, client, tests, wait_for};

const CLIENTS: [&str; 2] = ["203.0.113.7:5000", "[2001:db8::7]:5000"];
const DESTINATIONS: [&str; 2] = ["192.0.2.1:53", "[2001:db8::1]:53"];

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_backend_sees_the_client_on_whatever_address_it_is_bound_to,
        one_socket_for_both_families_sees_clients_of_both,
        a_backend_on_the_senders_host_sees_the_client,
        answers_follow_the_senders_newest_port,
        each_of_many_clients_behind_one_sender_is_answered,
        answers_in_spp_carry_the_header_back,
        ports_are_mapped_both_ways,
        a_connected_socket_answers,
        a_connected_socket_answers_a_sender_on_its_own_host,
        every_length_of_header_and_payload_arrives,
        aggregated_datagrams_are_taken_apart,
        aggregated_answers_in_spp_each_carry_the_header_back,
        datagrams_are_refused_by_reason,
        a_sender_that_names_nobody_stands_for_itself,
        who_stood_for_itself_may_not_be_claimed_for_that,
        a_client_of_another_family_keeps_the_senders_address,
        others_than_the_senders_pass,
        a_client_that_comes_by_itself_is_answered_itself_in_the_end,
        clients_are_denied_while_it_runs,
        udp_ends_at_once_when_detached,
        a_dry_run_names_the_programs_of_udp,
    ];
    all.push(
        Test::new("unbound_sees_the_clients_of_dnsdist", unbound_sees_the_clients_of_dnsdist)
            .needs_program("dnsdist")
            .needs_program("unbound")
            .time_limit(Duration::from_secs(120)),
    );
    all.into_iter().map(|test| test.of_group("udp")).collect()
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

fn command(bed: &Bed, args: &[&str]) -> Result<Program> {
    ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, args)
}

fn counter_in(status: &Value, name: &str) -> Result<u64> {
    status["ports"][0]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
}

/// The client's header, some bytes, and what a backend that sees the client answers.
fn exchange(socket: &UdpSocket, client: &str, header: &[u8], payload: &[u8]) -> Result<()> {
    let answer = ask(socket, &[header, payload])?;
    let expected = [client.as_bytes(), b" ", payload].concat();
    ensure!(answer == expected, "{:?}", String::from_utf8_lossy(&answer[..answer.len().min(100)]));
    Ok(())
}

fn a_backend_sees_the_client_on_whatever_address_it_is_bound_to(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let own = pair.host().at(false, 53).to_string();
    let own6 = pair.host().at(true, 53).to_string();
    for (v6, bound) in [
        (false, "0.0.0.0:53"),
        (false, "127.0.0.1:53"),
        (false, own.as_str()),
        (true, "[::]:53"),
        (true, "[::1]:53"),
        (true, own6.as_str()),
    ] {
        let _backend = pair.backend(&[bound.to_owned()])?;
        let sender = pair.sender(v6, 53)?;
        let header = v2(CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)])?;
        for payload in [b"".as_slice(), b"x", b"some bytes"] {
            exchange(&sender, CLIENTS[usize::from(v6)], &header, payload)
                .with_context(|| bound.to_owned())?;
        }
    }
    ensure!(pair.counter(bed, "datagrams")? == 18, "{}", pair.status(bed)?);
    ensure!(pair.counter(bed, "answers")? == 18, "{}", pair.status(bed)?);
    Ok(())
}

/// It names IPv4 clients in IPv6 notation.
fn one_socket_for_both_families_sees_clients_of_both(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let _backend = pair.host().run(|| Backend::who_with(dual_stack(53)?))??;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    exchange(&pair.sender(false, 53)?, "[::ffff:203.0.113.7]:5000", &header, b"x")?;
    exchange(&pair.sender(true, 53)?, CLIENTS[1], &v2(CLIENTS[1], DESTINATIONS[1])?, b"x")?;
    Ok(())
}

fn dual_stack(port: u16) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
    socket.set_only_v6(false)?;
    socket.bind(&SockAddr::from(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)))?;
    Ok(socket.into())
}

fn a_backend_on_the_senders_host_sees_the_client(bed: &Bed) -> Result<()> {
    command(bed, &["--port", "53/udp", "--port", "5300:54/udp"])?.run(bed)?;
    let _backend = Backend::who(&["127.0.0.1:53", "[::1]:53", "127.0.0.1:54", "[::1]:54"])?;
    for port in [53, 5300] {
        for (place, ip) in ["127.0.0.1", "[::1]"].into_iter().enumerate() {
            let sender = socket(format!("{ip}:0"))?;
            sender.connect(format!("{ip}:{port}"))?;
            let header = v2(CLIENTS[place], DESTINATIONS[place])?;
            for len in [0, 5, 20_000, 65_000] {
                exchange(&sender, CLIENTS[place], &header, &Pattern::bytes(len))
                    .with_context(|| format!("{ip}, {port}, {len} bytes"))?;
            }
        }
    }
    Ok(())
}

fn answers_follow_the_senders_newest_port(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    for _ in 0..5 {
        exchange(&pair.sender(false, 53)?, CLIENTS[0], &header, b"from a new port")?;
    }
    ensure!(pair.status(bed)?["ports"][0]["flows"] == 1, "{}", pair.status(bed)?);
    Ok(())
}

fn nth_client(n: usize) -> String {
    format!("203.0.{}.{}:{}", 100 + n / 200, 1 + n % 200, 1024 + n % 7)
}

/// All by one socket of the sender's: only what the backend's answer names tells whose it is.
fn each_of_many_clients_behind_one_sender_is_answered(bed: &Bed) -> Result<()> {
    const CLIENTS: usize = 1000;
    for (dialect, port) in [("every", "53/udp"), ("spp", "53/udp"), ("every", "53:5353/udp")] {
        let pair = Pair::new()?;
        pair.attach(bed, &["--port", port, "--udp-dialect", dialect])?;
        let bound = if port == "53/udp" { "0.0.0.0:53" } else { "0.0.0.0:5353" };
        let _backend = pair.backend(&[bound.to_owned()])?;
        let sender = pair.sender(false, 53)?;
        for n in (0..CLIENTS).chain(0..CLIENTS) {
            let client = nth_client(n);
            let header =
                if dialect == "spp" { spp(&client, DESTINATIONS[0])? } else { v2(&client, DESTINATIONS[0])? };
            let answer = ask(&sender, &[&header, b"?"])?;
            let back = if dialect == "spp" { header.as_slice() } else { b"" };
            let expected = [back, client.as_bytes(), b" ?"].concat();
            ensure!(answer == expected, "{dialect} {port}, {client}: {:?}", String::from_utf8_lossy(&answer));
        }
        ensure!(pair.status(bed)?["ports"][0]["flows"] == CLIENTS, "{}", pair.status(bed)?);
    }
    Ok(())
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
        // There is no room for 38 bytes more than the network carries.
        let limit = if v6 { 1500 - 48 } else { 1500 - 28 };
        send(&sender, &[&header, &Pattern::bytes(limit - 38)])?;
        hears_nothing(&sender)?;
    }
    ensure!(pair.counter(bed, "answers_too_long")? == 2, "{}", pair.status(bed)?);
    ensure!(pair.counter(bed, "header_spp")? == 18, "{}", pair.status(bed)?);
    Ok(())
}

fn ports_are_mapped_both_ways(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53:5353/udp", "--port", "54:5353/udp"])?;
    let _backend = pair.backend(&["127.0.0.1:5353".to_owned(), "[::1]:5353".to_owned()])?;
    for v6 in [false, true] {
        for port in [53, 54] {
            let (client, destination) = (CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)]);
            // A connected socket hears only what comes from the address and port that it sends to.
            let sender = pair.sender(v6, port)?;
            exchange(&sender, client, &v2(client, destination)?, b"mapped")?;
            // Its own datagrams, too.
            let mut local = client::v2_local();
            local[13] = 0;
            let me = sender.local_addr()?.to_string();
            exchange(&sender, &me, &local, b"my own")?;
        }
    }
    Ok(())
}

/// Which the kernel doesn't ask the hooks for, and which needs a route to the client, if only a wrong one.
fn a_connected_socket_answers(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let pair = Pair { line };
    for (dialect, port) in [("every", "53/udp"), ("spp", "53/udp"), ("every", "53:5353/udp")] {
        pair.attach(bed, &["--port", port, "--udp-dialect", dialect])?;
        let bound = if port == "53/udp" { 53 } else { 5353 };
        for v6 in [false, true] {
            let backend = pair
                .host()
                .run(|| socket(if v6 { format!("[::]:{bound}") } else { format!("0.0.0.0:{bound}") }))??;
            let (client, sender) = (CLIENTS[usize::from(v6)], pair.sender(v6, 53)?);
            let destination = DESTINATIONS[usize::from(v6)];
            let header = if dialect == "spp" { spp(client, destination)? } else { v2(client, destination)? };
            send(&sender, &[&header, b"first"])?;
            let (_, from) = backend.recv_from(&mut [0; 100]).context("the first datagram")?;
            ensure!(from.to_string() == client);
            pair.host().run(|| backend.connect(from))??;
            let back = if dialect == "spp" { header.as_slice() } else { b"" };
            for payload in [b"one".as_slice(), b"", b"another"] {
                ensure!(backend.send(payload)? == payload.len());
                let answer = receive(&sender).with_context(|| format!("{dialect} {port} {client}"))?;
                ensure!(answer == [back, payload].concat(), "{answer:?}");
                send(&sender, &[&header, payload])?;
                let mut buffer = [0; 100];
                let len = backend.recv(&mut buffer)?;
                ensure!(&buffer[..len] == payload);
            }
        }
    }
    Ok(())
}

/// Which would leave by another device, towards the client. IPv4 takes such an answer only where an address of this host may
/// come in from the loopback without having been sent there.
fn a_connected_socket_answers_a_sender_on_its_own_host(bed: &Bed) -> Result<()> {
    let pair = Pair { line: Topology::line(&["lb", "host"])? };
    pair.host().run(|| std::fs::write("/proc/sys/net/ipv4/conf/lo/accept_local", "1"))??;
    for (dialect, port, bound) in
        [("every", "53/udp", 53), ("spp", "53/udp", 53), ("every", "53:5353/udp", 5353)]
    {
        pair.attach(bed, &["--allow", "loopback", "--port", port, "--udp-dialect", dialect])?;
        for (v6, to) in [(false, pair.host().at(false, 53)), (true, pair.host().at(true, 53))] {
            let (backend, sender) = pair.host().run(|| -> Result<_> {
                let sender = socket(if v6 { "[::]:0" } else { "0.0.0.0:0" })?;
                sender.connect(to)?;
                Ok((socket(if v6 { format!("[::]:{bound}") } else { format!("0.0.0.0:{bound}") })?, sender))
            })??;
            let (client, destination) = (CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)]);
            let header = if dialect == "spp" { spp(client, destination)? } else { v2(client, destination)? };
            send(&sender, &[&header, b"question"])?;
            let (_, from) = backend.recv_from(&mut [0; 100]).context("the question")?;
            ensure!(from.to_string() == client, "{from}");
            pair.host().run(|| backend.connect(from))??;
            let back = if dialect == "spp" { header.as_slice() } else { b"" };
            for payload in [b"one".as_slice(), b"", b"another"] {
                ensure!(backend.send(payload)? == payload.len());
                let answer = receive(&sender).with_context(|| format!("{dialect} {port} {client}"))?;
                ensure!(answer == [back, payload].concat(), "{answer:?}");
            }
        }
    }
    Ok(())
}

/// With the sums made by the kernel, and by nobody until the last moment; headers of even and odd lengths.
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

/// Sent in one call (UDP_SEGMENT), they stay together as far as the link can do it, each with its own header.
fn aggregated_datagrams_are_taken_apart(bed: &Bed) -> Result<()> {
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

/// Sent in one call (UDP_SEGMENT), by a socket that is connected to its client, and by one that isn't.
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

fn datagrams_are_refused_by_reason(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--header-max", "1024"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let whole = v2(CLIENTS[0], DESTINATIONS[0])?;
    let mut stream = v2(CLIENTS[0], DESTINATIONS[0])?;
    stream[12] = 0x31;
    let mut too_long = client::v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, &[0; 1000])])?;
    too_long[13] += 1;
    let mut overlong = whole.clone();
    overlong[15] = 200;
    let refused: [(&[u8], &str); 9] = [
        (b"no header at all", "refused_no_header"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", "refused_no_header"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "refused_no_header"),
        (&whole[..11], "refused_no_header"),
        (&whole[..27], "refused_malformed"),
        (&stream, "refused_malformed"),
        (&overlong, "refused_malformed"),
        (&v2("127.0.0.1:1", DESTINATIONS[0])?, "refused_claim"),
        (&too_long, "refused_too_long"),
    ];
    for (bytes, _) in &refused {
        send(&sender, &[bytes])?;
    }
    // More than a network packet holds.
    send(&sender, &[&whole, &Pattern::bytes(3000)])?;
    exchange(&sender, CLIENTS[0], &whole, b"the last one")?;
    for (_, reason) in &refused {
        let expected = refused.iter().filter(|(_, other)| other == reason).count() as u64;
        ensure!(pair.counter(bed, reason)? == expected, "{reason}: {}", pair.status(bed)?);
    }
    ensure!(pair.counter(bed, "refused_fragment")? == 1, "{}", pair.status(bed)?);
    ensure!(backend.seen().len() == 1, "{:?}", *backend.seen());
    Ok(())
}

fn a_sender_that_names_nobody_stands_for_itself(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--header", "optional"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let me = sender.local_addr()?.to_string();
    exchange(&sender, &me, &client::v2_local(), b"LOCAL")?;
    exchange(&sender, &me, &client::v2_raw(0x21, 0, &[])?, b"UNSPEC")?;
    exchange(&sender, &me, &client::v2(CLIENTS[0], DESTINATIONS[0])?, b"a header for TCP")?;
    exchange(&sender, &me, b"", b"no header")?;
    // What a header says of this very address holds until it speaks for itself.
    exchange(&sender, &me, &v2(&me, DESTINATIONS[0])?, b"named")?;
    exchange(&sender, &me, b"", b"no header")?;
    ensure!(pair.counter(bed, "named_itself")? == 3 && pair.counter(bed, "header_absent")? == 2);
    Ok(())
}

fn who_stood_for_itself_may_not_be_claimed_for_that(bed: &Bed) -> Result<()> {
    command(bed, &["--port", "5300:53/udp"])?.run(bed)?;
    let backend = Backend::who(&["127.0.0.1:53"])?;
    let connected = |from: &str| -> Result<UdpSocket> {
        let socket = socket(from)?;
        socket.connect("127.0.0.1:5300")?;
        Ok(socket)
    };
    let itself = connected("127.0.0.9:0")?;
    let me = itself.local_addr()?.to_string();
    exchange(&itself, &me, &client::v2_local(), b"LOCAL")?;
    let other = connected("127.0.0.8:0")?;
    send(&other, &[&v2(&me, DESTINATIONS[0])?, b"a claim"])?;
    exchange(&other, CLIENTS[0], &v2(CLIENTS[0], DESTINATIONS[0])?, b"a good one")?;
    exchange(&itself, &me, &client::v2_local(), b"LOCAL again")?;
    let status = command(bed, &["status", "--json"])?.run(bed)?;
    ensure!(counter_in(&serde_json::from_str(&status)?, "refused_claim")? == 1, "{status}");
    ensure!(backend.seen().len() == 3, "{:?}", *backend.seen());
    Ok(())
}

fn a_client_of_another_family_keeps_the_senders_address(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--port", "54/udp"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
    for v6 in [false, true] {
        let sender = pair.sender(v6, 53)?;
        let me = sender.local_addr()?.to_string();
        let other = usize::from(!v6);
        exchange(&sender, &me, &v2(CLIENTS[other], DESTINATIONS[other])?, b"x")?;
    }
    ensure!(pair.counter(bed, "client_not_showable")? == 2, "{}", pair.status(bed)?);
    // In SPP, the answer could not say whose it is.
    pair.attach(bed, &["--port", "53/udp", "--udp-dialect", "spp"])?;
    send(&pair.sender(false, 53)?, &[&spp(CLIENTS[1], DESTINATIONS[1])?, b"x"])?;
    wait_for("the refusal", || pair.counter(bed, "refused_family").is_ok_and(|count| count == 1))?;
    ensure!(backend.seen().len() == 2);
    Ok(())
}

fn others_than_the_senders_pass(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    let here = pair.host().v4.to_string();
    command(bed, &["--port", "53/udp", "--allow", &here])?.in_netns(&pair.host().netns).run(bed)?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    let me = sender.local_addr()?.to_string();
    exchange(&sender, &me, b"", &[&header, b"as it is".as_slice()].concat())?;
    ensure!(pair.counter(bed, "not_a_sender")? == 1);
    Ok(())
}

fn a_client_that_comes_by_itself_is_answered_itself_in_the_end(bed: &Bed) -> Result<()> {
    for address in ["10.9.9.8/32", "10.9.9.9/32"] {
        Program::new("ip").args(["addr", "add", address, "dev", "lo"]).run(bed)?;
    }
    command(bed, &["--port", "53/udp", "--allow", "127.0.0.9", "--close-after", "1s"])?.run(bed)?;
    let _backend = Backend::who(&["0.0.0.0:53"])?;
    let me = "10.9.9.9:5000";
    let sender = socket("127.0.0.9:0")?;
    sender.connect("127.0.0.1:53")?;
    exchange(&sender, me, &v2(me, DESTINATIONS[0])?, b"by the sender")?;
    let itself = socket(me)?;
    itself.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut answer = [0; 100];
    wait_for("the client to be answered itself", || {
        itself.send_to(b"directly", "10.9.9.8:53").is_ok() && itself.recv(&mut answer).is_ok()
    })?;
    ensure!(answer.starts_with(b"10.9.9.9:5000 directly"), "{}", answer.escape_ascii());
    // And through the sender as soon as it comes that way.
    let again = socket("127.0.0.9:0")?;
    again.connect("127.0.0.1:53")?;
    exchange(&again, me, &v2(me, DESTINATIONS[0])?, b"by the sender")
}

fn clients_are_denied_while_it_runs(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    exchange(&sender, CLIENTS[0], &header, b"before")?;
    let deny = bed.write("deny", "203.0.113.0/25\n")?;
    pair.attach(bed, &["--port", "53/udp", "--deny-clients", &deny.to_string_lossy()])?;
    send(&sender, &[&header, b"denied"])?;
    let other = "203.0.113.200:5000";
    exchange(&sender, other, &v2(other, DESTINATIONS[0])?, b"not denied")?;
    ensure!(pair.counter(bed, "refused_denied")? == 1 && backend.seen().len() == 2);
    Ok(())
}

fn udp_ends_at_once_when_detached(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--port", "80"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    exchange(&sender, CLIENTS[0], &header, b"before")?;
    let me = sender.local_addr()?.to_string();
    let all = [&header, b"after".as_slice()].concat();
    // A port less, and then all of it.
    pair.attach(bed, &["--port", "80"])?;
    exchange(&sender, &me, b"", &all)?;
    ensure!(pair.status(bed)?["ports"].as_array().is_some_and(|ports| ports.len() == 1));
    pair.attach(bed, &["--port", "53/udp"])?;
    exchange(&sender, CLIENTS[0], &header, b"again")?;
    command(bed, &["detach"])?.in_netns(&pair.host().netns).run(bed)?;
    exchange(&sender, &me, b"", &all)?;
    ensure!(pair.status(bed)?["attached"] == false);
    Ok(())
}

fn a_dry_run_names_the_programs_of_udp(bed: &Bed) -> Result<()> {
    let said = command(bed, &["--port", "53:5353/udp", "--dry-run"])?.run(bed)?;
    for expected in ["tc ingress lo: udp_ingress", "sendmsg4, sendmsg6", "ports: 53:5353/udp"] {
        ensure!(said.contains(expected), "{said}");
    }
    Ok(())
}

const QUERIES: u16 = 500;

/// dnsdist on the sender's host, in each datagram a header; Unbound as it is, on the loopback.
fn unbound_sees_the_clients_of_dnsdist(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    for n in 0..5 {
        client.ip(&[
            &format!("addr add 10.77.0.{}/24 dev lb", 100 + n),
            &format!("addr add fd77:0::{}/64 dev lb nodad", 100 + n),
        ])?;
    }
    let backends = ["127.0.0.1:53".parse()?, "[::1]:53".parse()?];
    let unbound = Unbound::start(bed, &backends, |program| program.in_netns(&host.netns))?;
    let allow = ["--allow", "10.77.0.0/16", "--allow", "fd77::/16"];
    command(bed, &[&["--port", "53/udp"], allow.as_slice()].concat())?.in_netns(&host.netns).run(bed)?;
    let dnsdist = Dnsdist::default().relay(lb.at(false, 53), host.at(false, 53), true).relay(
        lb.at(true, 54),
        host.at(true, 53),
        true,
    );
    let _dnsdist = dnsdist.start(bed, |program| program.in_netns(&lb.netns))?;
    let asked = client.run(|| ask_in_turn(&[lb.at(false, 53), lb.at(true, 54)]))??;
    for (name, asker) in &asked {
        let seen = Unbound::client_of(&unbound.log(), name)
            .with_context(|| format!("Unbound did not see {name}"))?;
        ensure!(seen == asker.to_string(), "Unbound saw {name} from {seen}, but {asker} had asked");
    }
    ensure!(asked.len() == usize::from(QUERIES));
    Ok(())
}

fn ask_in_turn(servers: &[SocketAddr; 2]) -> Result<HashMap<String, IpAddr>> {
    let mut asked = HashMap::new();
    for id in 0..QUERIES {
        let v6 = id % 2 == 1;
        let n = 100 + id / 2 % 5;
        let socket = socket(if v6 { format!("[fd77::{n}]:0") } else { format!("10.77.0.{n}:0") })?;
        socket.connect(servers[usize::from(v6)])?;
        let name = format!("q{id}.test");
        let answer = ask(&socket, &[&dns::query(id, &name)])?;
        ensure!(dns::is_answer(&answer, id), "{answer:?}");
        asked.insert(name, socket.local_addr()?.ip());
    }
    Ok(asked)
}
