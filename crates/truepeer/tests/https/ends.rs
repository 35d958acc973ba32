//! Ends in the middle: of clients and of origins.

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{http2_front, https, python_client};

pub(crate) fn tests() -> Vec<Test> {
    type Body = fn(&Bed, OriginVersion) -> anyhow::Result<()>;
    let of_each: [(&str, Body); 3] = [
        ("a_client_that_leaves_cancels_its_request", a_client_that_leaves),
        ("a_client_that_closes_its_direction_gets_its_answer", a_client_that_closes_its_direction),
        ("a_truncated_answer_is_reset", a_truncated_answer),
    ];
    let mut all =
        tests![an_unsolicited_answer_reaches_no_client, early_answers_reach_clients_that_write_first];
    for version in [Http1, Http2] {
        for (name, body) in of_each {
            all.push(Test::new(format!("{name}{}", version.suffix()), move |bed| body(bed, version)));
        }
    }
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";

/// truepeer and its origin, which runs `answer(stream, path)` in a thread for each connection. For HTTP/2
/// NGINX is between them.
struct Stand {
    truepeer: Running,
    origin: Running,
    _front: Option<Running>,
}

impl Stand {
    fn start(bed: &Bed, version: OriginVersion, answer: &str) -> anyhow::Result<Self> {
        let port = if version == Http1 { 8080 } else { 9080 };
        let origin = origin(bed, port, answer)?;
        let front = if version == Http1 { None } else { Some(http2_front(bed, 8080, port)?) };
        let truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).start(bed)?;
        Ok(Self { truepeer, origin, _front: front })
    }
}

fn origin(bed: &Bed, port: u16, answer: &str) -> anyhow::Result<Running> {
    const SERVE: &str = r"
import os, socket, struct, sys, threading, time
# Each line in one write: threads say something at the same time.
def say(line):
    sys.stdout.write(line + '\n')
    sys.stdout.flush()
def serve(stream):
    head = b''
    while True:
        while not head.endswith(b'\r\n\r\n'):
            byte = stream.recv(1)
            if not byte:
                say('left')
                return
            head += byte
        path = head.split(b' ')[1].decode()
        say('asked ' + path)
        answer(stream, path)
        head = b''
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";
    let script = format!("{answer}{SERVE}");
    let origin = Program::new("python3").args(["-c", &script]).arg(port.to_string()).start(bed)?;
    origin.wait_listening(format!("127.0.0.1:{port}"))?;
    Ok(origin)
}

/// truepeer's own (413), and an origin's that comes before the origin has read the request.
fn early_answers_reach_clients_that_write_first(bed: &Bed) -> anyhow::Result<()> {
    let answer = r"
def answer(stream, path):
    stream.sendall(b'HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno')
    try:
        while stream.recv(65536): pass
    except ConnectionResetError: pass
    raise SystemExit
";
    let _origin = origin(bed, 8080, answer)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.option("--max-body", "10MiB").start(bed)?;
    let said = python_client(
        bed,
        r"
import threading
def ask(size, status):
    stream = connect()
    stream.sendall(b'POST /x HTTP/1.1\r\nHost: site\r\nConnection: close\r\nContent-Length: %d\r\n\r\n' % size)
    stream.sendall(b'x' * size)
    said = b''
    while piece := stream.recv(65536): said += piece
    assert said.startswith(b'HTTP/1.1 %d ' % status), said
    print('answered')
for size, status in [(1_500_000, 404), (9_000_000, 404), (20_000_000, 413)]:
    threads = [threading.Thread(target=ask, args=(size, status)) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
",
    )?;
    ensure!(said.matches("answered").count() == 12, "{said}");
    Ok(())
}

/// By RST, by FIN without close_notify, and (after a while) by close_notify.
fn a_client_that_leaves(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let Stand { truepeer, origin, _front } =
        &Stand::start(bed, version, "\ndef answer(stream, path): pass\n")?;
    let leaver = |how: &str| {
        format!(
            r"
import os, time, struct
stream = connect()
stream.sendall(b'GET / HTTP/1.1\r\nHost: site\r\n\r\n')
while not os.path.exists('asked'): time.sleep(0.02)
{how}
"
        )
    };
    for (count, how) in [
        "stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); stream.close()",
        // TLS 1.3 tickets are read first: a socket that is closed with unread bytes sends RST instead of
        // FIN.
        "stream.settimeout(0.3)\ntry: stream.recv(1)\nexcept TimeoutError: pass\nstream.close()",
        "stream.settimeout(0.01)\ntry: stream.unwrap()\nexcept Exception: pass\nstream.close()",
    ]
    .iter()
    .enumerate()
    {
        let asked = bed.dir().join("asked");
        std::thread::scope(|scope| -> anyhow::Result<()> {
            let client = scope.spawn(|| python_client(bed, &leaver(how)));
            origin.wait_state("a request", || origin.stdout().matches("asked").count() > count)?;
            std::fs::write(&asked, "")?;
            client.join().map_err(|_| anyhow::anyhow!("the client's thread has panicked"))??;
            Ok(())
        })?;
        origin.wait_state("the end of its connection", || origin.stdout().matches("left").count() > count)?;
        std::fs::remove_file(&asked)?;
    }
    ensure!(truepeer.is_alive());
    Ok(())
}

/// The origin answers after that.
fn a_client_that_closes_its_direction(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let answer = r"
def answer(stream, path):
    while not os.path.exists('closed'): time.sleep(.01)
    stream.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
";
    let _stand = Stand::start(bed, version, answer)?;
    // Python's ssl module can't end one direction alone, so TLS runs over its memory buffers.
    let said = python_client(
        bed,
        r"
plain = socket.create_connection(('127.0.0.1', 443), 60)
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(incoming, outgoing, server_hostname='site')
def go(step):
    while True:
        try: result = step()
        except ssl.SSLWantReadError: result = None
        plain.sendall(outgoing.read())
        if result is not None: return result
        data = plain.recv(65536)
        if data: incoming.write(data)
        else: incoming.write_eof()
go(lambda: tls.do_handshake() or True)
go(lambda: tls.write(b'GET / HTTP/1.1\r\nHost: site\r\n\r\n'))
try: tls.unwrap()
except ssl.SSLWantReadError: pass
plain.sendall(outgoing.read())
open('closed', 'w').close()
# Head and body may come in records of their own. At the end, read() fails.
answer = b''
while not answer.endswith(b'ok'): answer += go(lambda: tls.read(65536))
print('answered')
",
    )?;
    ensure!(said.trim() == "answered", "{said}");
    Ok(())
}

/// With a length, with chunks, and delimited by the connection's end; with FIN and with RST.
fn a_truncated_answer(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let answer = r"
def answer(stream, path):
    length, end = path[1:].split('/')
    heads = {'known': 'Content-Length: 10', 'chunked': 'Transfer-Encoding: chunked', 'close': 'Connection: close'}
    stream.sendall(('HTTP/1.1 200 OK\r\n%s\r\n\r\n5\r\nhal' % heads[length]).encode())
    time.sleep(0.1)
    if end == 'rst': stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    else: stream.shutdown(socket.SHUT_RDWR)
    stream.close()
    raise SystemExit
";
    let _stand = Stand::start(bed, version, answer)?;
    let said = python_client(
        bed,
        r"
def ask(version, path):
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    stream = context.wrap_socket(plain, server_hostname='site', suppress_ragged_eofs=False)
    stream.sendall(('GET /%s HTTP/%s\r\nHost: site\r\n\r\n' % (path, version)).encode())
    data = b''
    while True:
        try: piece = stream.recv(65536)
        except (ConnectionResetError, ssl.SSLEOFError): return data, True
        if not piece: return data, False
        data += piece
cases = [(length, end) for length in ['known', 'chunked'] for end in ['fin', 'rst']] + [('close', 'rst')]
for version in ['1.1', '1.0']:
    for length, end in cases:
        data, is_broken = ask(version, length + '/' + end)
        assert is_broken and not data.endswith(b'0\r\n\r\n'), (version, length, end, data)
print(len(cases))
",
    )?;
    ensure!(said.trim() == "5", "{said}");
    Ok(())
}

/// The origin sends a second answer after each: the next request must not get it.
fn an_unsolicited_answer_reaches_no_client(bed: &Bed) -> anyhow::Result<()> {
    let answer = r"
def answer(stream, path):
    stream.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngoodHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil')
";
    let _stand = Stand::start(bed, Http1, answer)?;
    let said = python_client(
        bed,
        r"
import http.client
client = http.client.HTTPSConnection('127.0.0.1', 443, timeout=60, context=context)
for number in range(100):
    client.request('GET', '/')
    body = client.getresponse().read()
    assert body == b'good', (number, body)
print('good')
",
    )?;
    ensure!(said.trim() == "good", "{said}");
    Ok(())
}
