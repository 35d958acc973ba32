//! The program of `make demo`: `demo PATH-OF-TRUEPEER`.
//!
//! ```text
//! client ───── lb: HAProxy ───── backend's host: truepeer ── NGINX, and a server that sends first
//!              lb: dnsdist ─────                 truepeer ── Unbound
//! ```
//! Each line of its table is two connections from one address and port of the client. HAProxy passes one
//! directly to the backend, and the other to truepeer with `send-proxy-v2`. Over UDP the rows are two
//! queries, and dnsdist sends the header (`useProxyProtocol=true`).

mod dns;

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Behaviour, Host, Running, Topology, Truepeer, client, run_privately};

/// HAProxy's ports: directly to the backend, and through truepeer.
const PLAIN: u16 = 1000;
const TRUE: u16 = 2000;

/// An unmodified server, and how its answer is read.
struct Backend {
    name: &'static str,
    port: u16,
    truepeer_port: u16,
    ask: fn(&mut TcpStream) -> anyhow::Result<SocketAddr>,
}

const BACKENDS: [Backend; 2] = [
    Backend { name: "NGINX", port: 80, truepeer_port: 8080, ask: ask_nginx },
    Backend { name: "SSH-like banner", port: 22, truepeer_port: 8022, ask: read_banner },
];

struct Row {
    what: String,
    client: SocketAddr,
    without: anyhow::Result<SocketAddr>,
    with: anyhow::Result<SocketAddr>,
}

fn main() -> ExitCode {
    run_privately("demo", |bed| {
        let exe = env::args().nth(1).context("usage: demo PATH-OF-TRUEPEER")?;
        show(bed, &exe)
    })
}

fn show(bed: &Bed, exe: &str) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let line = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (line.host("client"), line.host("lb"), line.host("host"));
    let _running = start_all(bed, exe, lb, host)?;
    let dns = dns::Dns::start(bed, exe, lb, host)?;
    let (v4, v6) = (client.v4, client.v6);
    println!("client {v4} | {v6}  ->  HAProxy or dnsdist  ->  truepeer  ->  unmodified servers");
    println!("(private network namespaces; this machine is not changed)\n");
    let mut rows = Vec::new();
    for (number, backend) in (0u16..).zip(&BACKENDS) {
        for v6 in [false, true] {
            rows.push(measure(client, lb, backend, v6, 40001 + 2 * number + u16::from(v6)));
        }
    }
    rows.extend([false, true].map(|v6| dns.measure(client, lb, v6, 40101 + u16::from(v6))));
    let lb_addresses = addresses_towards(host, lb)?;
    let right = rows.iter().filter(|row| row.is_right(&lb_addresses)).count();
    print_table(&rows, &lb_addresses);
    println!("\n{right} of {} rows right, after {:.1} s", rows.len(), start.elapsed().as_secs_f64());
    anyhow::ensure!(right == rows.len(), "the backend did not see the true client");
    Ok(ExitCode::SUCCESS)
}

/// The backends, truepeer beside them, and HAProxy in front.
fn start_all(bed: &Bed, exe: &str, lb: &Host, host: &Host) -> anyhow::Result<Vec<Running>> {
    let [nginx, banner] = &BACKENDS;
    let (at_nginx, at_banner) = (wildcards(nginx.port), wildcards(banner.port));
    let mut running = vec![
        Nginx::default().who(&at_nginx).start_with(bed, |program| program.in_netns(&host.netns))?,
        Behaviour::Banner.start_program(bed, &at_banner, |program| program.in_netns(&host.netns))?,
    ];
    let mut haproxy = Haproxy::default();
    for backend in &BACKENDS {
        running.push(start_truepeer(bed, exe, host, backend)?);
        for v6 in [false, true] {
            let (plain, through) = (host.at(v6, backend.port), host.at(v6, backend.truepeer_port));
            haproxy = haproxy.relay(lb.at(v6, PLAIN + backend.port), plain, "");
            haproxy = haproxy.relay(lb.at(v6, TRUE + backend.port), through, "send-proxy-v2");
        }
    }
    running.push(haproxy.start_with(bed, |program| program.in_netns(&lb.netns))?);
    running.reverse(); // stopped from the client's side, so that no program waits for an answer
    Ok(running)
}

fn start_truepeer(bed: &Bed, exe: &str, host: &Host, backend: &Backend) -> anyhow::Result<Running> {
    let port = backend.port;
    Truepeer::proxy(exe)
        .listen(host.at(false, backend.truepeer_port))
        .listen(host.at(true, backend.truepeer_port))
        .ipv4(format!("127.0.0.1:{port}"))
        .ipv6(format!("[::1]:{port}"))
        .allow("10.77.0.0/16")
        .allow("fd77::/16")
        .with(|program| program.in_netns(&host.netns))
        .start(bed)
}

fn wildcards(port: u16) -> [String; 2] {
    [format!("0.0.0.0:{port}"), format!("[::]:{port}")]
}

/// One row: two connections with the same client, address and port.
fn measure(client: &Host, lb: &Host, backend: &Backend, v6: bool, port: u16) -> Row {
    let from = client.at(v6, port);
    let ask = |to: SocketAddr| client.run(|| (backend.ask)(&mut client::connect_from(from, to)?))?;
    let family = if v6 { "IPv6" } else { "IPv4" };
    Row {
        what: format!("{}, {family}", backend.name),
        client: from,
        without: ask(lb.at(v6, PLAIN + backend.port)),
        with: ask(lb.at(v6, TRUE + backend.port)),
    }
}

fn ask_nginx(stream: &mut TcpStream) -> anyhow::Result<SocketAddr> {
    let answer = client::ask(stream, b"GET / HTTP/1.0\r\n\r\n")?;
    let (_, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no answer: {answer:?}"))?;
    Nginx::seen(body)
}

/// Sends nothing until it has received `SSH-2.0-testbed ADDRESS:PORT`.
fn read_banner(stream: &mut TcpStream) -> anyhow::Result<SocketAddr> {
    let mut banner = String::new();
    BufReader::new(&mut *stream).read_line(&mut banner)?;
    stream.write_all(b"SSH-2.0-client\r\n")?;
    let (_, seen) = banner.trim().rsplit_once(' ').with_context(|| format!("no banner: {banner:?}"))?;
    seen.parse().with_context(|| banner.clone())
}

/// The load balancer's addresses as the backend's host sees them: the next hops of the default routes.
fn addresses_towards(host: &Host, lb: &Host) -> anyhow::Result<Vec<IpAddr>> {
    let probe = |v6: bool| lb.run(|| client::source_towards(host.at(v6, 80)));
    Ok(vec![probe(false)??, probe(true)??])
}

impl Row {
    fn is_right(&self, lb: &[IpAddr]) -> bool {
        let without = self.without.as_ref().is_ok_and(|seen| lb.contains(&seen.ip()));
        without && self.with.as_ref().is_ok_and(|seen| *seen == self.client)
    }
}

fn print_table(rows: &[Row], lb: &[IpAddr]) {
    let line = |cells: [&str; 5]| {
        println!("{:<22} {:<22} {:<28} {:<22} {}", cells[0], cells[1], cells[2], cells[3], cells[4])
    };
    line(["", "client said", "backend saw without truepeer", "with truepeer", ""]);
    for row in rows {
        let (without, with) = (cell(&row.without), cell(&row.with));
        let verdict = if row.is_right(lb) { "right" } else { "WRONG" };
        line([&row.what, &shown(&row.client), &without, &with, verdict]);
    }
}

fn cell(seen: &anyhow::Result<SocketAddr>) -> String {
    seen.as_ref().map_or_else(|error| format!("{error:#}"), shown)
}

/// Some logs lack the port.
fn shown(address: &SocketAddr) -> String {
    if address.port() == 0 { address.ip().to_string() } else { address.to_string() }
}
