//! truepeer at both ends: the sending and the receiving side of each dialect, and the datagrams between them.

use std::net::UdpSocket;

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Running, Test};

use crate::kit::{
    BACKENDS, Backend, LISTENERS, ask, counted, proxy, receive, sender_towards, socket, spp, start,
    start_proxy, v2, wait_counted,
};

/// The listening addresses of the sending side, for clients without a header.
const ENTRANCES: [&str; 2] = ["127.0.0.1:4400", "[::1]:4400"];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = truepeer_testbed::tests![
        every_and_spp_put_a_header_before_each_datagram,
        first_puts_a_header_before_the_first_datagram,
        standalone_puts_a_header_before_the_first_datagram,
        a_forgotten_clients_port_is_not_another_clients_next,
        the_destination_is_the_address_that_the_client_sent_to,
        a_client_whose_header_has_mapped_addresses_keeps_its_name,
    ];
    for dialect in ["every", "first", "standalone", "spp"] {
        let name = format!("both_ends_of_a_tunnel_in_{dialect}");
        tests.push(Test::new(name, move |bed| both_ends(bed, dialect)));
    }
    tests
}

fn header_option(dialect: &str) -> &'static str {
    if dialect == "spp" { "spp" } else { "v2" }
}

/// The sending side towards `receivers`, or towards a real receiving side if there are none.
fn start_sending(bed: &Bed, dialect: &str, receivers: &[String; 2], options: &str) -> Result<Running> {
    let send_proxy = header_option(dialect);
    let options = format!("--header forbid --send-proxy {send_proxy} --udp-dialect {dialect} {options}");
    start(bed, proxy(&options).ipv4(&receivers[0]).ipv6(&receivers[1]), &ENTRANCES)
}

/// The clients are on this machine, so their claims are special and their ports in use: the address stays.
fn both_ends(bed: &Bed, dialect: &str) -> Result<()> {
    let backend = Backend::who(&BACKENDS)?;
    let receiving = start_proxy(bed, &format!("--udp-dialect {dialect} --allow-claims loopback"))?;
    let sending = start_sending(bed, dialect, &LISTENERS.map(str::to_owned), "")?;
    for (family, entrance) in ENTRANCES.iter().enumerate() {
        for _ in 0..5 {
            let client = sender_towards(entrance)?;
            for length in [0, 1, 100, 1400, 20_000] {
                let payload = vec![b'x'; length];
                let answer = ask(&client, &[&payload])?;
                let me = client.local_addr()?.ip();
                let expected = if me.is_ipv4() { format!("{me}:") } else { format!("[{me}]:") };
                ensure!(answer.starts_with(expected.as_bytes()), "{:?}", answer.get(..40));
                ensure!(answer.ends_with(&payload) && answer.len() > length + expected.len());
            }
        }
        ensure!(backend.seen().len() == 25 * (family + 1), "{}", backend.seen().len());
    }
    ensure!(counted(&sending, "flows_opened")? == 10);
    ensure!(counted(&receiving, "flows_opened")? == 10);
    ensure!(counted(&receiving, "datagrams_refused")? == 0);
    Ok(())
}

/// Receives the sending side's datagrams, and returns their source.
struct Wire {
    sockets: [UdpSocket; 2],
    addresses: [String; 2],
}

impl Wire {
    fn new() -> Result<Wire> {
        let sockets = [socket("127.0.0.1:0")?, socket("[::1]:0")?];
        let addresses = [sockets[0].local_addr()?.to_string(), sockets[1].local_addr()?.to_string()];
        Ok(Wire { sockets, addresses })
    }

    fn next(&self, family: usize) -> Result<(Vec<u8>, std::net::SocketAddr)> {
        let mut buffer = vec![0; 65_536];
        let (length, from) = self.sockets[family].recv_from(&mut buffer)?;
        buffer.truncate(length);
        Ok((buffer, from))
    }
}

fn every_and_spp_put_a_header_before_each_datagram(bed: &Bed) -> Result<()> {
    for dialect in ["every", "spp"] {
        let wire = Wire::new()?;
        let sending = start_sending(bed, dialect, &wire.addresses, "")?;
        for (family, entrance) in ENTRANCES.iter().enumerate() {
            let client = sender_towards(entrance)?;
            let me = client.local_addr()?;
            let header = if dialect == "spp" { spp(me, entrance)? } else { v2(me, entrance)? };
            for payload in [&b"one"[..], b"", b"three"] {
                client.send(payload)?;
                let (datagram, from) = wire.next(family)?;
                ensure!(datagram == [&header[..], payload].concat(), "{dialect}: {datagram:?}");
                // With SPP the header comes back and is removed.
                let answer = if dialect == "spp" { [&header[..], b"yes"].concat() } else { b"yes".to_vec() };
                wire.sockets[family].send_to(&answer, from)?;
                ensure!(receive(&client)? == b"yes");
            }
        }
        sending.stop()?;
    }
    Ok(())
}

fn first_puts_a_header_before_the_first_datagram(bed: &Bed) -> Result<()> {
    let wire = Wire::new()?;
    let _sending = start_sending(bed, "first", &wire.addresses, "")?;
    for (family, entrance) in ENTRANCES.iter().enumerate() {
        let client = sender_towards(entrance)?;
        let header = v2(client.local_addr()?, entrance)?;
        let mut sources = Vec::new();
        for (payload, before) in [(&b"one"[..], &header[..]), (b"two", &[]), (b"", &[])] {
            client.send(payload)?;
            let (datagram, from) = wire.next(family)?;
            ensure!(datagram == [before, payload].concat(), "{datagram:?}");
            sources.push(from);
        }
        ensure!(sources.iter().all(|source| *source == sources[0]), "{sources:?}");
    }
    Ok(())
}

fn standalone_puts_a_header_before_the_first_datagram(bed: &Bed) -> Result<()> {
    let wire = Wire::new()?;
    let _sending = start_sending(bed, "standalone", &wire.addresses, "")?;
    for (family, entrance) in ENTRANCES.iter().enumerate() {
        let client = sender_towards(entrance)?;
        let header = v2(client.local_addr()?, entrance)?;
        client.send(b"one")?;
        client.send(b"two")?;
        for expected in [&header[..], b"one", b"two"] {
            let (datagram, _) = wire.next(family)?;
            ensure!(datagram == expected, "{datagram:?}");
        }
    }
    Ok(())
}

/// The receiver forgets a client's port later than the sending side.
fn a_forgotten_clients_port_is_not_another_clients_next(bed: &Bed) -> Result<()> {
    let wire = Wire::new()?;
    let sending = start_sending(bed, "first", &wire.addresses, "--close-after 200ms --max-flows 60")?;
    let mut sources = Vec::new();
    for round in 1..=3 {
        // Kept until the round is over: if the kernel reused a port, both would be one client, whose second
        // datagram has no header.
        let mut clients = Vec::new();
        for _ in 0..10 {
            let client = sender_towards(ENTRANCES[0])?;
            client.send(b"?")?;
            let (datagram, from) = wire.next(0)?;
            let expected = [&v2(client.local_addr()?, ENTRANCES[0])?[..], b"?"].concat();
            ensure!(datagram == expected, "{datagram:?} instead of {expected:?}");
            ensure!(!sources.contains(&from), "{from} was another client's");
            sources.push(from);
            clients.push(client);
        }
        wait_counted(&sending, "flows_expired", 10 * round)?;
        // A late datagram for a forgotten client is dropped, and must not wake a worker repeatedly.
        for source in &sources {
            wire.sockets[0].send_to(b"late", source)?;
        }
    }
    // Sockets hold the retired ports, and release them when new flows need room.
    let held = || std::fs::read_dir(format!("/proc/{}/fd", sending.pid())).map(Iterator::count);
    ensure!(held()? > 30, "{} descriptors", held()?);
    for _ in 0..100 {
        let client = sender_towards(ENTRANCES[0])?;
        client.send(b"?")?;
        wire.next(0)?;
    }
    ensure!(held()? < 100, "{} descriptors", held()?);
    Ok(())
}

/// On a host with several addresses, each is a different destination and so a different flow.
fn the_destination_is_the_address_that_the_client_sent_to(bed: &Bed) -> Result<()> {
    let wire = Wire::new()?;
    let options = "--header forbid --send-proxy v2";
    let proxy = proxy(options).ipv4(&wire.addresses[0]).ipv6(&wire.addresses[1]);
    let sending = start(bed, proxy, &["0.0.0.0:4400"])?;
    let client = socket("127.0.0.1:0")?;
    let mut sources = Vec::new();
    for to in ["127.0.0.1:4400", "127.0.0.2:4400", "127.0.0.1:4400"] {
        client.send_to(b"?", to)?;
        let (datagram, from) = wire.next(0)?;
        ensure!(datagram == [&v2(client.local_addr()?, to)?[..], b"?"].concat(), "{to}: {datagram:?}");
        wire.sockets[0].send_to(b"!", from)?;
        let (_, answered_by) = client.recv_from(&mut [0; 10])?;
        ensure!(answered_by.to_string() == to, "sent to {to}, answered by {answered_by}");
        sources.push(from);
    }
    ensure!(sources[0] == sources[2] && sources[0] != sources[1], "{sources:?}");
    ensure!(counted(&sending, "flows_opened")? == 2);
    Ok(())
}

/// As senders with one socket for both families write clients of IPv4.
fn a_client_whose_header_has_mapped_addresses_keeps_its_name(bed: &Bed) -> Result<()> {
    let wire = Wire::new()?;
    let relay = proxy("--send-proxy v2").ipv4(&wire.addresses[0]).ipv6(&wire.addresses[1]);
    let _relay = start(bed, relay, &LISTENERS)?;
    let sender = sender_towards(LISTENERS[0])?;
    let header = v2("[::ffff:192.0.2.7]:5000", "[::ffff:198.51.100.1]:53")?;
    sender.send(&[&header[..], b"x"].concat())?;
    let (datagram, _) = wire.next(0)?;
    ensure!(datagram == [&v2("192.0.2.7:5000", "198.51.100.1:53")?[..], b"x"].concat(), "{datagram:?}");
    Ok(())
}
