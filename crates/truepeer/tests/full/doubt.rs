//! Connections that the kernel leaves to truepeer: the sender notices no difference.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Behaviour, Test, client as sender, tests};

use crate::stand::{Stand, client, echo, header, header_v1};

const FAMILIES: [bool; 2] = [false, true];

pub(crate) fn tests() -> Vec<Test> {
    tests![
        headers_that_leave_something_to_decide_are_truepeers,
        what_truepeer_refuses_is_refused,
        a_backend_that_refuses_is_told_to_the_sender_at_once,
        a_sender_that_is_not_allowed_is_truepeers,
        what_full_cannot_do_is_done_as_auto,
        a_sender_that_offers_ecn_is_answered_without,
        a_client_that_is_its_own_backend_is_refused_at_once,
        an_ipv4_client_in_ipv6s_form_gets_the_ipv4_backend,
        doctor_tells_which_connections_are_truepeers,
    ]
}

/// Written in pieces.
fn in_pieces(stand: &Stand<'_>, v6: bool, bytes: &[u8]) -> Result<TcpStream> {
    let mut stream = stand.connect(v6)?;
    for piece in bytes.chunks(11) {
        stream.write_all(piece)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(stream)
}

fn headers_that_leave_something_to_decide_are_truepeers(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    for v6 in FAMILIES {
        stand.learn(v6)?;
        for bytes in [header(v6, 5000)?, header_v1(v6, 5001)?] {
            let mut stream = in_pieces(&stand, v6, &bytes)?;
            echo(&mut stream, &[2; 5000])?;
        }
        stand.backend.wait_for_log(&format!("{} accepted", client(v6, 5001)))?;
        let site = if v6 { "[2001:db8::1]:443" } else { "192.0.2.1:443" };
        let with_tlvs = sender::v2_with_tlvs(client(v6, 5002), site, &[(5, b"unique")])?;
        for bytes in [with_tlvs, sender::v2_local(), sender::v1_unknown()] {
            let mut stream = stand.connect(v6)?;
            stream.write_all(&bytes)?;
            echo(&mut stream, &[2; 5000])?;
        }
    }
    ensure!(stand.made()? == 0, "the kernel has made some");
    // The kernel could have made them: it makes the next ones.
    for v6 in FAMILIES {
        stand.open(v6, 5003)?;
    }
    stand.wait_made(2)
}

fn what_truepeer_refuses_is_refused(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &["--deny-clients", "198.51.100.0/24"])?;
    stand.learn(false)?;
    let own = stand.listener(false).ip();
    let site = "192.0.2.1:443";
    for (bytes, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not_proxy"),
        (sender::v2("127.0.0.1:5000", site)?, "claim_refused"),
        (sender::v2(format!("{own}:5000"), site)?, "claim_refused"),
        (sender::v2("198.51.100.9:5000", site)?, "client_denied"),
    ] {
        let mut stream = stand.connect(false)?;
        // It may be refused before it has sent everything.
        let _ = stream.write_all(&bytes);
        ensure!(!matches!(stream.read(&mut [0]), Ok(1..)), "{reason}: an answer");
        stand.truepeer.wait_for_log(&format!("close=\"{reason}\""))?;
    }
    let stream = stand.connect(false)?;
    stream.shutdown(Shutdown::Write)?;
    stand.truepeer.wait_for_log("close=\"closed_before_header\"")?;
    ensure!(stand.made()? == 0, "the kernel has made some");
    Ok(())
}

fn a_backend_that_refuses_is_told_to_the_sender_at_once(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    // Far above what a busy machine takes.
    const REPEATED: Duration = Duration::from_secs(20);
    let sender = stand.host("sender");
    let to = stand.listener(false).ip();
    sender.ip(&[&format!("route add {to}/32 dev relay rto_min {}ms", REPEATED.as_millis())])?;
    // Nor by a probe.
    sender.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_early_retrans", "0"))??;
    stand.backend.stop()?;
    for port in [5000, 5001] {
        let mut stream = stand.connect(false)?;
        let began = Instant::now();
        stream.write_all(&header(false, port)?)?;
        ensure!(stream.read(&mut [0]).is_err(), "no reset");
        let took = began.elapsed();
        ensure!(took < REPEATED / 2, "only when the header was repeated: {took:?}");
        stand.truepeer.wait_for_log(&format!("as 203.0.113.7:{port}: connect failed"))?;
    }
    let _backend = Behaviour::Echo.start_program(bed, &[stand.backend_at(false)], |program| {
        program.in_netns(&stand.host("backend").netns)
    })?;
    // truepeer connects and the kernel learns from that.
    stand.open(false, 5002)?;
    stand.open(false, 5003)?;
    stand.wait_made(1)
}

fn a_sender_that_is_not_allowed_is_truepeers(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    stand.host("sender").ip(&["addr add 10.77.0.99/24 dev relay"])?;
    let to = stand.listener(false);
    let mut stream = stand.host("sender").run(|| sender::connect_from("10.77.0.99:0", to))??;
    let _ = stream.write_all(&header(false, 5000)?);
    ensure!(!matches!(stream.read(&mut [0]), Ok(1..)), "an answer");
    stand.truepeer.wait_for_log("reason=\"sender_not_allowed\"")?;
    ensure!(stand.made()? == 0, "the kernel has made one");
    Ok(())
}

fn a_sender_that_offers_ecn_is_answered_without(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    for host in ["sender", "backend"] {
        stand.host(host).run(|| std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1"))??;
    }
    for (made, v6) in [(1, false), (2, true)] {
        stand.learn(v6)?;
        let mut stream = stand.open(v6, 5000)?;
        echo(&mut stream, &[2; 100_000])?;
        // truepeer learns of it a moment later.
        stand.wait_made(made)?;
    }
    Ok(())
}

fn a_client_that_is_its_own_backend_is_refused_at_once(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let began = Instant::now();
    let mut stream = stand.connect(false)?;
    let _ = stream.write_all(&sender::v2(stand.backend_at(false), "192.0.2.1:443")?);
    ensure!(!matches!(stream.read(&mut [0]), Ok(1..)), "an answer");
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(3), "only after {took:?}: {}", stand.truepeer.log());
    Ok(())
}

/// As `proxy` treats it without `full`. Linux drops segments from ::ffff:203.0.113.7.
fn an_ipv4_client_in_ipv6s_form_gets_the_ipv4_backend(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(true)?;
    let mut v2 = header(true, 5000)?;
    v2[16..32].copy_from_slice(&Ipv4Addr::new(203, 0, 113, 7).to_ipv6_mapped().octets());
    let v1 = b"PROXY TCP6 ::ffff:203.0.113.7 2001:db8::1 5001 443\r\n".to_vec();
    for (port, bytes) in [(5000, v2), (5001, v1)] {
        let began = Instant::now();
        let mut stream = stand.connect(true)?;
        stream.write_all(&bytes)?;
        echo(&mut stream, &[2; 5000])?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(3), "only after {took:?}: {}", stand.truepeer.log());
        stand.backend.wait_for_log(&format!("{} accepted", client(false, port)))?;
    }
    ensure!(stand.made()? == 0, "the kernel has made some");
    Ok(())
}

fn doctor_tells_which_connections_are_truepeers(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    for _ in 0..3 {
        let mut stream = stand.connect(false)?;
        stream.write_all(&sender::v2_local())?;
        echo(&mut stream, b"from the sender itself")?;
    }
    stand.open(false, 5000)?;
    stand.wait_made(1)?;
    let report = stand.examine()?;
    let line = report.lines().find(|line| line.contains("sessions of the kernel")).context("no line")?;
    ensure!(line.starts_with("note") && line.contains("(1 made)"), "{line}");
    let wanted = "3 times: headers that are not whole, or leave something to decide";
    ensure!(line.contains(wanted), "{line}");
    Ok(())
}

fn what_full_cannot_do_is_done_as_auto(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &["--mark", "7", "--routes", "manual"])?;
    stand.truepeer.wait_for_log("--splice full: as auto at")
}
