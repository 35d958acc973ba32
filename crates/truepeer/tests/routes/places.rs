//! Every place in which a backend can be.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};
use truepeer_testbed::{
    Bed, Behaviour, Program, Running, Test, Topology, Truepeer, device_here, tests, wait_for,
};

use crate::support::{CLIENT_4, CLIENT_6, TRUEPEER, delivers_both, proxy, routes, seen_through, state};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_backend_on_loopback_sees_the_client,
        a_backend_on_another_local_address_sees_the_client,
        a_refusal_by_a_local_port_arrives_at_once,
        a_backend_on_another_host_sees_the_client,
        a_udp_backend_sees_the_client_and_its_reply_comes_back,
    ];
    all.push(
        Test::new("the_printed_precise_way_serves_a_backend_on_another_host", precise_way)
            .needs_program("nft"),
    );
    all.push(
        Test::new("go_mmproxys_docker_example_works_literally", docker_example).needs_program("iptables"),
    );
    all
}

fn a_backend_on_loopback_sees_the_client(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let truepeer = proxy(bed, 8443, "-4 127.0.0.1:80 -6 [::1]:80 --routes auto")?;
    delivers_both("127.0.0.1:8443")?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// Only the mark brings these replies back: they come from an address that others reach directly.
fn a_backend_on_another_local_address_sees_the_client(bed: &Bed) -> Result<()> {
    device_here()?;
    let before = state(bed)?;
    let _backend = Behaviour::Who.start(bed, &["10.9.0.1:80", "[fd00:9::1]:80"])?;
    for options in ["", "--mark 77"] {
        let truepeer =
            proxy(bed, 8443, &format!("-4 10.9.0.1:80 -6 [fd00:9::1]:80 --routes auto {options}"))?;
        delivers_both("127.0.0.1:8443").with_context(|| format!("with {options:?}"))?;
        truepeer.stop()?;
        ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    }
    Ok(())
}

/// Without fwmark_reflect the RST would leave towards the client, and truepeer would wait for its time-out.
fn a_refusal_by_a_local_port_arrives_at_once(bed: &Bed) -> Result<()> {
    device_here()?;
    let options = "-4 10.9.0.1:81 -6 [fd00:9::1]:81 --routes auto --connect-timeout 60s";
    let _truepeer = proxy(bed, 8443, options)?;
    for claimed in [CLIENT_4, CLIENT_6] {
        let asked = Instant::now();
        // an end or a reset: only the time matters
        let _ = seen_through("127.0.0.1:8443", claimed, claimed);
        ensure!(asked.elapsed() < Duration::from_secs(10), "{claimed}: {:?}", asked.elapsed());
    }
    Ok(())
}

/// A backend behind the proxy's host, and truepeer on that host.
struct Elsewhere {
    hosts: Topology,
    addresses: [SocketAddr; 2],
    _backend: Running,
}

impl Elsewhere {
    fn lay(bed: &Bed) -> Result<Self> {
        let hosts = Topology::line(&["lb", "proxy", "backend"])?;
        let backend = hosts.host("backend");
        let addresses = [backend.at(false, 80), backend.at(true, 80)];
        let _backend = Behaviour::Who.start_program(bed, &addresses, |p| p.in_netns(&backend.netns))?;
        Ok(Self { addresses, _backend, hosts })
    }

    fn truepeer(&self, bed: &Bed, options: &[&str]) -> Result<Running> {
        Truepeer::proxy(TRUEPEER)
            .listen("0.0.0.0:8443")
            .ipv4(self.addresses[0])
            .ipv6(self.addresses[1])
            .allow("any")
            .args(options)
            .with(|program| program.in_netns(&self.hosts.host("proxy").netns))
            .start(bed)
    }

    fn delivers_both(&self) -> Result<()> {
        let listener = self.hosts.host("proxy").at(false, 8443).to_string();
        self.hosts.host("lb").run(|| delivers_both(&listener))?
    }

    fn sh(&self, bed: &Bed, script: &str) -> Result<String> {
        let proxy = self.hosts.host("proxy");
        Program::new("sh").args(["-e", "-c", script]).in_netns(&proxy.netns).run(bed)
    }
}

/// The operator's own mark changes nothing: no rule of truepeer matches it on packets that leave for another
/// host.
fn a_backend_on_another_host_sees_the_client(bed: &Bed) -> Result<()> {
    let there = Elsewhere::lay(bed)?;
    let proxy = there.hosts.host("proxy");
    for options in [&["--routes", "auto"][..], &["--routes", "auto", "--mark", "77"]] {
        let truepeer = there.truepeer(bed, options)?;
        there.delivers_both()?;
        truepeer.stop()?;
        let left = proxy.run(|| state(bed))??;
        ensure!(!left.contains("proto 123"), "something is left:\n{left}");
    }
    Ok(())
}

fn precise_way(bed: &Bed) -> Result<()> {
    let there = Elsewhere::lay(bed)?;
    let [v4, v6] = there.addresses;
    let script = there.sh(bed, &format!("{TRUEPEER} routes apply -4 {v4} -6 {v6} --print"))?;
    let tables = script.lines().filter(|line| line.contains("route add"));
    let (_, way) = script.split_once("# instead").context("no other way is printed")?;
    let way = way.lines().filter_map(|line| line.strip_prefix("#   "));
    there.sh(bed, &tables.chain(way).collect::<Vec<_>>().join("\n"))?;
    let _truepeer = there.truepeer(bed, &["--routes", "manual"])?;
    there.delivers_both()
}

/// go-mmproxy's examples/docker, and the same for IPv6.
fn docker_example(bed: &Bed) -> Result<()> {
    let there = Elsewhere::lay(bed)?;
    for (iptables, ip) in [("iptables", "ip"), ("ip6tables", "ip -6")] {
        let example = format!(
            "{iptables} -t mangle -A OUTPUT -m mark --mark 123 -j CONNMARK --save-mark
             {iptables} -t mangle -A OUTPUT -m mark --mark 123 -j MARK --set-mark 0
             {iptables} -t mangle -A PREROUTING -m connmark --mark 123 -j CONNMARK --restore-mark
             {ip} rule add fwmark 123 lookup 100
             {ip} route add local default dev lo table 100"
        );
        there.sh(bed, &example)?;
    }
    let _truepeer = there.truepeer(bed, &["-mark", "123", "--routes", "manual"])?;
    there.delivers_both()
}

/// Wildcard sockets are the difficult case: they reply before they have a source address.
fn a_udp_backend_sees_the_client_and_its_reply_comes_back(bed: &Bed) -> Result<()> {
    // a default route, as every real machine has: replies must not use it
    device_here()?;
    routes(bed, "apply -p udp -4 127.0.0.1:53 -6 [::1]:53 -4 10.9.0.1:54 -6 [fd00:9::1]:54")?;
    for (bound, asked, client) in [
        ("127.0.0.1:53", "127.0.0.1:53", "192.0.2.7:5000"),
        ("0.0.0.0:53", "127.0.0.1:53", "192.0.2.7:5001"),
        ("[::]:53", "127.0.0.1:53", "192.0.2.7:5002"),
        ("[::1]:53", "[::1]:53", "[2001:db8::7]:5000"),
        ("[::]:53", "[::1]:53", "[2001:db8::7]:5001"),
        ("10.9.0.1:54", "10.9.0.1:54", "192.0.2.7:5003"),
        ("[fd00:9::1]:54", "[fd00:9::1]:54", "[2001:db8::7]:5002"),
    ] {
        let backend = bind(bound)?;
        udp_round_trip(&backend, asked.parse()?, client.parse()?)
            .with_context(|| format!("{client} to {asked}, bound to {bound}"))?;
    }
    routes(bed, "remove").map(drop)
}

/// Waits until a port that was just closed is free: a process that another test starts has copies of all
/// descriptors between fork and exec.
fn bind(address: &str) -> Result<UdpSocket> {
    let mut socket = None;
    wait_for(&format!("{address} to be free"), || {
        socket = UdpSocket::bind(address).ok();
        socket.is_some()
    })?;
    socket.context("a socket")
}

fn udp_round_trip(backend: &UdpSocket, asked: SocketAddr, client: SocketAddr) -> Result<()> {
    let socket = Socket::new(Domain::for_address(asked), Type::DGRAM, None)?;
    match client {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.bind(&client.into())?;
    socket.connect(&asked.into())?;
    let upstream = UdpSocket::from(socket);
    upstream.set_read_timeout(Some(Duration::from_secs(5)))?;
    backend.set_read_timeout(Some(Duration::from_secs(5)))?;
    upstream.send(b"?")?;
    let mut buffer = [0; 16];
    let (_, seen) = backend.recv_from(&mut buffer).context("the backend heard nothing")?;
    ensure!(seen.ip().to_canonical() == client.ip(), "the backend saw {seen}");
    backend.send_to(b"!", seen)?;
    upstream.recv(&mut buffer).context("no reply came back")?;
    Ok(())
}
