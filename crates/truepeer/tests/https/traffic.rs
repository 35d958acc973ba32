//! Bodies of any size, upgrades, expectations, and requests while the origin restarts.

use anyhow::ensure;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Test, tests};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{curl, https, origin, origin_in, python_client};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_websocket_passes,
        a_body_waits_for_the_origins_100_continue,
        connections_are_kept_on_both_sides,
        methods_that_are_not_named_are_forbidden,
        an_unreachable_origin_has_its_own_status
    ];
    for origin in [Http1, Http2] {
        let name = format!("large_bodies_pass_unharmed{}", origin.suffix());
        all.push(Test::new(name, move |bed| large_bodies(bed, origin)));
    }
    all.push(Test::new("node_is_served", node_is_served).needs_program("node"));
    all
}

const HERE: &str = "127.0.0.1:443";

fn large_bodies(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = origin_in(bed, 8080, version)?;
    let site = https(bed, HERE, "http://127.0.0.1:8080")?;
    let _truepeer = site.option("--origin-protocol", version.option()).start(bed)?;
    let said = python_client(
        bed,
        r"
import hashlib, http.client, os
piece = os.urandom(1 << 20)
def pieces():
    for _ in range(64): yield piece
expected = hashlib.sha256(piece * 64).hexdigest()
client = http.client.HTTPSConnection('127.0.0.1', 443, timeout=60, context=context)
for name, value in [('Content-Length', str(64 << 20)), ('Transfer-Encoding', 'chunked')]:
    client.request('POST', '/', pieces(), {name: value}, encode_chunked=name != 'Content-Length')
    assert client.getresponse().read().decode() == expected
client.request('GET', '/%d' % (64 << 20))
left, response = 64 << 20, client.getresponse()
while left:
    got = response.read(1 << 20)
    assert got and not got.strip(b'x')
    left -= len(got)
print('whole')
",
    )?;
    ensure!(said.trim() == "whole", "{said}");
    Ok(())
}

/// An origin with a minimal RFC 6455: it echoes frames.
const WEBSOCKET: &str = r"
import base64, hashlib, socket
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    stream, _ = listener.accept()
    head = b''
    while not head.endswith(b'\r\n\r\n'): head += stream.recv(1)
    fields = dict(line.split(': ', 1) for line in head.decode().split('\r\n')[1:] if line)
    assert fields['Connection'].lower() == 'upgrade' and fields['Upgrade'] == 'websocket', fields
    key = fields['Sec-WebSocket-Key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    stream.sendall(('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n' % accept).encode())
    while True:
        data = stream.recv(65536)
        if not data: break
        stream.sendall(data)
    stream.close()
";

fn a_websocket_passes(bed: &Bed) -> anyhow::Result<()> {
    let echo = Program::new("python3").args(["-c", WEBSOCKET]).start(bed)?;
    echo.wait_listening("127.0.0.1:8080")?;
    let _truepeer = https(bed, HERE, "http://127.0.0.1:8080")?.start(bed)?;
    let said = python_client(
        bed,
        r"
stream = connect()
stream.sendall(b'GET /chat HTTP/1.1\r\nHost: site\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n')
head = b''
while not head.endswith(b'\r\n\r\n'): head += stream.recv(1)
assert head.startswith(b'HTTP/1.1 101 ') and b'Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=' in head, head
for size in [1, 125, 60000]:
    frame = b'\x82\xff' + size.to_bytes(8, 'big') + b'\0\0\0\0' + b'y' * size
    stream.sendall(frame)
    back = b''
    while len(back) < len(frame): back += stream.recv(65536)
    assert back == frame
print('echoed')
",
    )?;
    ensure!(said.trim() == "echoed", "{said}");
    Ok(())
}

fn a_body_waits_for_the_origins_100_continue(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, "http://127.0.0.1:8080")?.start(bed)?;
    let file = bed.write("body", "z".repeat(100_000))?;
    let answer = curl(&[
        "--http1.1",
        "--verbose",
        "-H",
        "Expect: 100-continue",
        "--expect100-timeout",
        "50",
        "--data-binary",
    ])
    .arg(format!("@{}", file.display()))
    .arg("https://127.0.0.1/")
    .start(bed)?;
    ensure!(answer.wait_end()?.success(), "{}", answer.log());
    ensure!(answer.stderr().contains("< HTTP/1.1 100 Continue"), "{}", answer.log());
    ensure!(answer.stdout().trim() == DIGEST_OF_BODY, "{}", answer.log());
    Ok(())
}

/// SHA-256 of 100,000 letters z.
const DIGEST_OF_BODY: &str = "7e9470bdc2048db4667681aed70b1dd034b5310feac2f34e96220565d47638b2";

fn connections_are_kept_on_both_sides(bed: &Bed) -> anyhow::Result<()> {
    let seen = "location / { return 200 \"$connection $connection_requests\\n\"; }";
    let _origin = Nginx::default().server("127.0.0.1:8080", "", seen).start(bed)?;
    let _truepeer = https(bed, HERE, "http://127.0.0.1:8080")?.start(bed)?;
    let answer = curl(&["https://127.0.0.1/", "https://127.0.0.1/", "https://127.0.0.1/"]).run(bed)?;
    let lines: Vec<_> = answer.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(lines.len() == 3 && lines.iter().all(|(connection, _)| *connection == lines[0].0), "{answer}");
    ensure!(lines[2].1 == "3", "{answer}");
    Ok(())
}

fn methods_that_are_not_named_are_forbidden(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, "http://127.0.0.1:8080")?.option("--methods", "GET").start(bed)?;
    let status = |args: &[&str]| {
        curl(&["--output", "/dev/null", "--write-out", "%{http_code}", "https://127.0.0.1/1"])
            .args(args)
            .run(bed)
    };
    ensure!(status(&[])? == "200");
    ensure!(status(&["--data", "x"])? == "403");
    ensure!(status(&["--request", "DELETE"])? == "403");
    Ok(())
}

fn an_unreachable_origin_has_its_own_status(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = https(bed, HERE, "http://127.0.0.1:8080")?
        .option("--origin-patience", "0")
        .args(&["--access-log"])
        .start(bed)?;
    let status =
        curl(&["--output", "/dev/null", "--write-out", "%{http_code}", "https://127.0.0.1/1"]).run(bed)?;
    ensure!(status == "502", "{status}");
    truepeer.wait_for_log("can't connect to the origin")?;
    truepeer.wait_for_log("origin_unreachable")
}

fn node_is_served(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, "http://127.0.0.1:8080")?.start(bed)?;
    let script = r"
const https = require('https');
const agent = new https.Agent({ keepAlive: true, maxSockets: 1, rejectUnauthorized: false });
let left = 5;
const ask = () => https.get({ host: '127.0.0.1', path: '/1000', agent }, (response) => {
  let bytes = 0;
  response.on('data', (data) => { bytes += data.length; });
  response.on('end', () => {
    if (bytes !== 1000) throw new Error(`${bytes} bytes`);
    if (--left) ask(); else { console.log('served'); agent.destroy(); }
  });
});
ask();
";
    let said = Program::new("node").args(["-e", script]).run(bed)?;
    ensure!(said.trim() == "served", "{said}");
    Ok(())
}
