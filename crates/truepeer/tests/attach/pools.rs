//! Load balancers that keep connections to their servers and send several requests over each.
//!
//! A header names one client for a whole connection. So HAProxy (since 2.4) includes the contents of the
//! header in the identity of a kept connection, besides address and SNI: only requests from one client's
//! address and port can share it. NGINX's stream module opens one connection for each client.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Host, Test, Topology, client, tests};

use crate::kit::{attach_on, counter_of, counter_on};

const CLIENTS: usize = 40;
const REQUESTS: usize = 6;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        kept_connections_carry_several_requests_of_one_client,
        kept_connections_of_http2_carry_several_requests_of_one_client,
        a_client_that_comes_back_is_named_by_a_kept_connection,
    ]
    .into_iter()
    .map(|test| test.of_group("pools"))
    .collect()
}

/// Clients, a load balancer with a pool, and a server that was there before truepeer.
struct Stand {
    line: Topology,
    _running: [truepeer_testbed::Running; 2],
}

/// The server's ports: HTTP/1.1, and HTTP/2 without TLS.
const PORTS: [u16; 2] = [80, 81];

impl Stand {
    fn start(bed: &Bed) -> Result<Stand> {
        let line = Topology::line(&["client", "lb", "host"])?;
        let (lb, host) = (line.host("lb"), line.host("host"));
        for end in 11..14 {
            line.host("client").ip(&[&format!("addr add 10.77.0.{end}/24 dev lb")])?;
        }
        let files = bed.dir().join("files");
        std::fs::create_dir_all(&files)?;
        let directives = format!(
            "root {}; dav_methods PUT; client_max_body_size 0; keepalive_requests 1000000; \
             add_header X-Client $remote_addr:$remote_port always; add_header X-Connection $connection always;",
            files.display()
        );
        let nginx = Nginx::default().server(host.at(false, PORTS[0]), "", &directives).server(
            host.at(false, PORTS[1]),
            "http2",
            &directives,
        );
        let nginx = host.run(|| nginx.start(bed))??;
        attach_on(bed, host, &["--port", "80", "--port", "81"])?;
        let listeners = PORTS.map(|port| lb.at(false, 1000 + port).to_string());
        let config = Haproxy::with_config(&pools(lb, host), &listeners.each_ref().map(String::as_str));
        let haproxy = lb.run(|| config.start(bed))??;
        Ok(Stand { line, _running: [nginx, haproxy] })
    }

    fn connect(&self, from: &str, port: u16) -> Result<Client> {
        let to = self.line.host("lb").at(false, port);
        let stream = self.line.host("client").run(|| client::connect_from(from, to))??;
        Ok(Client { address: stream.local_addr()?, stream: BufReader::new(stream) })
    }
}

/// The load balancer listens on the server's port plus 1000.
fn pools(lb: &Host, host: &Host) -> String {
    let pool = |port: u16, options: &str| {
        format!(
            "listen pool{port}\n  mode http\n  bind {}\n  http-reuse always\n  timeout http-keep-alive 60s\n  \
             server nginx {} send-proxy-v2 pool-purge-delay 60s pool-low-conn 1000 {options}\n",
            lb.at(false, 1000 + port),
            host.at(false, port)
        )
    };
    // One thread, because each has its own pool. pool-low-conn makes it keep more connections than it just
    // needed.
    format!("global\n  nbthread 1\n{}{}", pool(PORTS[0], ""), pool(PORTS[1], "proto h2"))
}

/// An HTTP/1.1 client that keeps its connection.
struct Client {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
}

struct Answer {
    /// The client that the server saw.
    client: String,
    /// The server's number of the connection on which the request arrived.
    connection: String,
    body: Vec<u8>,
}

impl Client {
    /// Puts a body there and fetches it again. The server must name the client correctly both times. Returns
    /// the connections used.
    fn put_and_get(&mut self, path: &str, body: &[u8]) -> Result<[String; 2]> {
        let put = self.request("PUT", path, body)?;
        let got = self.request("GET", path, b"")?;
        for (answer, request) in [(&put, "PUT"), (&got, "GET")] {
            ensure!(
                answer.client == self.address.to_string(),
                "{request} of {}: {}",
                self.address,
                answer.client
            );
        }
        let mut digest = Digest::default();
        digest.update(&got.body);
        let report = digest.report();
        ensure!(report == Digest::of_pattern(body.len() as u64), "{} of {}: {report}", path, self.address);
        Ok([put.connection, got.connection])
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: host\r\nContent-Length: {}\r\n\r\n", body.len());
        self.stream.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(self.stream.read_line(&mut head)? > 0, "cut short: {head}");
        }
        ensure!(head.starts_with("HTTP/1.1 20"), "{method} {path}: {head}");
        let field = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            lines
                .into_iter()
                .find(|(own, _)| own.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.to_owned())
        };
        let len = field("content-length").map_or(Ok(0), |len| len.parse())?;
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body)?;
        Ok(Answer {
            client: field("x-client").context("a client")?,
            connection: field("x-connection").context("a connection")?,
            body,
        })
    }
}

/// Many clients from several addresses, one request after the other.
fn kept_connections_carry_several_requests_of_one_client(bed: &Bed) -> Result<()> {
    carry_requests(bed, PORTS[0])
}

/// The same, with HTTP/2 between load balancer and server.
fn kept_connections_of_http2_carry_several_requests_of_one_client(bed: &Bed) -> Result<()> {
    carry_requests(bed, PORTS[1])
}

fn carry_requests(bed: &Bed, port: u16) -> Result<()> {
    let stand = Stand::start(bed)?;
    let used = Mutex::new(BTreeSet::new());
    in_parallel(8, CLIENTS, |n| {
        let mut client = stand.connect(&format!("10.77.0.{}:0", 11 + n % 3), 1000 + port)?;
        let mut own = BTreeSet::new();
        for request in 0..REQUESTS {
            // From empty bodies to those of many segments.
            let body = Pattern::bytes((n * 31 + request) % 7 * 60_007);
            own.extend(client.put_and_get(&format!("/{n}"), &body)?);
        }
        ensure!(own.len() < 2 * REQUESTS, "each of its requests came by another connection");
        let mut used = used.lock().map_err(|_| anyhow::anyhow!("a client panicked"))?;
        for connection in own {
            ensure!(used.insert(connection), "a connection carried two clients' requests");
        }
        Ok(())
    })?;
    let host = stand.line.host("host");
    let index = PORTS.iter().position(|other| *other == port).context("a port of the server")?;
    let count = |name| counter_of(bed, host, index, name);
    let (connections, refused) =
        (count("connections")?, count("refused_malformed")? + count("refused_no_header")?);
    let used = used.into_inner().map_err(|_| anyhow::anyhow!("a client panicked"))?.len() as u64;
    ensure!(
        refused == 0 && connections >= used && used >= CLIENTS as u64,
        "{connections}, {refused} refused, {used} used"
    );
    Ok(())
}

/// From the same address and port, after a connection that the load balancer keeps.
fn a_client_that_comes_back_is_named_by_a_kept_connection(bed: &Bed) -> Result<()> {
    let stand = Stand::start(bed)?;
    let body = Pattern::bytes(100_000);
    let mut connections = BTreeSet::new();
    for _ in 0..3 {
        for from in ["10.77.0.11:5000", "10.77.0.12:5000", "10.77.0.11:5001"] {
            let mut client = stand.connect(from, 1000 + PORTS[0])?;
            connections.extend(client.put_and_get("/body", &body)?);
            // Leaves no TIME_WAIT, which would block the address.
            client::reset(client.stream.into_inner())?;
        }
    }
    let used = connections.len() as u64;
    // What HAProxy does with a connection whose client left so soon is not checked, but it must have kept
    // some.
    ensure!(used < 9, "nine connections of three clients came by {used} others");
    ensure!(counter_on(bed, stand.line.host("host"), "connections")? >= used);
    Ok(())
}
