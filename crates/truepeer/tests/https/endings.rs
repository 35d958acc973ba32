//! Endings: of the program, without a lost answer; of connections after 101; and certificates replaced under
//! load.

use std::fs;
use std::path::PathBuf;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Program, Running, Test, client, tests};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{https, origin, origin_in};

const DOOR: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8000";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        connections_waiting_in_the_queue_are_still_served,
        a_second_signal_ends_at_once,
        the_drain_time_ends_endless_sessions,
        a_connection_after_101_ends_as_the_other_one_did,
        connections_after_101_end_with_the_drain_time,
        certificates_change_under_load,
    ];
    let open = "open_requests_are_answered_before_the_end";
    let over = [Http1, Http2]
        .map(|origin| Test::new(format!("{open}{}", origin.suffix()), move |bed| open_requests(bed, origin)));
    all.into_iter().chain(over).map(|test| test.needs_program("python3")).collect()
}

/// `connect()` opens a TLS connection to truepeer; `wait_for(name)` waits for a file in the bed's directory.
const PRELUDE: &str = r"
import os, socket, ssl, struct, sys, threading, time
context = ssl._create_unverified_context()
def connect():
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    # Else an end without a close_notify looks like one with it.
    return context.wrap_socket(plain, server_hostname='site', suppress_ragged_eofs=False)
def wait_for(name):
    while not os.path.exists(os.path.join(sys.argv[1], name)): time.sleep(.01)
# Each line in one write: threads say something at the same time.
def say(*words):
    sys.stdout.write(' '.join(map(str, words)) + '\n')
    sys.stdout.flush()
def reset(stream):
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    stream.close()
def end_of(stream):
    try:
        while True:
            if not stream.recv(65536): return 'in order'
    except (ConnectionResetError, BrokenPipeError): return 'reset'
    except ssl.SSLEOFError: return 'reset' # which Python does not tell apart from a missing close_notify
";

fn python(bed: &Bed, script: &str) -> anyhow::Result<Running> {
    Program::new("python3").args(["-c", &format!("{PRELUDE}{script}")]).arg(bed.dir()).start(bed)
}

/// A connection that waits for its next request, and one with an incomplete request, which it completes when
/// the file `go` exists.
const BUSY: &str = r"
def answered(stream):
    answer = b''
    while not answer.endswith(b'\r\n\r\nx'): answer += stream.recv(4096)
idle, busy = connect(), connect()
for stream in idle, busy:
    stream.sendall(b'GET /1 HTTP/1.1\r\nHost: site\r\n\r\n')
    answered(stream)
busy.sendall(b'POST /busy HTTP/1.1\r\nHost: site\r\nContent-Length: 2\r\n\r\na')
print('ready', flush=True)
print('idle ended', end_of(idle), flush=True)
wait_for('go')
busy.sendall(b'b')
answer = b''
while piece := busy.recv(4096): answer += piece
print(answer.decode(), flush=True)
";

/// truepeer with an origin, and a client in the middle of a request.
struct Busy {
    truepeer: Running,
    client: Running,
    _origin: Vec<Running>,
}

impl Busy {
    fn start(bed: &Bed, options: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(bed, Http1, options)
    }

    fn start_in(bed: &Bed, version: OriginVersion, options: &[&str]) -> anyhow::Result<Self> {
        let origin = origin_in(bed, 8000, version)?;
        let site = https(bed, DOOR, ORIGIN)?.option("--origin-protocol", version.option());
        let truepeer = site.args(options).start(bed)?;
        let client = python(bed, BUSY)?;
        client.wait_for_log("ready")?;
        origin[0].wait_for_log("request /busy")?;
        Ok(Self { truepeer, client, _origin: origin })
    }

    /// Sends SIGTERM and waits until the drain has started.
    fn ask_for_the_end(&self) -> anyhow::Result<()> {
        self.truepeer.signal(Signal::TERM)?;
        self.truepeer.wait_for_log("stopping: nothing new is taken")
    }

    fn ensure_well_ended(&self) -> anyhow::Result<()> {
        let status = self.truepeer.wait_end()?;
        ensure!(status.code() == Some(0), "{status}: {}", self.truepeer.log());
        Ok(())
    }
}

fn open_requests(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let busy = Busy::start_in(bed, version, &[])?;
    busy.ask_for_the_end()?;
    busy.client.wait_for_log("idle ended in order")?;
    bed.wait_for("the listener to be closed", || client::connect(DOOR).is_err())?;
    ensure!(busy.truepeer.is_alive(), "{}", busy.truepeer.log());
    bed.write("go", "")?;
    ensure!(busy.client.wait_end()?.success(), "{}", busy.client.log());
    let answer = busy.client.stdout().to_lowercase();
    // SHA-256 of "ab".
    let digest = "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603";
    for part in ["http/1.1 200 ok", "connection: close", digest] {
        ensure!(answer.contains(part), "no {part:?} in {answer}");
    }
    busy.ensure_well_ended()
}

/// More connections in each worker's queue than one turn accepts.
fn connections_waiting_in_the_queue_are_still_served(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8000)?;
    // The last one's time begins long before it is its turn.
    let truepeer = https(bed, DOOR, ORIGIN)?.option("--tls-timeout", "60s").start(bed)?;
    truepeer.signal(Signal::STOP)?;
    let client = python(
        bed,
        r"
waiting = [socket.create_connection(('127.0.0.1', 443), 60) for _ in range(200)]
print('queued', flush=True)
for stream in waiting: context.wrap_socket(stream, server_hostname='site')
",
    )?;
    client.wait_for_log("queued")?;
    truepeer.signal(Signal::TERM)?;
    truepeer.signal(Signal::CONT)?;
    ensure!(client.wait_end()?.success(), "{}", client.log());
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    Ok(())
}

fn a_second_signal_ends_at_once(bed: &Bed) -> anyhow::Result<()> {
    // Longer than the test's time limit.
    let busy = Busy::start(bed, &["--drain-timeout", "1h"])?;
    busy.ask_for_the_end()?;
    busy.truepeer.signal(Signal::TERM)?;
    busy.ensure_well_ended()
}

fn the_drain_time_ends_endless_sessions(bed: &Bed) -> anyhow::Result<()> {
    let busy = Busy::start(bed, &["--drain-timeout", "500ms"])?;
    busy.ask_for_the_end()?;
    busy.ensure_well_ended()
}

/// An origin that changes the protocol, greets, and continues as the path says.
const SWITCHING: &str = r"
def serve(stream):
    head = b''
    while b'\r\n\r\n' not in head: head += stream.recv(4096)
    path = head.split()[1].decode()
    stream.sendall(b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nhello')
    if path == '/origin-resets':
        stream.recv(1)
        reset(stream)
    elif path == '/origin-ends':
        stream.recv(1)
        stream.shutdown(socket.SHUT_WR)
        say(path, end_of(stream))
    else:
        say(path, end_of(stream))
listener = socket.create_server(('127.0.0.1', 8000))
print('listening', flush=True)
while True: threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

const SWITCHED: &str = r"
def switched(path):
    stream = connect()
    stream.sendall(b'GET %s HTTP/1.1\r\nHost: site\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n' % path.encode())
    answer = b''
    while not answer.endswith(b'hello'): answer += stream.recv(4096)
    return stream
";

fn switching(bed: &Bed) -> anyhow::Result<Running> {
    let origin = python(bed, SWITCHING)?;
    origin.wait_for_log("listening")?;
    Ok(origin)
}

fn a_connection_after_101_ends_as_the_other_one_did(bed: &Bed) -> anyhow::Result<()> {
    let origin = switching(bed)?;
    let _truepeer = https(bed, DOOR, ORIGIN)?.start(bed)?;
    let client = python(
        bed,
        &format!(
            r"{SWITCHED}
for path in '/origin-resets', '/origin-ends':
    stream = switched(path)
    stream.sendall(b'x')
    print(path, end_of(stream), flush=True)
reset(switched('/client-resets'))
# The end of TCP without that of TLS.
socket.socket(fileno=switched('/client-is-cut').detach()).close()
stream = switched('/client-ends')
try: stream.unwrap().close()
except (ssl.SSLError, OSError): pass
"
        ),
    )?;
    ensure!(client.wait_end()?.success(), "{}", client.log());
    for (side, path, end) in [
        (&client, "/origin-resets", "reset"),
        (&client, "/origin-ends", "in order"),
        (&origin, "/client-resets", "reset"),
        (&origin, "/client-is-cut", "reset"),
        (&origin, "/client-ends", "in order"),
    ] {
        side.wait_for_log(&format!("{path} {end}\n"))?;
    }
    Ok(())
}

fn connections_after_101_end_with_the_drain_time(bed: &Bed) -> anyhow::Result<()> {
    let origin = switching(bed)?;
    let truepeer = https(bed, DOOR, ORIGIN)?.args(&["--drain-timeout", "500ms"]).start(bed)?;
    let script = format!(
        "{SWITCHED}
stream = switched('/stays')
print('open', flush=True)
print('client', end_of(stream), flush=True)"
    );
    let client = python(bed, &script)?;
    client.wait_for_log("open")?;
    truepeer.signal(Signal::TERM)?;
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    origin.wait_for_log("/stays reset\n")?;
    client.wait_for_log("client reset\n")
}

/// Sends requests on lasting and on new connections, from four threads, until the file `stop` exists. Errors
/// are printed. A handshake that starts after the file `changed` appeared must present another certificate
/// than the first.
const LOAD: &str = r"
first = connect().getpeercert(binary_form=True)
counts = {'kept': 0, 'old': 0, 'new': 0}
lock = threading.Lock()
def here(name): return os.path.exists(os.path.join(sys.argv[1], name))
def ask(stream):
    stream.sendall(b'GET /1 HTTP/1.1\r\nHost: site\r\n\r\n')
    answer = b''
    while not answer.endswith(b'\r\n\r\nx'):
        piece = stream.recv(4096)
        if not piece: raise Exception('cut off after %r' % answer)
        answer += piece
def count(what):
    with lock: counts[what] += 1
def load():
    try:
        kept = connect()
        while not here('stop'):
            ask(kept)
            count('kept')
            has_changed = here('changed')
            fresh = connect()
            is_first = fresh.getpeercert(binary_form=True) == first
            ask(fresh)
            fresh.close()
            if has_changed and is_first: raise Exception('the first certificate')
            count('old' if is_first else 'new')
            if counts['old'] > 20: say('under way')
            if counts['new'] > 20: say('with new ones')
            if here('broken') and not here('stop'):
                say('still well')
    except Exception as error: say('FAILED', repr(error))
threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('over', counts, flush=True)
";

fn certificates_change_under_load(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8000)?;
    let truepeer = https(bed, DOOR, ORIGIN)?.start(bed)?;
    let load = python(bed, LOAD)?;
    load.wait_for_log("under way")?;

    replace(bed, rcgen::generate_simple_self_signed(["site".to_owned()])?)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("have new certificates")?;
    bed.write("changed", "")?;
    load.wait_for_log("with new ones")?;

    bed.write("site.pem", "not a certificate")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("stays as it was: --tls-cert ")?;
    bed.write("broken", "")?;
    load.wait_for_log("still well")?;

    bed.write("stop", "")?;
    ensure!(load.wait_end()?.success(), "{}", load.log());
    ensure!(!load.log().contains("FAILED"), "{}", load.log());
    Ok(())
}

/// Replaces the certificate that truepeer was started with, each file atomically, as tools do.
fn replace(bed: &Bed, made: rcgen::CertifiedKey<rcgen::KeyPair>) -> anyhow::Result<()> {
    for (name, text) in [("site.pem", made.cert.pem()), ("site.key", made.signing_key.serialize_pem())] {
        let new: PathBuf = bed.write(&format!("{name}.new"), text)?;
        fs::rename(new, bed.dir().join(name))?;
    }
    Ok(())
}
