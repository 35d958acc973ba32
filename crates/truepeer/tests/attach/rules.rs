//! Who is served and how, who is refused, and who passes unchanged.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{Bed, Behaviour, Test, Topology, client, tests};

use crate::kit::{
    BACKEND, DESTINATION, LISTENER, attach, attach_on, command, counter, echo, header, is_answered,
    longer_header, session, start, status,
};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_connection_from_before_is_untouched,
        connections_from_others_than_senders_pass_untouched,
        headers_of_others_than_senders_are_counted_and_told,
        rules_are_changed_while_it_runs,
        refusals_are_counted_by_reason,
        a_server_that_speaks_first_waits_a_second_for_an_optional_header,
        each_sender_has_its_rule,
        an_ipv6_client_keeps_the_senders_address_on_an_ipv4_socket,
        a_client_that_cannot_be_shown_is_told_of_or_refused,
        syn_cookies_take_whole_headers_and_refuse_split_ones,
        a_dry_run_changes_nothing,
        forwarded_connections_are_left_alone,
    ]
}

fn a_connection_from_before_is_untouched(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    let mut before = session(b"")?;
    is_answered(&mut before)?;
    start(bed, &[])?;
    is_answered(&mut before)?;
    ensure!(client::ask(&mut before, b"PROXY is only a word here")? == "PROXY is only a word here");
    Ok(())
}

fn connections_from_others_than_senders_pass_untouched(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &["--allow", "10.0.0.0/8"])?;
    let line = client::v1("203.0.113.1:1001", DESTINATION)?;
    let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
    ensure!(client::ask(&mut stream, &line)?.as_bytes() == line);
    ensure!(echo.log().contains("127.0.0.9:4000 accepted"));
    ensure!(counter(bed, "not_a_sender")? == 1 && counter(bed, "header_unlisted")? == 1);
    Ok(())
}

/// They pass, but the operator has forgotten a sender, or an address changes on its way.
fn headers_of_others_than_senders_are_counted_and_told(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    start(bed, &["--allow", "10.0.0.0/8"])?;
    for (bytes, count) in [
        (client::v1("203.0.113.1:1001", DESTINATION)?, 1),
        (header("203.0.113.1:1002")?, 2),
        (b"PROXIES are not PROXY".to_vec(), 2),
        (b"\r\n\r\n\0\r\nQUITE another".to_vec(), 2),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 2),
    ] {
        let mut stream = client::connect_from("127.0.0.9:0", LISTENER)?;
        stream.write_all(&bytes)?;
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back)?;
        ensure!(back == bytes && counter(bed, "header_unlisted")? == count, "{}", status(bed)?);
        // Later in a connection it is data.
        stream.write_all(&header("203.0.113.1:1003")?)?;
        stream.read_exact(&mut [0])?;
        ensure!(counter(bed, "header_unlisted")? == count, "{}", status(bed)?);
    }
    let follow = command(bed, &["status", "--follow"])?.start(bed)?;
    follow.wait_for_log("127.0.0.9:")?;
    follow.wait_for_log("to port 80/tcp: a header, not from an allowed sender")?;
    ensure!(attach(bed, &["status"])?.contains("--allow does not list"), "{}", attach(bed, &["status"])?);
    Ok(())
}

/// The load balancer sends headers; health checks come from an address of the same prefix without one.
fn each_sender_has_its_rule(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let rules =
        ["--allow", "loopback", "--header", "127.0.0.8/30=optional", "--header", "127.0.0.9/32=require"];
    start(bed, &rules)?;
    let ask = |from: &str, bytes: &[u8]| -> Result<client::End> {
        let mut stream = client::connect_from(from, LISTENER)?;
        stream.write_all(bytes)?;
        Ok(client::read_end(&mut stream)?)
    };
    let is_seen = |from: &str, bytes: &[u8], expected: &str| -> Result<()> {
        let seen = client::ask(&mut client::connect_from(from, LISTENER)?, bytes)?;
        ensure!(seen.trim().starts_with(expected), "{from}: {seen}");
        Ok(())
    };
    for (from, client) in [("127.0.0.7:4001", "203.0.113.1:1001"), ("127.0.0.10:4002", "203.0.113.2:1002")] {
        is_seen(from, &header(client)?, client)?;
    }
    is_seen("127.0.0.10:4003", b"GET / HTTP/1.1\r\n\r\n", "127.0.0.10:4003")?;
    for refused in ["127.0.0.7:4004", "127.0.0.9:4005"] {
        let end = ask(refused, b"GET / HTTP/1.1\r\n\r\n")?;
        ensure!(end == client::End::Reset, "{refused}: {end:?}");
    }
    ensure!(counter(bed, "refused_no_header")? == 2);
    let told = start(bed, &[&rules[..], &["--dry-run"]].concat())?;
    ensure!(told.contains("(header: require, 127.0.0.8/30=optional, 127.0.0.9/32=require)"), "{told}");
    Ok(())
}

fn rules_are_changed_while_it_runs(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    let deny = bed.write("deny", "203.0.113.0/25\n")?;
    let said = start(bed, &["--deny-clients", &deny.to_string_lossy()])?;
    ensure!(said.contains("1 open connections continue"), "{said}");
    let mut denied = session(&header("203.0.113.1:1002")?)?;
    ensure!(client::read_end(&mut denied)? == client::End::Reset);
    let mut allowed = session(&header("203.0.113.200:1003")?)?;
    is_answered(&mut allowed)?;
    is_answered(&mut open)?;
    ensure!(!echo.log().contains("203.0.113.1:1002"));
    ensure!(counter(bed, "refused_denied")? == 1);
    Ok(())
}

fn refusals_are_counted_by_reason(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let too_long = client::v2_with_tlvs("203.0.113.1:1", DESTINATION, &[(4, &[0; 20_000])])?;
    let refused: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n\r\n", "refused_no_header"),
        (b"PROXY TCP4 1.2.3.4.5 1.2.3.4 1 2\r\n", "refused_malformed"),
        (&client::v2_raw(0x21, 0x11, &[])?, "refused_malformed"),
        (&header("127.0.0.1:1")?, "refused_claim"),
        (&too_long, "refused_too_long"),
    ];
    for (bytes, _) in &refused {
        let mut stream = client::connect(LISTENER)?;
        let _ = stream.write_all(bytes); // a reset may arrive before the end of a long header was sent
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", bytes.escape_ascii());
    }
    for (_, reason) in &refused {
        let expected = refused.iter().filter(|(_, other)| other == reason).count() as u64;
        ensure!(counter(bed, reason)? == expected, "{reason}: {}", status(bed)?);
    }
    ensure!(!echo.log().contains("accepted"));
    Ok(())
}

fn a_server_that_speaks_first_waits_a_second_for_an_optional_header(bed: &Bed) -> Result<()> {
    let banner = Behaviour::Banner.start(bed, &[BACKEND])?;
    start(bed, &["--header", "optional", "--header-timeout", "60s"])?;
    let begin = Instant::now();
    let mut silent = client::connect_from("127.0.0.9:4000", LISTENER)?;
    let said = client::ask(&mut silent, b"")?;
    ensure!(said.starts_with("SSH-2.0-testbed 127.0.0.9:4000"), "{said:?}");
    let mut silent = client::connect_from("127.0.0.9:4001", LISTENER)?;
    silent.read_exact(&mut [0; 8]).context("the banner without a word of ours")?;
    ensure!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
    let mut speaking = client::connect_from("127.0.0.9:4002", LISTENER)?;
    ensure!(client::ask(&mut speaking, b"GET /")?.ends_with("GET /"));
    let named = client::ask(&mut session(&header("203.0.113.1:1001")?)?, b"")?;
    ensure!(named.starts_with("SSH-2.0-testbed 203.0.113.1:1001"), "{named:?}");
    banner.wait_for_log("127.0.0.9:4001 accepted")
}

fn an_ipv6_client_keeps_the_senders_address_on_an_ipv4_socket(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &["127.0.0.1:80"])?;
    start(bed, &[])?;
    let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
    let saw = client::ask(&mut stream, &client::v2("[2001:db8::7]:5000", "[2001:db8::1]:443")?)?;
    ensure!(saw.trim() == "127.0.0.9:4000", "{saw:?}");
    ensure!(counter(bed, "client_not_showable")? == 1);
    Ok(())
}

/// As Postfix listens: on both families, by two sockets.
fn a_client_that_cannot_be_shown_is_told_of_or_refused(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &["0.0.0.0:80"])?;
    let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None)?;
    socket.set_only_v6(true)?;
    socket.bind(&"[::]:80".parse::<SocketAddr>()?.into())?;
    socket.listen(8)?;
    let attached = command(bed, &["--port", "80"])?.start(bed)?;
    ensure!(attached.wait_end()?.success(), "{}", attached.log());
    ensure!(attached.stderr().contains("0.0.0.0:80 is IPv4 only"), "{}", attached.log());
    let follow = command(bed, &["status", "--follow"])?.start(bed)?;
    let bytes = client::v2("[2001:db8::7]:5000", "[2001:db8::1]:443")?;
    let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
    ensure!(client::ask(&mut stream, &bytes)?.trim() == "127.0.0.9:4000");
    follow.wait_for_log(
        "127.0.0.9:4000 to port 80/tcp, claims [2001:db8::7]:5000: IPv6 client on an IPv4 socket",
    )?;
    let said = attach(bed, &["status"])?;
    ensure!(said.contains("hint: the server listens on IPv4"), "{said}");
    start(bed, &["--unshowable", "refuse"])?;
    let mut stream = client::connect_from("127.0.0.9:4001", LISTENER)?;
    let _ = stream.write_all(&bytes);
    ensure!(client::read_end(&mut stream)? == client::End::Reset);
    follow.wait_for_log(
        "127.0.0.9:4001 to port 80/tcp, claims [2001:db8::7]:5000: the client's address family",
    )?;
    ensure!(counter(bed, "refused_family")? == 1 && counter(bed, "client_not_showable")? == 1);
    let seen = client::ask(&mut session(&header("203.0.113.1:1001")?)?, b"")?;
    ensure!(seen.trim() == "203.0.113.1:1001", "{seen}");
    Ok(())
}

fn syn_cookies_take_whole_headers_and_refuse_split_ones(bed: &Bed) -> Result<()> {
    let who = Behaviour::Who.start(bed, &[BACKEND])?;
    std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").context("tcp_syncookies")?;
    start(bed, &[])?;
    for port in [1001, 1002] {
        let client = format!("203.0.113.1:{port}");
        let saw = client::ask(&mut session(&header(&client)?)?, b"data")?;
        ensure!(saw.trim() == client, "{saw:?}");
    }
    let mut split = session(&header("203.0.113.1:1003")?[..20])?;
    ensure!(client::read_end(&mut split)? == client::End::Reset);
    ensure!(counter(bed, "refused_split_under_syn_cookies")? == 1);
    ensure!(!who.log().contains("1003"));
    Ok(())
}

fn a_dry_run_changes_nothing(bed: &Bed) -> Result<()> {
    let said = start(bed, &["--dry-run", "--allow", "10.0.0.0/8"])?;
    ensure!(said.contains("tc ingress lo: tcp_ingress") && said.contains("senders: 10.0.0.0/8"), "{said}");
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    Ok(())
}

fn forwarded_connections_are_left_alone(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "router", "backend"])?;
    let to: SocketAddr = line.host("backend").at(false, 80);
    let (router, far) = (&line.host("router").netns, &line.host("backend").netns);
    // A wildcard listener of the router would get them if they were addressed to it.
    let _trap = Behaviour::Echo.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(router))?;
    let _echo = Behaviour::Echo.start_program(bed, &[to], |program| program.in_netns(far))?;
    attach_on(bed, line.host("router"), &["--port", "80"])?;
    let header = client::v1("203.0.113.1:1001", DESTINATION)?;
    let answer = line.host("lb").run(|| client::ask(&mut client::connect(to)?, &header))??;
    ensure!(answer.as_bytes() == header, "{answer:?}");
    Ok(())
}
