//! After 101: bytes that came with the heads, and silence.

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{CONNECT, PlainOrigin, curl, https};

pub(crate) fn tests() -> Vec<Test> {
    type Body = fn(&Bed, OriginVersion) -> anyhow::Result<()>;
    let mut all = Vec::new();
    // With HTTP/2 as the origin's protocol, upgrades go by HTTP/1.1 on connections of their own.
    for version in [Http1, Http2] {
        let mut add = |name: &str, needs: &str, body: Body| {
            let test = Test::new(format!("{name}{}", version.suffix()), move |bed| body(bed, version));
            all.push(test.needs_program(needs));
        };
        add("bytes_that_come_with_the_heads_are_not_lost", "python3", bytes_that_come_with_the_heads);
        add("silence_after_101_ends_both_connections", "python3", silence_after_101);
        add("websockets_over_http2_are_upgrades_at_the_origin", "node", websockets_are_upgrades);
        add("an_origin_that_opens_no_websocket_fails_it", "node", no_websocket);
        add("websockets_over_http2_end_as_the_other_side_does", "node", websockets_end);
    }
    let named = tests![an_origin_that_speaks_http2_only_is_named];
    all.extend(named.into_iter().map(|test| test.needs_program("node")));
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";

/// Changes the protocol at once, sends as many bytes with its head as the path says, and echoes.
const SWITCHING: &str = r"
import socket, threading
def serve(stream):
    came = b''
    while b'\r\n\r\n' not in came: came += stream.recv(65536)
    head, came = came.split(b'\r\n\r\n', 1)
    count = int(head.split()[1][1:])
    stream.sendall(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n' + b'h' * count)
    end = 'in order'
    try:
        while True:
            stream.sendall(came)
            came = stream.recv(65536)
            if not came: break
    except (ConnectionResetError, BrokenPipeError): end = 'reset'
    print('origin', end, flush=True)
    stream.close()
listener = socket.create_server(('127.0.0.1', 8080))
print('listening', flush=True)
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

const ASK: &str = r"
import os, time
def connect():
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    # Else a reset looks like an end in order.
    return context.wrap_socket(plain, server_hostname='site', suppress_ragged_eofs=False)
def switched(count, more=b''):
    stream = connect()
    # In one call: one record of TLS, or as many as it takes.
    stream.sendall(b'GET /%d HTTP/1.1\r\nHost: site\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n' % count + more)
    answer = b''
    while b'\r\n\r\n' not in answer: answer += stream.recv(65536)
    head, rest = answer.split(b'\r\n\r\n', 1)
    assert head.startswith(b'HTTP/1.1 101 '), head
    return stream, rest
def read(stream, rest, length):
    while len(rest) < length:
        data = stream.recv(65536)
        assert data, 'the end came after %d bytes' % len(rest)
        rest += data
    assert len(rest) == length
    return rest
";

fn switching(bed: &Bed) -> anyhow::Result<Running> {
    let origin = Program::new("python3").args(["-c", SWITCHING]).start(bed)?;
    origin.wait_for_log("listening")?;
    Ok(origin)
}

fn client(bed: &Bed, script: &str) -> anyhow::Result<Running> {
    Program::new("python3").args(["-c", &format!("{CONNECT}{ASK}{script}")]).start(bed)
}

/// Also more than any of truepeer's buffers.
fn bytes_that_come_with_the_heads(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = switching(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).start(bed)?;
    let client = client(
        bed,
        r"
for up in 0, 1, 5000, 300000:
    for down in 0, 1, 5000, 300000:
        early = bytes(n % 251 for n in range(up))
        stream, rest = switched(down, early)
        got = read(stream, rest, down + up)
        assert got[:down] == b'h' * down and got[down:] == early, (up, down)
        stream.sendall(b'later')
        assert read(stream, b'', 5) == b'later'
        stream.close()
print('all of it')
",
    )?;
    ensure!(client.wait_end()?.success(), "{}; {}", client.log(), truepeer.log());
    ensure!(client.stdout().trim() == "all of it", "{}", client.log());
    Ok(())
}

/// One connection is silent; the other never is for long.
fn silence_after_101(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let origin = switching(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?
        .option("--origin-protocol", version.option())
        .args(&["--tunnel-timeout", "10s"])
        .start(bed)?;
    let client = client(
        bed,
        r"
import threading
busy, _ = switched(0)
silent, _ = switched(0)
ended = []
def wait():
    try: end = 'in order' if not silent.recv(1) else 'a byte'
    except (ConnectionResetError, ssl.SSLEOFError): end = 'reset'
    ended.append(end)
waiting = threading.Thread(target=wait)
waiting.start()
while not ended:
    busy.sendall(b'x')
    assert busy.recv(1) == b'x'
    time.sleep(.02)
waiting.join()
busy.sendall(b'still')
assert read(busy, b'', 5) == b'still'
print('silent', ended[0], flush=True)
",
    )?;
    ensure!(client.wait_end()?.success(), "{}; {}", client.log(), truepeer.log());
    ensure!(client.stdout().trim() == "silent reset", "{}", client.log());
    origin.wait_for_log("origin reset")
}

/// Extended CONNECT (RFC 8441) by Node: `open(path, more)` gives the stream and its head.
const CONNECT_IN_NODE: &str = r"
const http2 = require('http2');
const session = http2.connect('https://127.0.0.1', { rejectUnauthorized: false });
const settled = new Promise((resolve) => session.once('remoteSettings', resolve));
async function open(path, more) {
  const settings = await settled;
  if (!settings.enableConnectProtocol) throw new Error('SETTINGS_ENABLE_CONNECT_PROTOCOL is missing');
  const stream = session.request({ ':method': 'CONNECT', ':protocol': 'websocket', ':path': path,
    'sec-websocket-version': '13', origin: 'https://site', ...more }, { endStream: false });
  const head = await new Promise((resolve, reject) => { stream.once('response', resolve); stream.once('error', reject); stream.once('close', reject); });
  return { stream, head };
}
function read(stream, length) {
  return new Promise((resolve) => {
    let got = Buffer.alloc(0);
    const take = (data) => { got = Buffer.concat([got, data]); if (got.length >= length) { stream.off('data', take); resolve(got); } };
    stream.on('data', take);
  });
}
function fail(error) { console.log('failed', error); process.exit(1); }
";

fn node(bed: &Bed, script: &str) -> anyhow::Result<String> {
    Program::new("node").args(["-e", &format!("{CONNECT_IN_NODE}{script}")]).run(bed)
}

/// An origin that knows the handshake of HTTP/1.1 only, and echoes. It prints what it was asked.
const ECHO: &str = r"
import base64, hashlib, socket, threading
def serve(stream):
    head = b''
    while not head.endswith(b'\r\n\r\n'): head += stream.recv(1)
    line, *fields = head.decode().split('\r\n')
    fields = {name.lower(): value for name, value in (field.split(': ', 1) for field in fields if field)}
    assert fields['connection'].lower() == 'upgrade' and fields['upgrade'] == 'websocket', fields
    assert len(base64.b64decode(fields['sec-websocket-key'])) == 16
    print(line, fields['sec-websocket-version'], fields['x-forwarded-for'], fields['host'], flush=True)
    key = fields['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    answer = 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
    answer += 'Sec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: chat\r\n\r\n' % accept
    stream.sendall(answer.encode() + b'early')
    if 'reset' in line:
        stream.recv(1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
        return stream.close()
    while data := stream.recv(65536): stream.sendall(data)
    print('ended in order', flush=True)
    stream.close()
listener = socket.create_server(('127.0.0.1', 8080))
print('listening', flush=True)
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

fn echo(bed: &Bed) -> anyhow::Result<Running> {
    let origin = Program::new("python3").args(["-c", ECHO]).start(bed)?;
    origin.wait_for_log("listening")?;
    Ok(origin)
}

/// Several on one connection, with more bytes than any window has room for.
fn websockets_are_upgrades(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let origin = echo(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).start(bed)?;
    let said = node(
        bed,
        r"
(async () => {
  for (const size of [1, 70000, 3000000]) {
    const { stream, head } = await open('/chat?a=b');
    if (head[':status'] !== 200 || head['sec-websocket-protocol'] !== 'chat') throw new Error(JSON.stringify(head));
    for (const name of ['sec-websocket-accept', 'upgrade', 'connection']) if (name in head) throw new Error(name);
    const sent = Buffer.alloc(size, 'y');
    const back = read(stream, size + 5);
    stream.write(sent);
    const got = await back;
    if (!got.equals(Buffer.concat([Buffer.from('early'), sent]))) throw new Error('other bytes');
    const ended = new Promise((resolve) => stream.once('end', resolve));
    stream.resume();
    stream.end();
    await ended;
  }
  console.log('echoed');
  session.close();
})().catch(fail);
",
    )?;
    ensure!(said == "echoed\n", "{said}; {}; {}", truepeer.log(), origin.log());
    origin.wait_for_log("GET /chat?a=b HTTP/1.1 13 127.0.0.1 127.0.0.1:443\n")?;
    origin.wait_state("three ends", || origin.stdout().matches("ended in order").count() == 3)
}

/// Any 2xx would tell the client that the WebSocket is open.
fn no_websocket(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let server = "location /page { return 200 page; } location / { return 403; }";
    let _origin =
        truepeer_testbed::servers::Nginx::default().server("127.0.0.1:8080", "", server).start(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).start(bed)?;
    let said = node(
        bed,
        r"
(async () => {
  for (const [path, more] of [['/page', {}], ['/', {}], ['/', { ':protocol': 'other' }]]) {
    const { stream, head } = await open(path, more);
    console.log(head[':status']);
    stream.close();
  }
  session.close();
})().catch(fail);
",
    )?;
    ensure!(said == "502\n403\n400\n", "{said}; {}", truepeer.log());
    truepeer.wait_for_log("the origin opened no WebSocket: it answered with status 200")
}

fn websockets_end(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let origin = echo(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?
        .option("--origin-protocol", version.option())
        .args(&["--tunnel-timeout", "2s"])
        .start(bed)?;
    let said = node(
        bed,
        r"
const end = (stream) => new Promise((resolve) => {
  if (stream.destroyed) return resolve(stream.rstCode);
  stream.on('error', () => {});
  stream.once('close', () => resolve(stream.rstCode));
  stream.resume();
});
(async () => {
  for (const path of ['/reset', '/silent']) {
    const { stream } = await open(path);
    stream.write('x');
    console.log(path, await end(stream));
  }
  session.close();
})().catch(fail);
",
    )?;
    // CANCEL, for a reset and for silence.
    ensure!(said == "/reset 8\n/silent 8\n", "{said}; {}; {}", truepeer.log(), origin.log());
    Ok(())
}

/// WebSockets need HTTP/1.1 at the origin, from clients of both versions.
fn an_origin_that_speaks_http2_only_is_named(bed: &Bed) -> anyhow::Result<()> {
    let _origin = PlainOrigin::Node.start_with(bed, 8080, &["h2"])?;
    for (protocol, plain) in [("h2", "200"), ("http1", "502")] {
        let truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", protocol).start(bed)?;
        let status = ["-o", "/dev/null", "-w", "%{http_code}", "https://127.0.0.1/"];
        ensure!(curl(&status).run(bed)? == plain, "{protocol}: {}", truepeer.log());
        let upgrade = ["--http1.1", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket"];
        let answer = curl(&upgrade).args(["-H", "Sec-WebSocket-Version: 13"]).args(status).run(bed)?;
        ensure!(answer == "502", "{protocol}: {answer}; {}", truepeer.log());
        truepeer.wait_for_log("reason=\"origin_not_http1\"")?;
        truepeer.wait_for_log("WebSockets need HTTP/1.1")?;
    }
    Ok(())
}
