//! Real senders before truepeer: it understands their headers, and the backend sees their client.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use truepeer_testbed::servers::{Haproxy, Nginx, curl};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, client, tests};

use crate::line::Line;

pub(crate) fn tests() -> Vec<Test> {
    let mut all: Vec<Test> = tests![
        haproxy_v1_shows_the_client,
        haproxy_v2_shows_the_client,
        haproxy_v2_with_unique_id_and_checksum_shows_the_client,
        haproxy_health_checks_reach_the_backend_as_the_sender,
        haproxy_terminating_tls_shows_the_client_and_its_certificate,
    ]
    .into_iter()
    .map(|test| test.needs_program("haproxy"))
    .collect();
    all.push(Test::new("curl_shows_itself", curl_shows_itself).needs_program("curl").needs_program("nginx"));
    all.push(
        Test::new("nginx_stream_shows_the_client", nginx_stream_shows_the_client).needs_program("nginx"),
    );
    all
}

const BACKEND: [&str; 2] = ["127.0.0.1:80", "[::1]:80"];

/// The line with a backend that returns the client that it sees, and truepeer before it.
fn line_with_who(bed: &Bed) -> anyhow::Result<(Line, [Running; 2])> {
    let line = Line::lay()?;
    let backend = Behaviour::Who.start_program(bed, &BACKEND, |who| who.in_netns(&line.host().netns))?;
    let truepeer = line.start_truepeer(bed, 80)?;
    Ok((line, [truepeer, backend]))
}

/// HAProxy on the load balancer, for clients of both families, over both families to truepeer.
fn start_haproxy(bed: &Bed, line: &Line, options: &str) -> anyhow::Result<(Running, Vec<SocketAddr>)> {
    let mut haproxy = Haproxy::default();
    let mut listeners = Vec::new();
    for (port, from_v6, to_v6) in [(1, false, false), (2, true, false), (3, false, true), (4, true, true)] {
        let listener = line.lb().at(from_v6, port);
        haproxy = haproxy.relay(listener, line.listener(to_v6), options);
        listeners.push(listener);
    }
    let running = haproxy.start_with(bed, |program| program.in_netns(&line.lb().netns))?;
    Ok((running, listeners))
}

/// Connects from the client's host. The backend must see exactly this connection's own address.
fn is_seen(line: &Line, listener: SocketAddr) -> anyhow::Result<()> {
    let (me, seen) = line.client().run(|| -> anyhow::Result<_> {
        let mut stream = client::connect(listener)?;
        Ok((stream.local_addr()?, client::ask(&mut stream, b"hello")?))
    })??;
    ensure!(seen.trim() == me.to_string(), "through {listener} the client {me} was seen as {seen:?}");
    Ok(())
}

fn haproxy_shows_the_client(bed: &Bed, options: &str) -> anyhow::Result<()> {
    let (line, _running) = line_with_who(bed)?;
    let (_haproxy, listeners) = start_haproxy(bed, &line, options)?;
    listeners.into_iter().try_for_each(|listener| is_seen(&line, listener))
}

fn haproxy_v1_shows_the_client(bed: &Bed) -> anyhow::Result<()> {
    haproxy_shows_the_client(bed, "send-proxy")
}

fn haproxy_v2_shows_the_client(bed: &Bed) -> anyhow::Result<()> {
    haproxy_shows_the_client(bed, "send-proxy-v2")
}

fn haproxy_v2_with_unique_id_and_checksum_shows_the_client(bed: &Bed) -> anyhow::Result<()> {
    let (line, _running) = line_with_who(bed)?;
    let listener = line.lb().at(false, 1);
    let config = format!(
        "listen l\n  bind {listener}\n  unique-id-format %{{+X}}o%ci:%cp_%Ts\n  \
         server s {} send-proxy-v2 proxy-v2-options crc32c,unique-id,authority",
        line.listener(false)
    );
    let haproxy = Haproxy::with_config(&config, &[&listener.to_string()]);
    let _haproxy = haproxy.start_with(bed, |program| program.in_netns(&line.lb().netns))?;
    is_seen(&line, listener)
}

/// `check-send-proxy` makes the check a LOCAL connection (PROXY 2.2). It passes only if the backend sends.
fn haproxy_health_checks_reach_the_backend_as_the_sender(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let backend = Behaviour::Banner.start_program(bed, &BACKEND, |who| who.in_netns(&line.host().netns))?;
    let truepeer = line.start_truepeer(bed, 80)?;
    let listener = line.lb().at(false, 1);
    let config = format!(
        "listen l\n  bind {listener}\n  timeout check 10s\n  option tcp-check\n  tcp-check connect default\n  \
         tcp-check expect string SSH-2.0-testbed\n  \
         server s {} send-proxy-v2 check inter 100ms rise 2 fall 1",
        line.listener(false)
    );
    let haproxy = Haproxy::with_config(&config, &[&listener.to_string()]);
    let haproxy = haproxy.start_with(bed, |program| program.in_netns(&line.lb().netns))?;
    let sender = format!("{}:", line.lb().run(|| outgoing_address(line.listener(false)))??);
    let saw =
        |count| move |log: String| log.lines().filter(|line| line.contains("accepted")).count() >= count;
    bed.wait_for("several health checks", || saw(4)(backend.log()))?;
    let accepted = backend.log();
    ensure!(
        accepted.lines().filter(|line| line.contains("accepted")).all(|line| line.starts_with(&sender)),
        "not all from {sender}:\n{accepted}"
    );
    ensure!(!haproxy.log().contains("is DOWN"), "{}", haproxy.log());
    ensure!(!truepeer.log().contains("WARN"), "a health check is nothing to warn of:\n{}", truepeer.log());
    Ok(())
}

/// This host's address on the route to `to`.
fn outgoing_address(to: SocketAddr) -> anyhow::Result<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

/// The header then carries the certificate's CN, the protocol and the requested name. truepeer removes all of
/// it.
fn haproxy_terminating_tls_shows_the_client_and_its_certificate(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let nginx = Nginx::default().who(&BACKEND);
    let _nginx = nginx.start_with(bed, |program| program.in_netns(&line.host().netns))?;
    let _truepeer = line.start_truepeer(bed, 80)?;
    let pem = certificate(bed)?;
    let listener = line.lb().at(false, 443);
    let config = format!(
        "listen l\n  bind {listener} ssl crt {pem} ca-file {pem} verify required\n  unique-id-format %ci_%cp\n  \
         server s {} send-proxy-v2-ssl-cn proxy-v2-options ssl,cert-cn,cert-key,cert-sig,ssl-cipher,unique-id,crc32c,authority",
        line.listener(false)
    );
    let haproxy = Haproxy::with_config(&config, &[&listener.to_string()]);
    let _haproxy = haproxy.start_with(bed, |program| program.in_netns(&line.lb().netns))?;
    let https = curl("https://site.example/")
        .args(["--insecure", "--connect-to", &format!("site.example:443:{listener}"), "--cert", &pem])
        .args(["--local-port", "4321"]);
    let answer = line.run_as_client(bed, https)?;
    let expected = SocketAddr::new(line.client().v4.into(), 4321);
    ensure!(Nginx::seen(&answer)? == expected, "{expected} was seen as {answer:?}");
    Ok(())
}

/// A self-signed certificate with its key, in one file.
pub(crate) fn certificate(bed: &Bed) -> anyhow::Result<String> {
    let (key, cert) = (bed.dir().join("key.pem"), bed.dir().join("cert.pem"));
    let request = Program::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=the true client", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert);
    request.run(bed)?;
    let both = [std::fs::read(&cert)?, std::fs::read(&key)?].concat();
    let file = bed.write("both.pem", both)?;
    Ok(file.to_str().context("a path in UTF-8")?.to_owned())
}

fn curl_shows_itself(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let nginx = Nginx::default().who(&BACKEND);
    let _nginx = nginx.start_with(bed, |program| program.in_netns(&line.host().netns))?;
    let _truepeer = line.start_truepeer(bed, 80)?;
    for (v6, port) in [(false, "4321"), (true, "4322")] {
        let url = format!("http://{}/", line.listener(v6));
        let request = curl(&url).args(["--haproxy-protocol", "--local-port", port]);
        let answer = line.run_as_client(bed, request)?;
        let expected = line.client().at(v6, port.parse()?);
        ensure!(Nginx::seen(&answer)? == expected, "{expected} was seen as {answer:?}");
    }
    Ok(())
}

fn nginx_stream_shows_the_client(bed: &Bed) -> anyhow::Result<()> {
    let (line, _running) = line_with_who(bed)?;
    let listeners = [line.lb().at(false, 1), line.lb().at(true, 2)];
    let half_close = "proxy_protocol on; proxy_half_close on;";
    let nginx = Nginx::default().relay(listeners[0], line.listener(false), half_close).relay(
        listeners[1],
        line.listener(false),
        half_close,
    ); // IPv6 client, IPv4 sender
    let _nginx = nginx.start_with(bed, |program| program.in_netns(&line.lb().netns))?;
    listeners.into_iter().try_for_each(|listener| is_seen(&line, listener))
}
