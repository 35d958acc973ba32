//! Many requests at once, long bodies, chunks, upgrades, both versions of HTTP, and slow readers.

use std::time::Duration;

use anyhow::{Result, ensure};
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Test, tests};

use super::stand::{DOOR, OnVpp, client, curl, origin, run_client, succeed};

pub(super) fn tests() -> Vec<Test> {
    let mut all = tests![
        many_requests_are_answered_each_with_its_own,
        chunks_and_trailers_pass,
        a_body_waits_for_the_origins_100_continue,
        an_upgraded_connection_passes,
        slow_readers_delay_no_other_and_get_everything,
        a_half_closed_client_gets_all_of_its_answer,
    ];
    all.push(Test::new("bodies_of_64_mib_pass_each_way", |bed| bodies_pass(bed, 64)));
    all.push(
        Test::new("bodies_of_1_gib_pass_each_way", |bed| bodies_pass(bed, 1024))
            .long()
            .time_limit(Duration::from_secs(600)),
    );
    for (name, run) in [
        ("http2_is_spoken", http2_is_spoken as fn(&Bed) -> Result<()>),
        ("http2_is_spoken_with_the_origin", http2_is_spoken_with_the_origin),
    ] {
        all.push(Test::new(name, run).needs_program("h2load"));
    }
    all
}

const ORIGIN: &str = "http://172.16.1.1:8080";

/// New and kept connections at the same time; each answer belongs to its request.
fn many_requests_are_answered_each_with_its_own(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &[])?;
    let said = run_client(
        bed,
        DOOR,
        r"
def ask(number):
    for again in range(5):
        connection = client()
        for turn in range(40):
            word = '%d-%d-%d-' % (number, again, turn) + 'x' * (turn * 97 % 3000)
            connection.request('GET', '/echo/' + word)
            response = connection.getresponse()
            assert (response.status, response.read().decode()) == (200, word), response.status
        connection.close()
on_threads(32, ask)
print('answered')
",
    )?;
    ensure!(said.trim() == "answered", "{said}; {}", truepeer.log());
    Ok(())
}

fn bodies_pass(bed: &Bed, mebibytes: usize) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &["--body-timeout", "10m"])?;
    let script = format!(
        r"
COUNT = {mebibytes}
expected, connection, digest = digest_of(COUNT), client(), hashlib.sha256()
connection.request('POST', '/digest', (PIECE for _ in range(COUNT)), {{'Content-Length': str(COUNT << 20)}})
assert connection.getresponse().read().decode() == expected, 'up'
connection.request('GET', '/mebibytes/%d' % COUNT)
read(connection.getresponse(), digest, COUNT << 20)
assert digest.hexdigest() == expected, 'down'
print('whole')
"
    );
    let said = run_client(bed, DOOR, &script)?;
    ensure!(said.trim() == "whole", "{said}; {}", truepeer.log());
    Ok(())
}

fn chunks_and_trailers_pass(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &[])?;
    let said = run_client(
        bed,
        DOOR,
        r"
stream = connect()
stream.sendall(b'GET /chunked HTTP/1.1\r\nHost: site.test\r\nTE: trailers\r\n\r\n')
answer = b''
while not answer.endswith(b'\r\n\r\n') or answer.count(b'\r\n\r\n') < 2:
    data = stream.recv(65536)
    assert data, answer[-100:]
    answer += data
head, _, body = answer.partition(b'\r\n\r\n')
assert b'chunked' in head.lower() and body.count(b'q') == 70004, (head, body.count(b'q'))
assert body.lower().endswith(b'0\r\nx-after: it is over\r\n\r\n'), body[-60:]
stream.sendall(b'POST /digest HTTP/1.1\r\nHost: site.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-Last\r\n\r\n')
for length in [1, 40000]:
    stream.sendall(b'%x\r\n%s\r\n' % (length, b'z' * length))
stream.sendall(b'0\r\nX-Last: word\r\n\r\n')
head_of(stream)
print(stream.recv(1000).decode().lower() == hashlib.sha256(b'z' * 40001).hexdigest() + ' x-last: word')
",
    )?;
    ensure!(said.trim() == "True", "{said}; {}", truepeer.log());
    Ok(())
}

fn a_body_waits_for_the_origins_100_continue(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let _truepeer = on_vpp.https(DOOR, ORIGIN, &[])?;
    let file = bed.write("body", "z".repeat(100_000))?;
    let answer =
        curl(&["--http1.1", "--verbose", "-H", "Expect: 100-continue", "--expect100-timeout", "100"])
            .arg("--data-binary")
            .arg(format!("@{}", file.display()))
            .arg("https://172.16.2.1/digest")
            .start(bed)?;
    succeed(&answer)?;
    ensure!(answer.stderr().contains("< HTTP/1.1 100 Continue"), "{}", answer.log());
    // SHA-256 of 100,000 letters z.
    let digest = "7e9470bdc2048db4667681aed70b1dd034b5310feac2f34e96220565d47638b2";
    ensure!(answer.stdout().trim() == digest, "{}", answer.log());
    Ok(())
}

/// As for WebSockets: after 101 both directions pass unchanged.
fn an_upgraded_connection_passes(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &[])?;
    let said = run_client(
        bed,
        DOOR,
        r"
stream = connect()
stream.sendall(b'GET /upgrade HTTP/1.1\r\nHost: site.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n')
assert head_of(stream).startswith(b'HTTP/1.1 101 ')
for size in [1, 125, 60000, 3000000]:
    sender = threading.Thread(target=stream.sendall, args=(b'y' * size,))
    sender.start()
    back = 0
    while back < size: back += len(stream.recv(65536))
    sender.join()
    assert back == size, (back, size)
print('echoed')
",
    )?;
    ensure!(said.trim() == "echoed", "{said}; {}", truepeer.log());
    Ok(())
}

/// Bytes that they don't read stay with the origin, except those in queues on the way.
fn slow_readers_delay_no_other_and_get_everything(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &["--body-timeout", "10m", "--keepalive-timeout", "10m"])?;
    let slow = client(
        bed,
        DOOR,
        r"
EXPECTED = digest_of(64)
def slow(number):
    connection, digest = client(), hashlib.sha256()
    connection.request('GET', '/mebibytes/64')
    response = connection.getresponse()
    read(response, digest, 1 << 16)
    print('begun', flush=True)
    while not os.path.exists('go'): time.sleep(.02)
    read(response, digest, (64 << 20) - (1 << 16))
    assert digest.hexdigest() == EXPECTED
on_threads(4, slow)
print('whole')
",
    )?;
    slow.wait_state("all have begun", || slow.stdout().matches("begun").count() == 4)?;
    let quick = "
connection = client()
for _ in range(100):
    connection.request('GET', '/echo/quick')
    assert connection.getresponse().read() == b'quick'
";
    run_client(bed, DOOR, quick)?;
    ensure!(!origin.stdout().contains("sent"), "all of it is underway: the test shows nothing");
    bed.write("go", "")?;
    let said = succeed(&slow)?;
    ensure!(said.contains("whole"), "{said}; {}", truepeer.log());
    Ok(())
}

/// VPP takes the end of one direction as a connection's last event. Sending in the other direction needs
/// further events once the queues are full.
fn a_half_closed_client_gets_all_of_its_answer(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &[])?;
    let said = run_client(
        bed,
        DOOR,
        r"
# Python's ssl module can't close one direction alone: TLS by hand, through its memory.
plain = socket.create_connection(DOOR, 120)
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(incoming, outgoing, server_hostname='site.test')
def go(step):
    while True:
        try: result = step()
        except ssl.SSLWantReadError: result = None
        if data := outgoing.read(): plain.sendall(data)
        if result is not None: return result
        data = plain.recv(65536)
        if data: incoming.write(data)
        else: incoming.write_eof()
go(lambda: tls.do_handshake() or True)
go(lambda: tls.write(b'GET /mebibytes/16 HTTP/1.1\r\nHost: site.test\r\n\r\n'))
try: tls.unwrap()
except ssl.SSLWantReadError: pass
plain.sendall(outgoing.read())
plain.shutdown(socket.SHUT_WR)
head, digest = b'', hashlib.sha256()
while b'\r\n\r\n' not in head: head += go(lambda: tls.read(65536))
body = head.partition(b'\r\n\r\n')[2]
digest.update(body)
class Reader:
    def read(self, length): return go(lambda: tls.read(length))
read(Reader(), digest, (16 << 20) - len(body))
print(digest.hexdigest() == digest_of(16))
",
    )?;
    ensure!(said.trim() == "True", "{said}; {}", truepeer.log());
    Ok(())
}

fn http2_is_spoken(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &[])?;
    let url = "https://172.16.2.1/echo/word";
    let said = curl(&["--http2", "--write-out", " %{http_version}", url]).run(bed)?;
    ensure!(said == "word 2", "{said}; {}", truepeer.log());
    let load = Program::new("h2load").args(["-n2000", "-c8", "-m8", url]).start(bed)?;
    let said = succeed(&load)?;
    ensure!(said.contains("2000 succeeded, 0 failed, 0 errored"), "{said}; {}", truepeer.log());
    Ok(())
}

/// All clients share a connection. A body is longer than its windows.
fn http2_is_spoken_with_the_origin(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let told = format!(
        "location / {{ return 200 \"$server_protocol $connection\"; }} location /long {{ root {}; }}",
        bed.dir().display()
    );
    bed.write("long", "x".repeat(3_000_000))?;
    let _origin = Nginx::default().server("172.16.1.1:8080", "http2", &told).start(bed)?;
    let truepeer = on_vpp.https(DOOR, ORIGIN, &["--origin-protocol", "h2"])?;
    let url = "https://172.16.2.1/";
    for version in ["--http1.1", "--http2"] {
        let said = curl(&[version, url]).run(bed)?;
        ensure!(said == "HTTP/2.0 1", "{version}: {said}; {}", truepeer.log());
        let said = curl(&[version, &format!("{url}long")]).run(bed)?;
        ensure!(said.len() == 3_000_000, "{version}: {} bytes; {}", said.len(), truepeer.log());
    }
    let load = Program::new("h2load").args(["-n2000", "-c8", "-m8", url]).start(bed)?;
    let said = succeed(&load)?;
    ensure!(said.contains("2000 succeeded, 0 failed, 0 errored"), "{said}; {}", truepeer.log());
    Ok(())
}
