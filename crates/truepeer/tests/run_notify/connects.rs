//! `truepeer connect` by notification: what a server receives, and the results that the program gets.

use std::io::Read;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, User, client, servers, sockets, tests};

use crate::kit::{CLIENT4, PYTHON, V4, V6, python, start, supervisor_and_program, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_blocking_connect_sends_a_header,
        a_non_blocking_connect_sends_a_header,
        a_header_is_sent_without_fast_open,
        programs_that_use_fast_open_send_a_header,
        connect_returns_the_same_as_without_truepeer,
        only_selected_destinations_get_a_header,
        a_blocking_connect_hears_signals,
        a_connect_that_is_interrupted_sends_its_header_first,
        a_connect_that_is_interrupted_sends_it_without_fast_open_too,
        unmodified_programs_send_headers,
    ];
    let mut all: Vec<Test> = all.into_iter().map(|test| test.needs_program(PYTHON)).collect();
    all.push(Test::new("a_go_client_sends_headers", a_go_client_sends_headers).needs_program("go"));
    all.into_iter().map(Test::needs_several_users).collect()
}

fn connecting(program: Program, options: &[&str]) -> Program {
    let launch = [&["connect", "--via", via()], options, &["--"]].concat();
    program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch)
}

fn script(bed: &Bed, text: &str, options: &[&str]) -> anyhow::Result<Program> {
    let file = bed.write("client.py", text)?;
    Ok(connecting(Program::new(PYTHON).arg("-u").arg(file).as_user(User::TESTER), options))
}

/// Sends `hello`, prints its own address, the answer, and the address of another process that it starts.
const BLOCKING: &str = "\
import os, socket
def talk():
    for address in (('127.0.0.1', 8080), ('::1', 8080)):
        connection = socket.create_connection(address)
        connection.sendall(b'hello')
        connection.shutdown(socket.SHUT_WR)
        back = b''
        while part := connection.recv(4096):
            back += part
        print(connection.getsockname()[1], back)
talk()
if os.fork() == 0:
    talk()
else:
    os.wait()
";

const NON_BLOCKING: &str = "\
import asyncio
async def main():
    for host in ('127.0.0.1', '::1'):
        reader, writer = await asyncio.open_connection(host, 8080)
        writer.write(b'hello')
        writer.write_eof()
        print(writer.get_extra_info('sockname')[1], await reader.read())
        writer.close()
asyncio.run(main())
";

/// An echo server, so that the program prints what was sent for it.
fn what_was_sent(bed: &Bed, text: &str, connections: usize) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[V4, V6])?;
    let said = script(bed, text, &["--header", "v1"])?.run(bed)?;
    ensure!(said.lines().count() == connections, "{said}");
    for (n, line) in said.lines().enumerate() {
        let (port, _) = line.split_once(' ').unwrap_or_default();
        let header = match n % 2 {
            0 => format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} 8080\\r\\nhello"),
            _ => format!("PROXY TCP6 ::1 ::1 {port} 8080\\r\\nhello"),
        };
        ensure!(line == format!("{port} b'{header}'"), "{line}");
    }
    let said = script(bed, text, &["--header", "v1", "--from", CLIENT4])?.run(bed)?;
    let header = "PROXY TCP4 203.0.113.7 127.0.0.1 5000 8080\\r\\nhello";
    ensure!(said.lines().next().is_some_and(|line| line.ends_with(&format!("b'{header}'"))), "{said}");
    Ok(())
}

fn a_blocking_connect_sends_a_header(bed: &Bed) -> anyhow::Result<()> {
    what_was_sent(bed, BLOCKING, 4)
}

fn a_non_blocking_connect_sends_a_header(bed: &Bed) -> anyhow::Result<()> {
    what_was_sent(bed, NON_BLOCKING, 2)
}

fn a_header_is_sent_without_fast_open(bed: &Bed) -> anyhow::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "0")?;
    what_was_sent(bed, NON_BLOCKING, 2)
}

/// With TCP_FASTOPEN_CONNECT, and with MSG_FASTOPEN, which is refused, so that the program connects as usual.
fn programs_that_use_fast_open_send_a_header(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import errno, socket
TCP_FASTOPEN_CONNECT = 30
def lazily(connection, to):
    connection.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
    connection.connect(to)
    connection.sendall(b'hello')
def at_once(send):
    def talk(connection, to):
        try:
            send(connection, to)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP, error
            connection.connect(to)
            connection.sendall(b'hello')
    return talk
sendto = at_once(lambda connection, to: connection.sendto(b'hello', socket.MSG_FASTOPEN, to))
sendmsg = at_once(lambda connection, to: connection.sendmsg([b'hello'], [], socket.MSG_FASTOPEN, to))
for talk in (lazily, sendto, sendmsg):
    for family, to in ((socket.AF_INET, ('127.0.0.1', 8080)), (socket.AF_INET6, ('::1', 8080))):
        connection = socket.socket(family)
        talk(connection, to)
        connection.shutdown(socket.SHUT_WR)
        back = b''
        while part := connection.recv(4096):
            back += part
        print(connection.getsockname()[1], back)
";
    what_was_sent(bed, text, 6)
}

fn connect_returns_the_same_as_without_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import ctypes, os, select, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def say(what, answer):
    print(what, 'ok' if answer >= 0 else 'errno %d' % ctypes.get_errno())
def inet(port):
    return struct.pack('=H', socket.AF_INET) + struct.pack('!H', port) + socket.inet_aton('127.0.0.1') + bytes(8)
kept = []
def tcp(blocking=True):
    s = socket.socket()
    s.setblocking(blocking)
    kept.append(s)
    return s
s = tcp()
say('nobody listens', libc.connect(s.fileno(), inet(9), 16))
say('somebody does', libc.connect(s.fileno(), inet(8080), 16))
say('again', libc.connect(s.fileno(), inet(8080), 16))
say('no descriptor', libc.connect(999, inet(8080), 16))
say('not a socket', libc.connect(1, inet(8080), 16))
say('too short', libc.connect(tcp().fileno(), inet(8080), 8))
say('a wrong address', libc.connect(tcp().fileno(), ctypes.c_void_p(8), 16))
say('another family', libc.connect(tcp().fileno(), struct.pack('=H', socket.AF_UNIX) + bytes(14), 16))
say('a network nobody knows', libc.connect(tcp().fileno(), inet(80)[:4] + socket.inet_aton('192.0.2.1') + bytes(8), 16))
s = tcp(False)
say('without waiting', libc.connect(s.fileno(), inet(8080), 16))
select.select([], [s], [])
print(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
s = tcp(False)
say('without waiting, nobody listens', libc.connect(s.fileno(), inet(9), 16))
select.select([], [s], [])
print(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
say('datagrams', libc.connect(datagrams.fileno(), inet(9), 16))
print(datagrams.getpeername())
";
    let _echo = Behaviour::Echo.start(bed, &[V4])?;
    let file = bed.write("calls.py", text)?;
    let program = || Program::new(PYTHON).arg("-u").arg(&file).as_user(User::TESTER);
    let (without, with) = (program().run(bed)?, connecting(program(), &["--from", CLIENT4]).run(bed)?);
    ensure!(without.lines().count() == 15, "{without}");
    ensure!(without == with, "without us:\n{without}with us:\n{with}");
    let text = "\
import errno, socket
try:
    socket.socket().sendto(b'hello', 0x20000000, ('127.0.0.1', 8080))
except OSError as error:
    print(error.errno == errno.EOPNOTSUPP)
";
    let said = script(bed, text, &[])?.run(bed)?;
    ensure!(said.trim() == "True", "{said}");
    Ok(())
}

fn only_selected_destinations_get_a_header(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[V4, V6])?;
    let said = script(bed, BLOCKING, &["--header", "v1", "--to", "127.0.0.0/8:8080"])?.run(bed)?;
    let lines: Vec<&str> = said.lines().collect();
    ensure!(lines.len() == 4, "{said}");
    ensure!(lines[0].contains("PROXY TCP4") && lines[1].ends_with(" b'hello'"), "{said}");
    ensure!(!script(bed, BLOCKING, &["--to", "127.0.0.0/8:9"])?.run(bed)?.contains("QUIT"));
    Ok(())
}

/// A listener with a full queue answers no SYN.
fn a_blocking_connect_hears_signals(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import signal, socket
signal.signal(signal.SIGUSR1, lambda *_: print('handled'))
listener = socket.socket()
listener.bind(('127.0.0.1', 8080))
listener.listen(0)
held = []
while True:
    print('connecting')
    connection = socket.socket()
    connection.connect(('127.0.0.1', 8080))
    held.append(connection)
";
    let running = start(bed, &script(bed, text, &[])?, &[V4])?;
    running.wait_for_log("connecting\nconnecting")?;
    running.signal(Signal::USR1)?;
    running.wait_for_log("handled")?;
    // Python checks for signals and then waits: a signal in between is noticed with the next one.
    running.wait_state("its end by SIGINT", || {
        let _ = running.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(300));
        !running.is_alive()
    })?;
    running.wait_end()?;
    ensure!(running.log().contains("KeyboardInterrupt"), "{}", running.log());
    Ok(())
}

/// Continues after EINTR, as POSIX specifies: the connection is still being established.
const INTERRUPTED: &str = "\
import signal, socket
signal.signal(signal.SIGUSR1, lambda *_: print('handled'))
connection = socket.socket()
connection.connect(('127.0.0.1', 8080))
connection.sendall(b'hello')
";

fn a_connect_that_is_interrupted_sends_its_header_first(bed: &Bed) -> anyhow::Result<()> {
    interrupted(bed, true)
}

fn a_connect_that_is_interrupted_sends_it_without_fast_open_too(bed: &Bed) -> anyhow::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "0")?;
    // The signal must wait, or Python must not get it before there is a connection.
    interrupted(bed, false)
}

/// The listener's queue is full until the program has received its signal.
fn interrupted(bed: &Bed, hears_it_at_once: bool) -> anyhow::Result<()> {
    let listener = TcpListener::bind(V4)?;
    rustix::net::listen(&listener, 0)?;
    let filler = client::connect(V4)?;
    let running = script(bed, INTERRUPTED, &["--from", CLIENT4, "--header", "v1"])?.start(bed)?;
    running.wait_state("a connection that is not there yet", || {
        const SYN_SENT: u8 = 2;
        sockets::all().iter().any(|socket| socket.state == SYN_SENT)
    })?;
    running.signal(Signal::USR1)?;
    if hears_it_at_once {
        running.wait_for_log("handled")?;
    }
    // The first bytes must not depend on timing.
    let supervisor = match (hears_it_at_once, via()) {
        (true, "notify") => Some(stop_the_supervisor(bed, &running)?),
        _ => None,
    };
    let (_, first) = listener.accept()?;
    ensure!(first == filler.local_addr()?, "{first}");
    let (mut connection, _) = listener.accept()?;
    connection.set_read_timeout(Some(Duration::from_secs(60)))?;
    let expected = b"PROXY TCP4 203.0.113.7 127.0.0.1 5000 8080\r\nhello";
    let mut heard = [0; 49];
    connection.read_exact(&mut heard)?;
    ensure!(&heard == expected, "{:?}", heard.escape_ascii().to_string());
    if let Some(supervisor) = supervisor {
        kill_process(supervisor, Signal::CONT)?;
    }
    ensure!(connection.read(&mut heard)? == 0, "more was sent");
    running.wait_end()?;
    ensure!(running.log().contains("handled"), "{}", running.log());
    Ok(())
}

fn stop_the_supervisor(bed: &Bed, running: &Running) -> anyhow::Result<Pid> {
    let [supervisor, _] = supervisor_and_program(running);
    let pid = Pid::from_raw(supervisor).context("a process")?;
    kill_process(pid, Signal::STOP)?;
    bed.wait_for("the supervisor to stop", || {
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).unwrap_or_default();
        status.contains("T (stopped)")
    })?;
    Ok(pid)
}

/// Both ends by notification: the client claimed here is seen there.
fn unmodified_programs_send_headers(bed: &Bed) -> anyhow::Result<()> {
    let server = "\
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(('%s %d\\n' % self.client_address[:2]).encode())
http.server.ThreadingHTTPServer(('127.0.0.1', 8080), Answer).serve_forever()
";
    let _server = start(bed, &python(bed, server, &[])?, &[V4])?;
    for version in ["v1", "v2"] {
        let options = ["--from", CLIENT4, "--header", version];
        let saw = connecting(servers::curl("http://127.0.0.1:8080/"), &options).run(bed)?;
        ensure!(saw.trim() == "203.0.113.7 5000", "curl: {saw:?}");
        let saw = connecting(servers::nc("127.0.0.1", 8080, b"GET / HTTP/1.0\r\n\r\n"), &options).run(bed)?;
        ensure!(saw.ends_with("203.0.113.7 5000\n"), "nc: {saw:?}");
    }
    Ok(())
}

fn a_go_client_sends_headers(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
package main

import (
\t\"fmt\"
\t\"io\"
\t\"net\"
)

func main() {
\tfor range 20 {
\t\tconn, err := net.Dial(\"tcp\", \"127.0.0.1:8080\")
\t\tif err != nil {
\t\t\tpanic(err)
\t\t}
\t\tfmt.Fprint(conn, \"hello\")
\t\tconn.(*net.TCPConn).CloseWrite()
\t\tback, _ := io.ReadAll(conn)
\t\tfmt.Printf(\"%q\\n\", back)
\t}
}
";
    let program = truepeer_testbed::go::build(bed, "client", source)?;
    let _echo = Behaviour::Echo.start(bed, &[V4])?;
    let program = Program::new(program).as_user(User::TESTER);
    let said = connecting(program, &["--from", CLIENT4, "--header", "v1"]).run(bed)?;
    let expected = "\"PROXY TCP4 203.0.113.7 127.0.0.1 5000 8080\\r\\nhello\"";
    ensure!(said.lines().count() == 20 && said.lines().all(|line| line == expected), "{said}");
    Ok(())
}
