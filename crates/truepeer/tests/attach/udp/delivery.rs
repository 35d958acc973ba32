//! Datagrams reach the backend, and its answers the sender.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_testbed::datagrams::{Backend, ask, receive, send, socket, spp, v2};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Test, Topology, client, tests};

use crate::bans::operate;

use super::{CLIENTS, DESTINATIONS, Pair, command, exchange, nth_client};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_backend_sees_the_client_on_whatever_address_it_is_bound_to,
        one_socket_for_both_families_sees_clients_of_both,
        a_backend_on_the_senders_host_sees_the_client,
        answers_follow_the_senders_newest_port,
        each_of_many_clients_behind_one_sender_is_answered,
        ports_are_mapped_both_ways,
        a_connected_socket_answers,
        a_connected_socket_answers_a_sender_on_its_own_host,
        whois_tells_the_client_of_a_flow,
    ]
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

fn whois_tells_the_client_of_a_flow(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    exchange(&sender, CLIENTS[0], &v2(CLIENTS[0], DESTINATIONS[0])?, b"x")?;
    let who = operate(bed, &["whois", CLIENTS[0], "--json"])?;
    let who: serde_json::Value = serde_json::from_str(&who)?;
    let one = &who[0];
    ensure!(who.as_array().is_some_and(|all| all.len() == 1) && one["client"] == CLIENTS[0], "{who}");
    let (sender, local) = (sender.local_addr()?.to_string(), pair.host().at(false, 53).to_string());
    ensure!(one["sender"] == sender && one["listener"] == local && one["kind"] == "udp", "{one}");
    ensure!(one["why"] == "the sender's header names it" && one["attachment"] == 0, "{one}");
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

/// All through one socket of the sender: only the client named in the backend's answer identifies it.
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

fn ports_are_mapped_both_ways(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53:5353/udp", "--port", "54:5353/udp"])?;
    let _backend = pair.backend(&["127.0.0.1:5353".to_owned(), "[::1]:5353".to_owned()])?;
    for v6 in [false, true] {
        for port in [53, 54] {
            let (client, destination) = (CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)]);
            // A connected socket receives only datagrams from the address and port that it sends to.
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

/// The kernel calls no hook for it, and it needs a route to the client, even a wrong one.
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

/// The answer would leave over another device, towards the client. IPv4 accepts such an answer only if this
/// host's addresses may arrive from the loopback without having been sent there.
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
