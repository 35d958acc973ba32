//! HTTP/2 with real origins: NGINX, nghttpd, and Go's net/http, with TLS and by prior knowledge.

use anyhow::ensure;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, tests};

use crate::authority::{Authority, Identity};
use crate::kit::{PlainOrigin, curl, https, https_by};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        an_origin_chooses_its_version_where_it_may,
        an_origin_without_tls_is_spoken_to_in_http2,
        an_origin_that_speaks_http1_only_is_refused_by_name,
        one_connection_serves_all_clients,
        each_client_connection_has_its_own_where_a_header_names_it,
        what_http2_cannot_carry_goes_by_http1,
        a_header_names_the_protocol_behind_it,
    ];
    for name in
        ["an_origin_that_ends_its_connections_loses_no_request", "an_origins_limit_of_streams_is_kept"]
    {
        let run = if name.contains("limit") { few_streams } else { short_connections };
        all.push(Test::new(name, run).needs_program("h2load"));
    }
    all.push(Test::new("bodies_pass_to_nghttpd_and_back", nghttpd).needs_program("nghttpd"));
    let go = Test::new("go_is_spoken_to_in_http2_and_upgrades_by_http1", go_and_upgrades).needs_program("go");
    all.push(go.long().time_limit(std::time::Duration::from_secs(600)));
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "127.0.0.1:8080";
const PLAIN: &str = "http://127.0.0.1:8080";
const SECURE: &str = "https://127.0.0.1:8080";
const VERSIONS: [&str; 2] = ["--http1.1", "--http2"];

fn site(bed: &Bed, origin: &str, protocol: &str) -> anyhow::Result<Truepeer> {
    Ok(https(bed, HERE, origin)?.option("--origin-protocol", protocol))
}

/// One worker, which has one pool of connections to the origin.
fn one_worker(bed: &Bed) -> anyhow::Result<Truepeer> {
    Ok(https_by(bed, HERE, PLAIN)?.option("--origin-protocol", "h2").option("--workers", 1))
}

fn get(bed: &Bed, version: &str, path: &str) -> anyhow::Result<String> {
    curl(&[version, &format!("https://127.0.0.1{path}")]).run(bed)
}

fn tls(bed: &Bed) -> anyhow::Result<String> {
    let Identity { cert, key } = Authority::new(bed, "authority")?.certify(bed, "origin", &["127.0.0.1"])?;
    Ok(format!("ssl_certificate {cert}; ssl_certificate_key {key};"))
}

fn an_origin_chooses_its_version_where_it_may(bed: &Bed) -> anyhow::Result<()> {
    let tls = tls(bed)?;
    let said = "location / { return 200 \"$ssl_alpn_protocol $server_protocol $scheme $http_host\"; }";
    for (listen, protocol, expected) in [
        ("ssl http2", "auto", "h2 HTTP/2.0 https 127.0.0.1"),
        ("ssl http2", "h2", "h2 HTTP/2.0 https 127.0.0.1"),
        ("ssl http2", "http1", "http/1.1 HTTP/1.1 https 127.0.0.1"),
        ("ssl", "auto", "http/1.1 HTTP/1.1 https 127.0.0.1"),
    ] {
        let _origin = Nginx::default().server(ORIGIN, listen, &format!("{tls} {said}")).start(bed)?;
        let truepeer = site(bed, SECURE, protocol)?.args(&["--origin-insecure"]).start(bed)?;
        for version in VERSIONS {
            for _ in 0..3 {
                let answer = get(bed, version, "/")?;
                ensure!(answer == expected, "{listen} {protocol}: {answer}; {}", truepeer.log());
            }
        }
    }
    Ok(())
}

fn an_origin_without_tls_is_spoken_to_in_http2(bed: &Bed) -> anyhow::Result<()> {
    let said = "location / { return 200 \"$server_protocol $scheme $http_forwarded $arg_a\"; }";
    let origin = Nginx::default().server(ORIGIN, "http2", said);
    let _origin = origin.start(bed)?;
    let _truepeer = site(bed, PLAIN, "h2")?.start(bed)?;
    for version in VERSIONS {
        let answer = get(bed, version, "/x?a=b")?;
        ensure!(
            answer == "HTTP/2.0 http for=127.0.0.1;host=\"127.0.0.1\";proto=https b",
            "{version}: {answer}"
        );
    }
    Ok(())
}

fn an_origin_that_speaks_http1_only_is_refused_by_name(bed: &Bed) -> anyhow::Result<()> {
    let status = ["--output", "/dev/null", "--write-out", "%{http_code}", "https://127.0.0.1/"];
    let tls = tls(bed)?;
    for (url, listen) in [(PLAIN, ""), (SECURE, "ssl")] {
        let directives = format!("{tls} location / {{ return 200 ok; }}");
        let _origin = Nginx::default().server(ORIGIN, listen, &directives).start(bed)?;
        let insecure: &[&str] = if listen.is_empty() { &[] } else { &["--origin-insecure"] };
        let truepeer = site(bed, url, "h2")?.args(insecure).start(bed)?;
        let answer = curl(&status).run(bed)?;
        ensure!(answer == "502", "{answer}; {}", truepeer.log());
        truepeer.wait_for_log("reason=\"origin_not_http2\"")?;
        truepeer.wait_for_log("--origin-protocol auto")?;
    }
    Ok(())
}

/// The number of the connection, and of the request on it.
const NUMBERS: &str = "location / { return 200 \"$connection $connection_requests $proxy_protocol_addr\"; }";

fn one_connection_serves_all_clients(bed: &Bed) -> anyhow::Result<()> {
    let _origin = Nginx::default().server(ORIGIN, "http2", NUMBERS).start(bed)?;
    let _truepeer = one_worker(bed)?.start(bed)?;
    for number in 1..=6 {
        let answer = get(bed, VERSIONS[number % 2], "/")?;
        ensure!(answer.trim() == format!("1 {number}"), "{answer}");
    }
    Ok(())
}

fn each_client_connection_has_its_own_where_a_header_names_it(bed: &Bed) -> anyhow::Result<()> {
    let _origin = Nginx::default().server(ORIGIN, "http2 proxy_protocol", NUMBERS).start(bed)?;
    let _truepeer = one_worker(bed)?.option("--client-address", "proxy").start(bed)?;
    for number in 1..=4 {
        let url = "https://127.0.0.1/";
        let answer = curl(&[VERSIONS[number % 2], url, url]).run(bed)?;
        ensure!(answer == format!("{number} 1 127.0.0.1{number} 2 127.0.0.1"), "{answer}");
    }
    Ok(())
}

/// An origin that may choose its protocol by the ALPN value of the PROXY header.
fn a_header_names_the_protocol_behind_it(bed: &Bed) -> anyhow::Result<()> {
    const SCRIPT: &str = r"
import socket
listener = socket.create_server(('127.0.0.1', 8080))
print('ready', flush=True)
while True:
    connection, _ = listener.accept()
    reader = connection.makefile('rb') # keeps the socket open, too
    values = reader.read(int.from_bytes(reader.read(16)[14:16], 'big'))[12:]
    alpn = 'none'
    while values:
        kind, length = values[0], int.from_bytes(values[1:3], 'big')
        if kind == 1: alpn = values[3:3 + length].decode()
        values = values[3 + length:]
    print(alpn, 'before', reader.readline().split()[-1].decode(), flush=True)
    reader.close()
    connection.close()
";
    let origin = Program::new("python3").args(["-c", SCRIPT]).start(bed)?;
    origin.wait_for_log("ready")?;
    let _truepeer = site(bed, PLAIN, "h2")?
        .option("--client-address", "proxy")
        .option("--origin-retry-timeout", 0)
        .start(bed)?;
    let upgrade = ["-HConnection: upgrade", "-HUpgrade: websocket"];
    for version in VERSIONS {
        get(bed, version, "/")?;
    }
    curl(&["--http1.1", "https://127.0.0.1/"]).args(upgrade).run(bed)?;
    let said = origin.stdout();
    let expected = "ready\nh2 before HTTP/2.0\nh2 before HTTP/2.0\nhttp/1.1 before HTTP/1.1\n";
    ensure!(said == expected, "{said}");
    Ok(())
}

/// A path that is no URI.
fn what_http2_cannot_carry_goes_by_http1(bed: &Bed) -> anyhow::Result<()> {
    let said = format!("{} location / {{ return 200 \"$server_protocol $request_uri\"; }}", tls(bed)?);
    let _origin = Nginx::default().server(ORIGIN, "ssl http2", &said).start(bed)?;
    let _truepeer = site(bed, SECURE, "auto")?.args(&["--origin-insecure"]).start(bed)?;
    let client = r"
for request in (b'GET /a HTTP/1.1\r\nHost: x', b'GET /a`b HTTP/1.1\r\nHost: x'):
    with connect() as connection:
        connection.sendall(request + b'\r\nConnection: close\r\n\r\n')
        answer = b''
        while piece := connection.recv(9999): answer += piece
        print(answer.split(b'\r\n\r\n', 1)[1].decode())
";
    let answers = crate::kit::python_client(bed, client)?;
    ensure!(answers == "HTTP/2.0 /a\nHTTP/1.1 /a`b\n", "{answers}");
    Ok(())
}

fn h2load(bed: &Bed, args: &[&str]) -> anyhow::Result<String> {
    Program::new("h2load").args(args).arg("https://127.0.0.1/").run(bed)
}

/// NGINX ends each connection by GOAWAY after a few requests.
fn short_connections(bed: &Bed) -> anyhow::Result<()> {
    let directives = "keepalive_requests 7; location / { return 200 ok; }";
    let origin = Nginx::default().server(ORIGIN, "http2", directives).start(bed)?;
    let truepeer = site(bed, PLAIN, "h2")?.start(bed)?;
    let body = bed.write("body", "z".repeat(3000))?.display().to_string();
    for args in [["-n1000", "-c5", "-m10"], ["-n1000", "-c20", "--h1"]] {
        for body in [&[][..], &["-d", &body]] {
            let said = h2load(bed, &[&args[..], body].concat())?;
            ensure!(said.contains("status codes: 1000 2xx"), "{said}; {}; {}", truepeer.log(), origin.log());
        }
    }
    Ok(())
}

fn few_streams(bed: &Bed) -> anyhow::Result<()> {
    let directives = "http2_max_concurrent_streams 2; location / { return 200 ok; }";
    let _origin = Nginx::default().server(ORIGIN, "http2", directives).start(bed)?;
    let truepeer = site(bed, PLAIN, "h2")?.start(bed)?;
    let said = h2load(bed, &["-n1000", "-c5", "-m10"])?;
    ensure!(said.contains("status codes: 1000 2xx"), "{said}; {}", truepeer.log());
    Ok(())
}

fn nghttpd(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("page", "z".repeat(3_000_000))?;
    let root = bed.dir().display().to_string();
    let origin = Program::new("nghttpd")
        .args(["--no-tls", "--echo-upload", "--address=127.0.0.1", "-d", &root, "8080"])
        .start(bed)?;
    origin.wait_listening(ORIGIN)?;
    let _truepeer = site(bed, PLAIN, "h2")?.start(bed)?;
    for version in VERSIONS {
        let down = get(bed, version, "/page")?;
        ensure!(down.len() == 3_000_000, "{} bytes", down.len());
        let both = curl(&[version, "--data-binary"])
            .arg(format!("@{}", file.display()))
            .arg("https://127.0.0.1/")
            .run(bed)?;
        ensure!(both.len() == 3_000_000 && both.bytes().all(|byte| byte == b'z'), "{} bytes", both.len());
    }
    Ok(())
}

/// Starts Go's origin with TLS, where it offers HTTP/2.
fn go_with_tls(bed: &Bed) -> anyhow::Result<Running> {
    let identity = Authority::new(bed, "authority")?.certify(bed, "origin", &["127.0.0.1"])?;
    PlainOrigin::Go.start_with(bed, 8080, &[&identity.cert, &identity.key])
}

fn go_and_upgrades(bed: &Bed) -> anyhow::Result<()> {
    let _origin = go_with_tls(bed)?;
    let _truepeer = site(bed, SECURE, "auto")?.args(&["--origin-insecure"]).start(bed)?;
    for version in VERSIONS {
        ensure!(get(bed, version, "/protocol")? == "HTTP/2.0");
        ensure!(get(bed, version, "/chunked")? == "onetwothree");
        ensure!(get(bed, version, "/5000000")?.len() == 5_000_000);
    }
    let client = r"
with connect() as connection:
    connection.sendall(b'GET /echo HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n')
    answer = b''
    while b'\r\n\r\n' not in answer: answer += connection.recv(9999)
    connection.sendall(b'hello')
    print(answer.split(b' ')[1].decode(), connection.recv(5).decode())
";
    let said = crate::kit::python_client(bed, client)?;
    ensure!(said == "101 hello\n", "{said}");
    Ok(())
}
