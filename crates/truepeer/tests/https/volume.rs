//! Volume: long bodies, slow parties, and many connections at once.

use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Resource, getrlimit};
use truepeer_testbed::{Bed, Program, Running, Test};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{curl, http2_front, https, python_client};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for version in [Http1, Http2] {
        let test = |name: &str, body: fn(&Bed, OriginVersion) -> anyhow::Result<()>| {
            Test::new(format!("{name}{}", version.suffix()), move |bed| body(bed, version))
        };
        all.push(test("slow_readers_cost_no_memory", slow_readers));
        all.push(test("slow_origins_cost_no_memory", slow_origins));
        all.push(test("bodies_of_64_mib_pass_each_way", |bed, version| bodies_pass(bed, version, 64)));
        all.push(test("bodies_of_64_mib_pass_each_way_over_http2", http2_bodies_pass));
        all.push(
            test("bodies_of_1_gib_pass_each_way", |bed, version| bodies_pass(bed, version, 1024))
                .long()
                .time_limit(Duration::from_secs(600)),
        );
        all.push(test("connections_are_kept_a_thousand", |bed, version| many_are_kept(bed, version, 1000)));
        all.push(
            test("connections_are_kept_ten_thousand", |bed, version| {
                many_are_kept(bed, version, ten_thousand())
            })
            .long()
            .alone()
            .time_limit(Duration::from_secs(600))
            .needs_open_files(12_000),
        );
    }
    all
}

/// `GET /N`: N MiB, `piece()` repeated. `POST /`: the digest of the body, which is read once the file "go"
/// exists.
const ORIGIN: &str = r"
import hashlib, http.server, os, socketserver, sys, time
def piece(): return hashlib.shake_256(b'truepeer').digest(1 << 20)
PIECE = piece()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = 'HTTP/1.1', True
    def log_message(self, *_): pass
    def do_GET(self):
        count = int(self.path[1:])
        self.send_response(200)
        self.send_header('Content-Length', str(count << 20))
        self.end_headers()
        for _ in range(count): self.wfile.write(PIECE)
        print('sent', flush=True)
    def do_POST(self):
        print('asked', flush=True)
        while not os.path.exists('go'): time.sleep(.02)
        digest, left = hashlib.sha256(), int(self.headers['Content-Length'])
        while left:
            data = self.rfile.read(min(left, 1 << 16))
            digest.update(data)
            left -= len(data)
        self.send_response(200)
        self.send_header('Content-Length', '64')
        self.end_headers()
        self.wfile.write(digest.hexdigest().encode())
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
Server(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

/// The start of the clients here.
const CLIENT: &str = r"
import hashlib, http.client, os, resource, sys, threading, time
PIECE = hashlib.shake_256(b'truepeer').digest(1 << 20)
def expected(count):
    digest = hashlib.sha256()
    for _ in range(count): digest.update(PIECE)
    return digest.hexdigest()
def client(): return http.client.HTTPSConnection('127.0.0.1', 443, timeout=600, context=context)
def read(response, digest, length):
    while length:
        data = response.read(min(length, 1 << 18))
        assert data, 'the end came early'
        digest.update(data)
        length -= len(data)
def post(count):
    connection = client()
    connection.request('POST', '/', (PIECE for _ in range(count)), {'Content-Length': str(count << 20)})
    return connection.getresponse().read().decode()
";

/// The origin, truepeer, and NGINX between them if the origin speaks HTTP/2.
fn start(bed: &Bed, version: OriginVersion) -> anyhow::Result<(Running, Running, Option<Running>)> {
    let port = if version == Http2 { 9080 } else { 8080 };
    let origin = Program::new("python3").args(["-c", ORIGIN, &port.to_string()]).start(bed)?;
    origin.wait_listening(format!("127.0.0.1:{port}"))?;
    let front = (version == Http2).then(|| http2_front(bed, 8080, port)).transpose()?;
    let options = ["--keepalive-timeout", "30m", "--body-timeout", "10m", "--response-timeout", "10m"];
    let truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?.args(&options);
    let truepeer = truepeer.option("--origin-protocol", version.option()).start(bed)?;
    Ok((origin, truepeer, front))
}

/// Starts a client that may take longer than [`python_client`] allows, and watches it until it has ended.
fn client(bed: &Bed, script: &str) -> anyhow::Result<Running> {
    Program::new("python3").args(["-c", &format!("{}{CLIENT}{script}", crate::kit::CONNECT)]).start(bed)
}

/// Waits without a limit: tests have their own time limits.
fn succeed(client: &Running) -> anyhow::Result<String> {
    while client.is_alive() {
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(client.wait_end()?.success(), "{}", client.log());
    Ok(client.stdout())
}

fn bodies_pass(bed: &Bed, version: OriginVersion, mebibytes: usize) -> anyhow::Result<()> {
    let (_origin, truepeer, _front) = start(bed, version)?;
    python_client(bed, "connect()")?;
    let before = truepeer.resident_bytes()?;
    bed.write("go", "")?;
    let script = format!(
        r"
COUNT = {mebibytes}
assert post(COUNT) == expected(COUNT), 'up'
connection, digest = client(), hashlib.sha256()
connection.request('GET', '/%d' % COUNT)
read(connection.getresponse(), digest, COUNT << 20)
assert digest.hexdigest() == expected(COUNT), 'down'
print('whole')
"
    );
    let said = succeed(&client(bed, &script)?)?;
    ensure!(said.trim() == "whole", "{said}; {}", truepeer.log());
    let growth = truepeer.resident_bytes()?.saturating_sub(before);
    ensure!(growth < MOST_GROWTH_BY_A_BODY, "it has grown by {growth} bytes");
    Ok(())
}

/// The growth allowed for one body at a time, however long it is.
const MOST_GROWTH_BY_A_BODY: usize = 16 << 20;

/// With clients that speak HTTP/2, four at a time over one connection.
fn http2_bodies_pass(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    const COUNT: usize = 64;
    let (_origin, truepeer, _front) = start(bed, version)?;
    bed.write("go", "")?;
    let piece =
        "import hashlib, sys; sys.stdout.buffer.write(hashlib.shake_256(b'truepeer').digest(1 << 20) * 64)";
    let body = bed.dir().join("body");
    let script = format!("python3 -c \"{piece}\" > {} && sha256sum < {0}", body.display());
    let expected = Program::new("sh").args(["-c", &script]).run(bed)?;
    let expected = expected.split_whitespace().next().unwrap_or_default();
    let url = "https://127.0.0.1/";
    let upload = format!("@{}", body.display());
    let parallel = ["--http2", "--parallel", "--parallel-immediate"];
    let up = curl(&parallel).args(["--data-binary", &upload, url, url, url, url]).run(bed)?;
    ensure!(up == expected.repeat(4), "{up}; {}", truepeer.log());
    let files: Vec<_> = (0..4).map(|number| bed.dir().join(format!("down-{number}"))).collect();
    let mut down = curl(&parallel);
    for file in &files {
        down = down.arg("-o").arg(file).arg(format!("{url}{COUNT}"));
    }
    down.run(bed)?;
    let sums = Program::new("sha256sum").args(&files).run(bed)?;
    ensure!(sums.matches(expected).count() == 4, "{sums}; {}", truepeer.log());
    Ok(())
}

/// The bytes sent to all slow ones together. A proxy that buffers everything would grow by as much.
const CROWD: usize = 16;
const EACH_MEBIBYTES: usize = 32;
/// The growth allowed: far more than necessary, and far less than everything.
const MOST_GROWTH: usize = 128 << 20;

/// Watches truepeer's memory until it stops growing: then every party waits for another.
fn settled_growth(truepeer: &Running, before: usize) -> anyhow::Result<usize> {
    let (mut last, mut same) = (0, 0);
    while same < 10 {
        std::thread::sleep(Duration::from_millis(100));
        let now = truepeer.resident_bytes()?;
        same = if now > last + (1 << 18) { 0 } else { same + 1 };
        last = last.max(now);
    }
    Ok(last.saturating_sub(before))
}

fn slow_readers(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let (origin, truepeer, _front) = start(bed, version)?;
    python_client(bed, "connect()")?;
    let before = truepeer.resident_bytes()?;
    let script = format!(
        r"
COUNT = {EACH_MEBIBYTES}
def slow(n):
    connection, digest = client(), hashlib.sha256()
    connection.request('GET', '/%d' % COUNT)
    response = connection.getresponse()
    read(response, digest, 1 << 18)
    print('begun', flush=True)
    while not os.path.exists('go'): time.sleep(.02)
    read(response, digest, (COUNT << 20) - (1 << 18))
    print('whole' if digest.hexdigest() == EXPECTED else 'broken', flush=True)
EXPECTED = expected(COUNT)
threads = [threading.Thread(target=slow, args=(n,)) for n in range({CROWD})]
for thread in threads: thread.start()
for thread in threads: thread.join()
"
    );
    let clients = client(bed, &script)?;
    clients.wait_state("all have begun", || clients.stdout().matches("begun").count() == CROWD)?;
    let growth = settled_growth(&truepeer, before)?;
    ensure!(growth < MOST_GROWTH, "it has grown by {growth} bytes");
    ensure!(!origin.stdout().contains("sent"), "all of it is underway: the test shows nothing");
    bed.write("go", "")?;
    let said = succeed(&clients)?;
    ensure!(said.matches("whole").count() == CROWD, "{said}; {}", truepeer.log());
    Ok(())
}

fn slow_origins(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let (origin, truepeer, _front) = start(bed, version)?;
    python_client(bed, "connect()")?;
    let before = truepeer.resident_bytes()?;
    let script = format!(
        r"
COUNT = {EACH_MEBIBYTES}
def eager(n):
    print('whole' if post(COUNT) == EXPECTED else 'broken', flush=True)
EXPECTED = expected(COUNT)
threads = [threading.Thread(target=eager, args=(n,)) for n in range({CROWD})]
for thread in threads: thread.start()
for thread in threads: thread.join()
"
    );
    let clients = client(bed, &script)?;
    origin.wait_state("all have asked", || origin.stdout().matches("asked").count() == CROWD)?;
    let growth = settled_growth(&truepeer, before)?;
    ensure!(growth < MOST_GROWTH, "it has grown by {growth} bytes");
    bed.write("go", "")?;
    let said = succeed(&clients)?;
    ensure!(said.matches("whole").count() == CROWD, "{said}; {}", truepeer.log());
    Ok(())
}

/// Ten thousand, or two thirds of what truepeer has room for if a process may open few files.
fn ten_thousand() -> usize {
    let limit = getrlimit(Resource::Nofile).maximum.and_then(|limit| limit.try_into().ok());
    limit.map_or(10_000, |limit: usize| (limit.saturating_sub(1000) * 2 / 3).min(10_000))
}

/// The growth allowed for each connection with a request.
const MOST_GROWTH_EACH: usize = 64 << 10;

/// Each connection sends a request, stays, and sends another when all the others are there: one after
/// another, or all at once where the requests share few connections to the origin.
fn many_are_kept(bed: &Bed, version: OriginVersion, count: usize) -> anyhow::Result<()> {
    let origin = truepeer_testbed::servers::Nginx::default()
        .server(
            "127.0.0.1:8080",
            version.nginx(),
            "keepalive_requests 1000000; location / { return 200 fine; }",
        )
        .start(bed)?;
    let truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?
        .option("--keepalive-timeout", "30m")
        .option("--origin-protocol", version.option())
        .start(bed)?;
    python_client(bed, "connect()")?;
    let before = truepeer.resident_bytes()?;
    let at_once = if version == Http2 { "True" } else { "False" };
    let script = format!(
        r"
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
kept, THREADS = [], 4
def send(stream): stream.sendall(b'GET / HTTP/1.1\r\nHost: site\r\n\r\n')
def receive(stream):
    answer = b''
    while not answer.endswith(b'\r\n\r\nfine'):
        data = stream.recv(1000)
        assert data, answer
        answer += data
    assert answer.startswith(b'HTTP/1.1 200 ')
def begin(number):
    for _ in range(number, {count}, THREADS):
        stream = connect()
        send(stream)
        receive(stream)
        kept.append(stream)
def again(number):
    streams = kept[number::THREADS]
    if {at_once}:
        for stream in streams: send(stream)
    for stream in streams:
        if not {at_once}: send(stream)
        receive(stream)
def on_threads(work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
on_threads(begin)
print('here', len(kept), flush=True)
while not os.path.exists('go'): time.sleep(.02)
on_threads(again)
print('again', flush=True)
"
    );
    let clients = client(bed, &script)?;
    while clients.is_alive() && !clients.stdout().contains("here") {
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(clients.stdout().trim() == format!("here {count}"), "{}; {}", clients.log(), truepeer.log());
    ensure!(truepeer.descriptors()? >= count);
    // Requests one by one need few connections to the origin, however many clients there are.
    ensure!(origin.is_alive() && truepeer.descriptors()? < count + 500, "{:?}", truepeer.descriptors());
    bed.write("go", "")?;
    let said = succeed(&clients)?;
    ensure!(said.contains("again") && clients.stderr().is_empty(), "{}; {}", clients.log(), truepeer.log());
    let growth = truepeer.resident_bytes()?.saturating_sub(before);
    ensure!(growth < count * MOST_GROWTH_EACH, "it has grown by {growth} bytes for {count} connections");
    Ok(())
}
