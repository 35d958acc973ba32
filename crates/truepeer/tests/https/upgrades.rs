//! After 101: bytes that came with the heads, and silence.

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::kit::{CONNECT, https};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![bytes_that_come_with_the_heads_are_not_lost, silence_after_101_ends_both_connections];
    all.into_iter().map(|test| test.needs_program("python3")).collect()
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
door = socket.create_server(('127.0.0.1', 8080))
print('listening', flush=True)
while True: threading.Thread(target=serve, args=(door.accept()[0],), daemon=True).start()
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
fn bytes_that_come_with_the_heads_are_not_lost(bed: &Bed) -> anyhow::Result<()> {
    let _origin = switching(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
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
fn silence_after_101_ends_both_connections(bed: &Bed) -> anyhow::Result<()> {
    let origin = switching(bed)?;
    let truepeer = https(bed, HERE, ORIGIN)?.args(&["--tunnel-timeout", "3s"]).start(bed)?;
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
