//! The system fails: no more descriptors, or a worker whose epoll fails.

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use truepeer_testbed::{Bed, Program, Running, Test, skip, tests};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{curl, https, https_with_files, origin, origin_in};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_worker_that_fails_ends_the_program_with_the_reason,
        the_connections_of_one_client_are_limited,
    ];
    type Body = fn(&Bed, ClientVersion, OriginVersion) -> anyhow::Result<()>;
    let of_each: [(&str, Body); 3] = [
        ("accepting_pauses_while_there_are_no_descriptors", accepting_pauses),
        ("a_request_without_a_descriptor_for_the_origin_gets_a_status", a_request_without_a_descriptor),
        ("idle_connections_give_way_to_new_ones", idle_connections_give_way),
    ];
    for clients in [ClientVersion::Http1, ClientVersion::Http2] {
        for origin in [Http1, Http2] {
            for (name, body) in of_each {
                let name = format!("{name}{}{}", clients.suffix(), origin.suffix());
                all.push(Test::new(name, move |bed| body(bed, clients, origin)));
            }
        }
    }
    all.into_iter().map(|test| test.needs_program("python3")).collect()
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";
const WORKERS: u32 = 2;
const CROWD_LEN: u32 = 64;
/// The pause between two attempts to accept.
const PAUSE: Duration = Duration::from_millis(50);

/// The version of HTTP that clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientVersion {
    Http1,
    Http2,
}

impl ClientVersion {
    /// The end of a test's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Http1 => "",
            Self::Http2 => "_with_http2",
        }
    }

    fn curl(self, args: &[&str]) -> Program {
        curl(&[if self == Self::Http1 { "--http1.1" } else { "--http2" }]).args(args)
    }

    /// Runs a script that has `connect()`, and `get(connection)` for `/3`.
    fn start(self, bed: &Bed, script: &str, args: &[&str]) -> anyhow::Result<Running> {
        let client = if self == Self::Http1 { HTTP1_CLIENT } else { HTTP2_CLIENT };
        let script = format!("{client}{script}");
        Program::new("python3").args(["-c", &script]).args(args).start(bed)
    }
}

const HTTP1_CLIENT: &str = r"
import os, socket, ssl, sys, time
context = ssl._create_unverified_context()
def connect():
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    return context.wrap_socket(plain, server_hostname='site')
def get(connection):
    connection.sendall(b'GET /3 HTTP/1.1\r\nHost: site\r\n\r\n')
    answer = b''
    while b'\r\n\r\n' not in answer or not answer.endswith(b'xxx'):
        piece = connection.recv(4096)
        assert piece, answer
        answer += piece
    assert answer.startswith(b'HTTP/1.1 200 '), answer
";

/// Frames of RFC 9113.
const HTTP2_CLIENT: &str = r"
import os, socket, ssl, sys, time
context = ssl._create_unverified_context()
context.set_alpn_protocols(['h2'])
def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, 'big') + bytes([kind, flags]) + stream.to_bytes(4, 'big') + payload
def connect():
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    connection = context.wrap_socket(plain, server_hostname='site')
    assert connection.selected_alpn_protocol() == 'h2'
    connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0, b''))
    return connection
def exactly(connection, count):
    got = b''
    while len(got) < count:
        piece = connection.recv(count - len(got))
        assert piece, got
        got += piece
    return got
streams = {}
def get(connection):
    stream = streams[connection] = streams.get(connection, -1) + 2
    # RFC 7541: GET, https, a path and an authority that are not indexed
    connection.sendall(frame(1, 5, stream, b'\x82\x87\x04\x02/3\x01\x04site'))
    body, ended = b'', False
    while not ended:
        head = exactly(connection, 9)
        payload = exactly(connection, int.from_bytes(head[:3], 'big'))
        kind, flags = head[3], head[4]
        assert kind not in (3, 7), (head, payload)
        if kind == 0: body += payload
        ended = kind in (0, 1) and flags & 1
    assert body == b'xxx', body
";

/// Sends requests on one connection until the file `enough` exists.
const REGULAR: &str = r"
client, count = connect(), 0
while not os.path.exists('enough'):
    get(client)
    count += 1
    if count % 20 == 0: print('served', count, flush=True)
    time.sleep(.01)
";

/// Silent connections, as many as requested, until the file `leave` exists.
const CROWD: &str = r"
crowd = [socket.create_connection(('127.0.0.1', 443), 60) for _ in range(int(sys.argv[1]))]
print('here', flush=True)
while not os.path.exists('leave'): time.sleep(.01)
";

/// The test changes the limits of truepeer, which only its own user or CAP_SYS_RESOURCE may.
const MINE: [&str; 2] = ["--user", "root"];

/// Lets truepeer open this many more descriptors: each new one gets the lowest free number.
fn allow_descriptors(truepeer: &Running, more: usize) -> anyhow::Result<()> {
    // It answers once it has started. Before, it opens some for a moment, also after the last line of its
    // start.
    report(truepeer)?;
    let names = fs::read_dir(format!("/proc/{}/fd", truepeer.pid()))?.flatten();
    let used: HashSet<u64> = names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect();
    let last = (0..).filter(|number| !used.contains(number)).take(more).last();
    let limits = fs::read_to_string(format!("/proc/{}/limits", truepeer.pid()))?;
    let hard = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().nth(1));
    let limit =
        Rlimit { current: last.map(|last| last + 1), maximum: hard.and_then(|hard| hard.parse().ok()) };
    prlimit(Pid::from_raw(truepeer.pid()), Resource::Nofile, limit)?;
    Ok(())
}

/// Makes it log its counters.
fn report(truepeer: &Running) -> anyhow::Result<()> {
    let reports = truepeer.log().matches("counters: ").count();
    truepeer.signal(Signal::USR1)?;
    truepeer.wait_state("a report", || truepeer.log().matches("counters: ").count() > reports)
}

fn count(truepeer: &Running, counter: &str) -> anyhow::Result<u32> {
    report(truepeer)?;
    let log = truepeer.log();
    let mut words =
        log.split([' ', '"', ',']).filter_map(|word| word.strip_prefix(counter)?.strip_prefix('='));
    Ok(words.next_back().with_context(|| format!("no {counter} in the report"))?.parse()?)
}

/// How often accepting was paused.
fn pauses(truepeer: &Running) -> anyhow::Result<u32> {
    count(truepeer, "accept_pauses")
}

/// Its CPU time, in the kernel's ticks of 10 ms.
fn ticks(truepeer: &Running) -> anyhow::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", truepeer.pid()))?;
    let fields = stat.rsplit_once(')').context("stat without a name")?.1;
    // proc_pid_stat(5): utime and stime are fields 14 and 15; the name is field 2.
    fields.split_whitespace().skip(11).take(2).map(|field| Ok(field.parse::<u64>()?)).sum()
}

fn accepting_pauses(bed: &Bed, clients: ClientVersion, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = origin_in(bed, 8080, version)?;
    let truepeer =
        https(bed, HERE, ORIGIN)?.args(&MINE).option("--origin-protocol", version.option()).start(bed)?;
    let regular = clients.start(bed, REGULAR, &[])?;
    regular.wait_for_log("served")?;

    let began = Instant::now();
    allow_descriptors(&truepeer, 8)?;
    let crowd = clients.start(bed, CROWD, &[&CROWD_LEN.to_string()])?;
    crowd.wait_for_log("here")?;
    truepeer.wait_for_log("accepting paused for a moment: ")?;
    truepeer.wait_for_log("Too many open files")?;
    let late = clients.curl(&["https://127.0.0.1/3"]).start(bed)?;
    // Existing connections are still served.
    let served = |log: &str| log.matches("served").count();
    let before = served(&regular.stdout());
    regular.wait_state("more answers", || served(&regular.stdout()) > before + 3)?;
    bed.write("enough", "")?;
    ensure!(regular.wait_end()?.success(), "{}; {}", regular.log(), truepeer.log());

    // There are no requests now, so all CPU time is for the pauses. A spinning loop would use a whole core,
    // 200 ticks, or a good part of it on a busy machine.
    let (since, used) = (pauses(&truepeer)?, ticks(&truepeer)?);
    truepeer.wait_state("more pauses", || pauses(&truepeer).is_ok_and(|now| now > since + 40))?;
    let used = ticks(&truepeer)? - used;
    ensure!(used <= 40, "{used} ticks of the processor for 40 pauses");
    let most = WORKERS * u32::try_from(began.elapsed().as_millis() / PAUSE.as_millis() + 1)?;
    let seen = pauses(&truepeer)?;
    let most = most + WORKERS * 2;
    ensure!(seen <= most, "{seen} pauses in {:?}", began.elapsed());
    let lines = u128::try_from(truepeer.log().matches("accepting paused").count())?;
    ensure!(lines <= 1 + began.elapsed().as_secs() as u128 / 60, "{}", truepeer.log());

    bed.write("leave", "")?;
    ensure!(late.wait_end()?.success() && late.stdout() == "xxx", "{}; {}", late.log(), truepeer.log());
    ensure!(clients.curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx");
    // Many of the crowd are taken only now, by two workers, eight descriptors at a time.
    let has_gone = || count(&truepeer, "connections_refused").is_ok_and(|gone| gone == CROWD_LEN);
    truepeer.wait_state("the whole crowd to have gone", has_gone)?;
    let settled = pauses(&truepeer)?;
    ensure!(clients.curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx");
    ensure!(pauses(&truepeer)? == settled, "it still pauses");
    Ok(())
}

/// One descriptor is left, and the client's own connection takes it.
fn a_request_without_a_descriptor(
    bed: &Bed,
    clients: ClientVersion,
    version: OriginVersion,
) -> anyhow::Result<()> {
    let origin = origin_in(bed, 8080, version)?;
    let truepeer =
        https(bed, HERE, ORIGIN)?.args(&MINE).option("--origin-protocol", version.option()).start(bed)?;
    let status = || {
        let args = ["--output", "/dev/null", "--write-out", "%{http_code}", "https://127.0.0.1/3"];
        clients.curl(&args).run(bed)
    };
    truepeer.wait_for_log("listening on")?;
    allow_descriptors(&truepeer, 1)?;
    let said = status()?;
    ensure!(said == "503", "{said}; {}", truepeer.log());
    truepeer.wait_for_log("origin_no_resources")?;
    ensure!(!origin[0].stdout().contains("request"), "{}", origin[0].log());
    allow_descriptors(&truepeer, 100)?;
    let said = status()?;
    ensure!(said == "200", "{said}; {}", truepeer.log());
    Ok(())
}

/// As many as requested, each without a request, until the file `leave` exists.
const IDLE_CROWD: &str = r"
crowd = [connect() for _ in range(int(sys.argv[1]))]
print('here', flush=True)
while not os.path.exists('leave'): time.sleep(.01)
";

/// More than there are sessions, and then as many as there are descriptors.
fn idle_connections_give_way(
    bed: &Bed,
    clients: ClientVersion,
    version: OriginVersion,
) -> anyhow::Result<()> {
    const OPEN_FILES: usize = 160;
    let _origin = origin_in(bed, 8080, version)?;
    let truepeer = https_with_files(bed, OPEN_FILES, HERE, ORIGIN)?
        .args(&MINE)
        .option("--origin-keepalive", 0)
        .option("--origin-protocol", version.option())
        .start(bed)?;
    let crowd = clients.start(bed, IDLE_CROWD, &["100"])?;
    crowd.wait_for_log("here")?;
    for _ in 0..3 {
        ensure!(clients.curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx", "{}", truepeer.log());
    }
    let closed = count(&truepeer, "idle_connections_reclaimed")?;
    ensure!(closed >= 30, "{closed} were closed");
    ensure!(count(&truepeer, "accept_pauses")? <= 60, "{}", truepeer.log());
    truepeer.wait_for_log(
        "sessions or descriptors ran short: closed the connection that had been idle longest (",
    )?;
    let lines = truepeer.log().matches("ran short").count();
    ensure!(lines <= 2, "{}", truepeer.log());
    allow_descriptors(&truepeer, 1)?;
    // The client's own connection needs one, and the origin's another.
    ensure!(clients.curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx", "{}", truepeer.log());
    bed.write("leave", "")?;
    Ok(())
}

/// Opens TLS connections with PROXY headers for the given clients, and prints which of them are served.
const NAMED: &str = r"
import socket, ssl, sys
context = ssl._create_unverified_context()
kept = []
for client in sys.argv[1:]:
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    family, here = ('TCP6', '::1') if ':' in client else ('TCP4', '127.0.0.1')
    plain.sendall(f'PROXY {family} {client} {here} 5000 443\r\n'.encode() if client != '-' else b'PROXY UNKNOWN\r\n')
    try:
        stream = context.wrap_socket(plain, server_hostname='site')
        stream.sendall(b'GET /3 HTTP/1.1\r\nHost: site\r\n\r\n')
        answer = b''
        while not answer.endswith(b'xxx'):
            piece = stream.recv(4096)
            if not piece: raise EOFError
            answer += piece
        kept.append(stream)
        print('taken', end=' ')
    except (OSError, EOFError): print('refused', end=' ')
";

fn the_connections_of_one_client_are_limited(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let truepeer =
        https(bed, HERE, ORIGIN)?.args(&["--header", "require"]).option("--max-per-client", 2).start(bed)?;
    for (clients, outcome) in [
        // Another client is served nevertheless, and the load balancer's own address is not limited.
        (
            "203.0.113.7 203.0.113.7 203.0.113.7 203.0.113.8 - - -",
            "taken taken refused taken taken taken taken",
        ),
        // IPv6 is limited by network.
        ("2001:db8::1 2001:db8::2 2001:db8::3 2001:db8:0:1::1", "taken taken refused taken"),
        // Ended connections don't count.
        ("203.0.113.7 203.0.113.7 203.0.113.7", "taken taken refused"),
    ] {
        let said = Program::new("python3").args(["-c", NAMED]).args(clients.split(' ')).run(bed)?;
        ensure!(said.trim() == outcome, "{clients}: {said}; {}", truepeer.log());
    }
    truepeer.wait_for_log(
        "203.0.113.7 has 2 connections open, as many as one client may have; --max-per-client sets how many",
    )?;
    ensure!(truepeer.log().matches("--max-per-client").count() == 1, "said too often: {}", truepeer.log());
    report(&truepeer)?;
    truepeer.wait_for_log("too_many_of_client=3")
}

/// A debugger makes epoll fail in one of them.
fn a_worker_that_fails_ends_the_program_with_the_reason(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    ensure!(curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx");
    let failing = Program::new("python3")
        .args(["-c", include_str!("programs/fail_epoll.py")])
        .args([&truepeer.pid().to_string(), "tls-1"])
        .start(bed)?;
    let status = failing.wait_end()?;
    if status.code() == Some(77) {
        return skip("no process may trace another here (ptrace)");
    }
    ensure!(status.success(), "{}", failing.log());
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(1), "{status}: {}", truepeer.log());
    for line in
        ["a worker has ended because epoll_wait failed: Bad file descriptor", "a worker has ended by itself"]
    {
        ensure!(truepeer.log().contains(line), "{}", truepeer.log());
    }
    Ok(())
}
