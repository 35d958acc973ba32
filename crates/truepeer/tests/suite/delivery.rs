//! Destinations and client addresses in difficult cases: conflicts, families, marks, backends that fail.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener};

use anyhow::{Context, ensure};
use truepeer_testbed::client::{self, End};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Topology, User, sockets, tests};

use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, Stand, ask, bare_proxy, classic_rules, header_of,
    open_as, proxy_without_routes, refused,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_tuple_in_use_keeps_the_address_and_takes_another_port,
        a_tuple_in_use_is_refused_if_asked_for,
        an_ipv4_client_is_refused_by_an_ipv6_backend,
        an_ipv4_client_reaches_an_ipv6_backend_under_the_nat64_prefix,
        an_ipv6_client_is_refused_by_an_ipv4_backend,
        an_ipv6_client_reaches_an_ipv4_backend_under_a_stable_class_e_address,
        a_backend_that_refuses_resets_the_sender,
        a_backend_on_another_host_that_refuses_resets_the_sender,
        a_backend_that_does_not_answer_times_out,
        a_backend_on_another_host_sees_the_client,
        a_client_on_this_host_keeps_its_address,
        a_client_keeps_a_port_that_a_program_here_listens_on,
        no_connection_is_made_to_itself,
        an_ipv6_client_on_a_host_without_ipv6_is_explained,
        an_idle_session_ends_in_time,
    ];
    all.push(
        Test::new("a_missing_capability_is_explained", a_missing_capability_is_explained)
            .needs_several_users(),
    );
    all.push(
        Test::new(
            "without_the_privilege_a_held_port_is_named_and_counted",
            without_the_privilege_a_held_port_is_named_and_counted,
        )
        .needs_several_users(),
    );
    let with_nft = tests![the_mark_is_on_upstream_packets, bytes_sent_during_the_connect_arrive];
    all.extend(with_nft.into_iter().map(|test| test.needs_program("nft")));
    all
}

/// Opens two sessions of one client to one backend. The first stays open; the second's answer is returned.
fn second_session(bed: &Bed, options: &[&str]) -> anyhow::Result<(Stand, std::io::Result<String>)> {
    let stand = Stand::with_options(bed, Behaviour::Banner, options)?;
    let mut first = open_as(CLIENT_V4.parse()?)?;
    first.read_exact(&mut [0; 8])?;
    let mut second = open_as(CLIENT_V4.parse()?)?;
    second.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    let outcome = second.read_to_string(&mut answer).map(|_| answer);
    ensure!(client::ask(&mut first, b"still here")?.ends_with("still here"));
    Ok((stand, outcome))
}

fn a_tuple_in_use_keeps_the_address_and_takes_another_port(bed: &Bed) -> anyhow::Result<()> {
    let (stand, answer) = second_session(bed, &[])?;
    let answer = answer?;
    let seen: SocketAddr = answer.trim_start_matches("SSH-2.0-testbed ").trim().parse()?;
    ensure!(seen.ip().to_string() == "203.0.113.7" && seen.port() != 5000, "{seen}");
    stand.truepeer.wait_for_log("--on-conflict")
}

fn a_tuple_in_use_is_refused_if_asked_for(bed: &Bed) -> anyhow::Result<()> {
    let (stand, answer) = second_session(bed, &["--on-conflict", "refuse"])?;
    ensure!(answer.is_err(), "{answer:?}");
    stand.truepeer.wait_for_log("--on-conflict")
}

/// One backend for clients of both families.
fn all_to(bed: &Bed, backend: &str, options: &[&str]) -> anyhow::Result<[Running; 2]> {
    let who = Behaviour::Who.start(bed, &[backend])?;
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4(backend).ipv6(backend).args(options).start(bed)?;
    Ok([truepeer, who])
}

/// This is refused at the start. A host name with only IPv6 addresses is refused client by client; policy's
/// tests cover that.
fn an_ipv4_client_is_refused_by_an_ipv6_backend(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4(BACKEND_V6).ipv6(BACKEND_V6).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(status.code() == Some(2) && log.lines().count() == 1, "{status}: {log}");
    ensure!(
        log.contains("-4 [::1]:8000: an IPv6 address") && log.contains("--nat64-prefix 64:ff9b::/96"),
        "{log}"
    );
    Ok(())
}

fn an_ipv4_client_reaches_an_ipv6_backend_under_the_nat64_prefix(bed: &Bed) -> anyhow::Result<()> {
    let _running = all_to(bed, BACKEND_V6, &["--nat64-prefix", "64:ff9b::/96"])?;
    let seen = ask(&header_of(CLIENT_V4.parse()?)?)?;
    ensure!(seen == "[64:ff9b::cb00:7107]:5000", "{seen}");
    Ok(())
}

fn an_ipv6_client_is_refused_by_an_ipv4_backend(bed: &Bed) -> anyhow::Result<()> {
    let [truepeer, _who] = all_to(bed, BACKEND_V4, &[])?;
    refused(&header_of(CLIENT_V6.parse()?)?)?;
    truepeer.wait_for_log("--pseudo-ipv4")?;
    ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
    Ok(())
}

fn an_ipv6_client_reaches_an_ipv4_backend_under_a_stable_class_e_address(bed: &Bed) -> anyhow::Result<()> {
    let _running = all_to(bed, BACKEND_V4, &["--pseudo-ipv4"])?;
    let seen =
        |client: &str| -> anyhow::Result<SocketAddr> { Ok(ask(&header_of(client.parse()?)?)?.parse()?) };
    let (first, neighbour) = (seen("[2001:db8:1:2::7]:5000")?, seen("[2001:db8:1:2::8]:5001")?);
    let stranger = seen("[2001:db8:1:3::7]:5002")?;
    let SocketAddr::V4(class_e) = first else { anyhow::bail!("{first} is not IPv4") };
    ensure!(class_e.ip().octets()[0] >= 240 && class_e.port() == 5000, "{class_e}");
    ensure!(first.ip() == neighbour.ip(), "one network, two addresses: {first}, {neighbour}");
    ensure!(first.ip() != stranger.ip(), "two networks, one address: {first}");
    Ok(())
}

/// With and without data after the header.
fn refused_by_the_backend(listener: SocketAddr) -> anyhow::Result<()> {
    for data in [b"".as_slice(), b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = client::connect(listener)?;
        stream.write_all(&[&header_of(CLIENT_V4.parse()?)?, data].concat())?;
        let end = client::read_end(&mut stream)?;
        ensure!(end == End::Reset, "with {} bytes of data: {end:?}", data.len());
    }
    Ok(())
}

fn a_backend_that_refuses_resets_the_sender(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4(BACKEND_V4).ipv6(BACKEND_V6).start(bed)?;
    refused_by_the_backend(DOOR_V4.parse()?)?;
    truepeer.wait_for_log("is the backend listening there?")?;
    ensure!(truepeer.log().contains(BACKEND_V4), "{}", truepeer.log());
    Ok(())
}

/// The refusal arrives after connect() has returned.
fn a_backend_on_another_host_that_refuses_resets_the_sender(bed: &Bed) -> anyhow::Result<()> {
    let line = Topology::line(&["host", "backend"])?;
    let backend = line.host("backend");
    backend.ip(&["route add 203.0.113.0/24 via 10.77.0.1"])?;
    let truepeer = truepeer_for_another_host(bed, &line, backend.at(false, 80), &[])?;
    line.host("host").run(|| refused_by_the_backend(DOOR_V4.parse()?))??;
    truepeer.wait_for_log("is the backend listening there?")
}

/// truepeer beside its backend's host. The topology's routes bring replies back.
fn truepeer_for_another_host(
    bed: &Bed,
    line: &Topology,
    backend: SocketAddr,
    options: &[&str],
) -> anyhow::Result<Running> {
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4(backend).args(options);
    truepeer.with(|program| program.in_netns(&line.host("host").netns)).start(bed)
}

fn a_backend_on_another_host_sees_the_client(bed: &Bed) -> anyhow::Result<()> {
    let line = Topology::line(&["client", "host", "backend"])?;
    let backend = line.host("backend");
    let address = backend.at(false, 80);
    let _who = Behaviour::Who.start_program(bed, &[address], |who| who.in_netns(&backend.netns))?;
    let _truepeer = truepeer_for_another_host(bed, &line, address, &["--mark", "77"])?;
    let seen = line.host("host").run(|| ask(&header_of(CLIENT_V4.parse()?)?))??;
    ensure!(seen == CLIENT_V4, "{seen}");
    Ok(())
}

/// No host answers for this address, not even with an ICMP error.
fn a_backend_that_does_not_answer_times_out(bed: &Bed) -> anyhow::Result<()> {
    let line = Topology::line(&["host", "backend"])?;
    let nobody = "10.77.0.99:80".parse()?;
    let truepeer = truepeer_for_another_host(bed, &line, nobody, &["--connect-timeout", "300ms"])?;
    let end = line.host("host").run(|| refused(&header_of(CLIENT_V4.parse()?)?))??;
    ensure!(end == End::Reset, "{end:?}");
    truepeer.wait_for_log("did not answer")
}

fn the_mark_is_on_upstream_packets(bed: &Bed) -> anyhow::Result<()> {
    let rules = "\
        table inet t {\n chain out {\n  type filter hook output priority 0\n\
          tcp dport 8000 meta mark 77 counter comment \"marked\"\n\
          tcp dport 8000 meta mark != 77 counter comment \"bare\"\n\
          tcp sport 8443 meta mark 77 counter comment \"downstream\"\n }\n}\n";
    Program::new("nft").args(["-f", "-"]).input(rules).run(bed)?;
    let _stand = Stand::with_options(bed, Behaviour::Who, &["--mark", "77"])?;
    for client in [CLIENT_V4, CLIENT_V6] {
        ensure!(ask(&header_of(client.parse()?)?)? == client);
    }
    let counters = Program::new("nft").args(["list", "ruleset"]).run(bed)?;
    let packets = |name: &str| counters.lines().find(|line| line.contains(name)).map(str::to_owned);
    let is_zero = |name| packets(name).is_some_and(|line| line.contains("packets 0 "));
    ensure!(!is_zero("\"marked\"") && is_zero("\"bare\"") && is_zero("\"downstream\""), "{counters}");
    Ok(())
}

fn an_idle_session_ends_in_time(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Echo, &["--idle-timeout", "1s"])?;
    let mut idle = open_as(CLIENT_V4.parse()?)?;
    let mut busy = open_as("203.0.113.8:5000".parse()?)?;
    idle.set_nonblocking(true)?;
    let mut rounds = 0;
    // One sends a byte every 50 ms, the other nothing: for the idle time-out, and twice that.
    while idle.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
        ping(&mut busy)?;
        rounds += 1;
        ensure!(rounds < 200, "the idle session is still there");
    }
    ensure!(rounds > 10, "the idle session ended at once");
    for _ in 0..rounds {
        ping(&mut busy)?;
    }
    stand.truepeer.wait_for_log("idle")
}

fn ping(stream: &mut std::net::TcpStream) -> anyhow::Result<()> {
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])?;
    std::thread::sleep(std::time::Duration::from_millis(50)); // the pace is what is tested
    Ok(())
}

/// Data and even the end arrive before the backend has answered: its first SYN is lost.
fn bytes_sent_during_the_connect_arrive(bed: &Bed) -> anyhow::Result<()> {
    const LEN: usize = 300_000;
    const SYN_SENT: u8 = 2;
    // On a busy machine the rules stand for longer than a backend gets by default.
    let stand = Stand::with_options(bed, Behaviour::Digest, &["--connect-timeout", "60s"])?;
    let loss =
        "table inet t {\n chain in {\n  type filter hook input priority 0\n  tcp dport 8000 drop\n }\n}\n";
    Program::new("nft").args(["-f", "-"]).input(loss).run(bed)?;
    let mut stream = open_as(CLIENT_V4.parse()?)?;
    bed.wait_for("the backend to be dialled", || {
        sockets::all().iter().any(|socket| socket.state == SYN_SENT)
    })?;
    stream.write_all(&Pattern::bytes(LEN))?;
    stream.shutdown(Shutdown::Write)?;
    Program::new("nft").args(["delete", "table", "inet", "t"]).run(bed)?;
    let answer = client::ask(&mut stream, b"")?; // the kernel retries after a second
    ensure!(answer.trim() == Digest::of_pattern(LEN as u64), "{answer:?}");
    stand.backend.wait_for_log(&format!("{CLIENT_V4} eof {LEN}"))
}

/// The client's own socket has its port: the backend sees the address with another port. For bind(), a
/// wildcard listener also has its port on the client's address.
fn a_client_keeps_a_port_that_a_program_here_listens_on(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Hold, &["--on-conflict", "refuse"])?;
    let listener = TcpListener::bind("[::]:5000")?;
    let sessions = [open_as(CLIENT_V4.parse()?)?, open_as(CLIENT_V6.parse()?)?];
    for client in [CLIENT_V4, CLIENT_V6] {
        bed.wait_for(client, || stand.backend.stdout().contains(&format!("{client} accepted")))?;
    }
    // The listening program may restart meanwhile, and serves its own clients.
    drop(listener);
    // A child that another test starts holds a copy of the old one until it executes its program.
    let mut again = None;
    bed.wait_for("the port", || {
        again = TcpListener::bind("[::]:5000").ok();
        again.is_some()
    })?;
    let listener = again.context("no listener")?;
    let _own = client::connect("127.0.0.1:5000")?;
    ensure!(listener.accept()?.1.ip().to_canonical().is_loopback());
    drop(sessions);
    Ok(())
}

fn without_the_privilege_a_held_port_is_named_and_counted(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let confined = proxy_without_routes().listen(DOOR_V4).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
    let confined = confined.with(|program| program.as_user(User::TESTER).with_capabilities(&["net_raw"]));
    let stand = Stand::behind(bed, Behaviour::Who, &confined)?;
    let _listener = TcpListener::bind("[::]:5000")?;
    let seen: SocketAddr = ask(&header_of(CLIENT_V4.parse()?)?)?.parse()?;
    ensure!(seen.ip().to_string() == "203.0.113.7" && seen.port() != 5000, "{seen}");
    stand.truepeer.wait_for_log("client_port_held")?;
    stand.truepeer.wait_for_log("a program on this host holds the client's port")?;
    stand.truepeer.signal(rustix::process::Signal::USR1)?;
    stand.truepeer.wait_for_log("client_ports_held=1")
}

/// If nothing listens on the backend's port, the kernel may choose exactly that port.
fn no_connection_is_made_to_itself(bed: &Bed) -> anyhow::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001")?;
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4("127.0.0.1:40000").ipv6("[::1]:40000");
    let truepeer = truepeer.args(&["--send-proxy", "v1"]).start(bed)?;
    for port in 31_000..31_020 {
        let mut stream = client::connect_from(format!("127.0.0.1:{port}"), DOOR_V4)?;
        let _ = stream.write_all(&header_of(CLIENT_V4.parse()?)?);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        ensure!(answer.is_empty(), "{:?}", String::from_utf8_lossy(&answer));
    }
    truepeer.wait_for_log("connected_with_itself")
}

fn a_client_on_this_host_keeps_its_address(bed: &Bed) -> anyhow::Result<()> {
    Program::new("ip").args(["addr", "add", "198.51.100.1/32", "dev", "lo"]).run(bed)?;
    let stand = Stand::with_options(bed, Behaviour::Who, &["--allow", "198.51.100.1"])?;
    let mut stream = client::connect_from("198.51.100.1:0", DOOR_V4)?;
    let header = header_of(stream.local_addr()?)?;
    let seen: SocketAddr = client::ask(&mut stream, &header)?.trim().parse()?;
    ensure!(seen.ip().to_string() == "198.51.100.1", "{seen}");
    ensure!(stand.truepeer.is_alive());
    Ok(())
}

/// The class of CVE-2024-23325: an address of a family that this host lacks.
fn an_ipv6_client_on_a_host_without_ipv6_is_explained(bed: &Bed) -> anyhow::Result<()> {
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")?;
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let truepeer = proxy_without_routes().listen(DOOR_V4).ipv4(BACKEND_V4).ipv6(BACKEND_V6).start(bed)?;
    ensure!(refused(&header_of(CLIENT_V6.parse()?)?)? == End::Reset);
    truepeer.wait_for_log(BACKEND_V6)?;
    ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4, "{}", truepeer.log());
    Ok(())
}

fn a_missing_capability_is_explained(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = proxy_without_routes().listen(DOOR_V4).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
    let truepeer =
        truepeer.with(|program| program.as_user(User::TESTER).with_capabilities(&[])).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(1), "{status}");
    truepeer.wait_for_log("give truepeer CAP_NET_RAW or CAP_NET_ADMIN")
}
