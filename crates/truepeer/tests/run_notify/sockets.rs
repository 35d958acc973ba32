//! The results of calls, including error numbers.

use std::io::Write;

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Test, User, client, tests};

use crate::kit::{CLIENT4, CLIENT6, PYTHON, Talk, V4, V6, header_of, python, start, under, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        calls_return_the_same_as_without_truepeer,
        io_uring_is_refused,
        other_listeners_are_left_alone,
        one_address_of_a_listener_on_all_is_meant,
        every_rule_for_senders_and_headers_is_kept,
        the_headers_destination_is_shown_if_asked_for,
        an_ipv6_client_keeps_the_senders_address_on_an_ipv4_socket,
        data_before_a_reset_comes_with_the_clients_name,
        a_program_without_descriptors_gets_the_connection_later,
        passed_listeners_are_served,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// Every kind of invalid call, and some valid ones, by a program that prints the results.
fn calls_return_the_same_as_without_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def say(what, answer, *more):
    print(what, 'ok' if answer >= 0 else 'errno %d' % ctypes.get_errno(), *more)
    if answer > 2:
        os.close(answer)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
plain = socket.socket()
listener.bind(('127.0.0.1', 8080))
listener.listen(5)
listener.setblocking(False)
number = listener.fileno()
room = lambda n: ctypes.byref(ctypes.c_int(n))
address = ctypes.create_string_buffer(64)
say('nothing there', libc.accept(number, None, None))
say('no descriptor', libc.accept(999, None, None))
say('not a socket', libc.accept(1, None, None))
say('not listening', libc.accept(plain.fileno(), None, None))
say('wrong flags', libc.accept4(number, None, None, 1))
say('not connected', libc.getpeername(plain.fileno(), address, room(64)))
say('getpeername of no descriptor', libc.getpeername(999, address, room(64)))
say('getpeername of a listener', libc.getpeername(number, address, room(64)))
say('listen on a connected one', libc.listen(999, 5))
def connection():
    sender = socket.create_connection(('127.0.0.1', 8080))
    sender.sendall(b'no header')
    return sender
import select
def ready():
    select.select([listener], [], [])
def wants(what, address, length, flags=0):
    sender = connection()
    ready()
    answer = libc.accept4(number, address, length, flags)
    text = ()
    if answer >= 0:
        import fcntl
        text = (fcntl.fcntl(answer, fcntl.F_GETFL) & os.O_NONBLOCK, fcntl.fcntl(answer, fcntl.F_GETFD))
    say(what, answer, *text)
    sender.close()
wants('no address wanted', None, None)
wants('nor with a length', None, room(16))
for size in (16, 28, 4, 1, 0):
    length = ctypes.c_int(size)
    ctypes.memset(address, 0xAA, 64)
    wants('room for %d' % size, address, ctypes.byref(length))
    print(length.value, address.raw[:2].hex(), address.raw[4:8].hex(), address.raw[8:20].hex())
wants('negative room', address, room(-1))
wants('an address without a length', address, None)
wants('a wrong address', ctypes.c_void_p(8), room(16))
wants('a wrong address, no room', ctypes.c_void_p(8), room(0))
wants('a wrong length', address, ctypes.c_void_p(8))
for flags in (0, os.O_NONBLOCK, os.O_CLOEXEC, os.O_NONBLOCK | os.O_CLOEXEC):
    wants('flags %x' % flags, None, None, flags)
sender = connection()
ready()
accepted, _ = listener.accept()
for size in (16, 28, 4, 0, -1):
    length = ctypes.c_int(size)
    ctypes.memset(address, 0xAA, 64)
    say('getpeername, room for %d' % size, libc.getpeername(accepted.fileno(), address, ctypes.byref(length)))
    print(length.value, address.raw[:2].hex(), address.raw[4:8].hex())
say('getpeername, wrong address', libc.getpeername(accepted.fileno(), ctypes.c_void_p(8), room(16)))
say('getpeername, no length', libc.getpeername(accepted.fileno(), address, None))
listener.setblocking(True)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack('ll', 0, 300000))
say('a blocking accept with a time limit', libc.accept(number, None, None))
";
    let file = bed.write("calls.py", script)?;
    let program = || Program::new(PYTHON).arg("-u").arg(&file).as_user(User::TESTER);
    let without = program().run(bed)?;
    // No header is required, so that the connections are the same.
    let with = under(program(), &["--header", "optional"]).run(bed)?;
    ensure!(without.lines().count() > 35, "{without}");
    for (without, with) in without.lines().zip(with.lines()) {
        ensure!(without == with, "without us {without:?}, with us {with:?}");
    }
    ensure!(without.lines().count() == with.lines().count(), "{with}");
    Ok(())
}

/// Programs fall back to epoll where io_uring is missing.
fn io_uring_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 8, ctypes.create_string_buffer(256)), ctypes.get_errno())
";
    let said = python(bed, script, &[])?.run(bed)?;
    ensure!(said.trim() == "-1 38", "{said:?}");
    Ok(())
}

/// A server on each listener that answers with the client's address.
const TWO_LISTENERS: &str = "\
import socket, threading
def serve(listener):
    while True:
        connection, peer = listener.accept()
        data = b''
        while part := connection.recv(4096):
            data += part
        connection.sendall(data + b'\\n%s %d\\n' % (peer[0].encode(), peer[1]))
        connection.close()
for port in (8080, 8081):
    threading.Thread(target=serve, args=(socket.create_server(('127.0.0.1', port)),)).start()
";

fn other_listeners_are_left_alone(bed: &Bed) -> anyhow::Result<()> {
    for option in [["--port", "8080"], ["--listen", V4]] {
        let program = python(bed, TWO_LISTENERS, &option)?;
        let running = start(bed, &program, &[V4, "127.0.0.1:8081"])?;
        let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?, b"x"])?;
        ensure!(saw.to_string() == CLIENT4, "{saw}");
        let mut stream = client::connect_from("127.0.0.9:0", "127.0.0.1:8081")?;
        let line = client::v1(CLIENT4, "192.0.2.1:443")?;
        let answer = client::ask(&mut stream, &line)?;
        ensure!(answer.starts_with("PROXY TCP4") && answer.contains("\n127.0.0.9 "), "{answer:?}");
        running.stop()?;
    }
    Ok(())
}

/// `--listen` with one of the addresses of a listener on all of them.
fn one_address_of_a_listener_on_all_is_meant(bed: &Bed) -> anyhow::Result<()> {
    let script = TWO_LISTENERS.replace("127.0.0.1", "0.0.0.0");
    let _running = start(bed, &python(bed, &script, &["--listen", V4])?, &["0.0.0.0:8080", "0.0.0.0:8081"])?;
    let line = client::v1(CLIENT4, "192.0.2.1:443")?;
    for (to, taken) in [(V4, true), ("127.0.0.2:8080", false), ("127.0.0.1:8081", false)] {
        for pieces in [vec![line.as_slice()], vec![&line[..20], &line[20..]]] {
            let mut stream = client::connect(to)?;
            for piece in &pieces {
                stream.write_all(piece)?;
                truepeer_testbed::sockets::wait_until_sent(&stream)?;
            }
            let answer = client::ask(&mut stream, b"x")?;
            let expected = if taken { "x\n203.0.113.7 5000\n" } else { "PROXY TCP4 203.0.113.7 " };
            ensure!(answer.starts_with(expected), "{to}: {answer:?}");
        }
    }
    Ok(())
}

/// Versions, length, denied clients, claims, and senders with their own rules.
fn every_rule_for_senders_and_headers_is_kept(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import socket
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    try:
        while connection.recv(4096):
            pass
        connection.sendall(('%s %d' % peer).encode())
    except OSError:
        pass
    connection.close()
";
    let denied = bed.write("denied", "198.51.100.0/24 # a bad network\n")?.display().to_string();
    let rules = "--versions 2 --header-max 1KiB --allow 127.0.0.0/28 --header 127.0.0.9=forbid --header 127.0.0.10=optional";
    let mut options: Vec<&str> = rules.split(' ').collect();
    options.extend(["--deny-clients", &denied]);
    let running = start(bed, &python(bed, script, &options)?, &[V4])?;
    let saw = |from: &str, bytes: &[u8]| -> String {
        let asked = client::connect_from(format!("{from}:0"), V4);
        let answer = asked.and_then(|mut stream| client::ask(&mut stream, &[bytes, b"data"].concat()));
        answer.ok().and_then(|answer| answer.split(' ').next().map(str::to_owned)).unwrap_or_default()
    };
    let (to, plain) = ("192.0.2.1:443", b"".as_slice());
    let (v1, v2) = (client::v1(CLIENT4, to)?, client::v2(CLIENT4, to)?);
    let long = client::v2_with_tlvs(CLIENT4, to, &[(4, &[0; 1024])])?;
    let (bad, loopback) = (client::v2("198.51.100.9:5000", to)?, client::v2("127.0.0.2:5000", to)?);
    for (from, bytes, expected) in [
        ("127.0.0.1", v2.as_slice(), "203.0.113.7"),
        ("127.0.0.1", &v1, ""),
        ("127.0.0.1", &long, ""),
        ("127.0.0.1", &bad, ""),
        ("127.0.0.1", &loopback, ""),
        ("127.0.0.1", plain, ""),
        ("127.0.0.9", plain, "127.0.0.9"),
        ("127.0.0.9", &v2, "127.0.0.9"),
        ("127.0.0.10", plain, "127.0.0.10"),
        ("127.0.0.10", &v2, "203.0.113.7"),
        ("127.0.0.20", &v2, ""),
    ] {
        let saw = saw(from, bytes);
        ensure!(saw == expected, "{} bytes from {from}: {saw:?}, not {expected:?}", bytes.len());
    }
    running.wait_for_log("127.0.0.20")
}

fn the_headers_destination_is_shown_if_asked_for(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import socket
listener = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True)
assert listener.getsockname()[1] == 8080
while True:
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(('%s %d\\n' % connection.getsockname()[:2]).encode())
    connection.close()
";
    for (options, v4, v6) in [
        (["--destination", "header"], "192.0.2.1:443", "[2001:db8::1]:443"),
        (["--destination", "socket"], V4, V4),
    ] {
        let running = start(bed, &python(bed, script, &options)?, &[V4])?;
        for (named, expected) in [(CLIENT4, v4), (CLIENT6, v6)] {
            let saw = Talk::Plain.ask(V4, &[&header_of(named)?, b"x"])?;
            ensure!(saw.to_string() == expected, "{options:?}: {saw}");
        }
        running.stop()?;
    }
    Ok(())
}

fn an_ipv6_client_keeps_the_senders_address_on_an_ipv4_socket(bed: &Bed) -> anyhow::Result<()> {
    let running = start(bed, &python(bed, TWO_LISTENERS, &[])?, &[V4])?;
    let mut stream = client::connect_from("127.0.0.9:4000", V4)?;
    let answer = client::ask(&mut stream, &[header_of(CLIENT6)?, b"data".to_vec()].concat())?;
    ensure!(answer == "data\n127.0.0.9 4000\n", "{answer:?}");
    running.wait_for_log("can't show an IPv6 client")
}

/// getpeername fails on such a connection; accept() does not.
fn data_before_a_reset_comes_with_the_clients_name(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import socket, sys
listener = socket.create_server(('127.0.0.1', 8080))
print('ready')
sys.stdin.read()
connection, peer = listener.accept()
print(peer[0], peer[1], connection.recv(5))
";
    let file = bed.write("script.py", script)?;
    let (here, there) = std::os::unix::net::UnixStream::pair()?;
    let program = Program::new(PYTHON).arg("-u").arg(file).stdin(there);
    let running = start(bed, &under(program, &[]), &[V4])?;
    running.wait_for_log("ready")?;
    let mut stream = client::connect(V4)?;
    stream.write_all(&[header_of(CLIENT4)?, b"hello".to_vec()].concat())?;
    client::reset(stream)?;
    drop(here); // now it accepts
    running.wait_for_log("203.0.113.7 5000 b'hello'")
}

/// EMFILE goes to the program, however often. The connection waits in its queue, as without truepeer.
fn a_program_without_descriptors_gets_the_connection_later(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import os, resource, socket, time
listener = socket.create_server(('127.0.0.1', 8080))
held = []
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        held.append(os.dup(1))
except OSError:
    pass
print('full')
failed = 0
while True:
    try:
        connection, peer = listener.accept()
        break
    except OSError as error:
        failed += 1
        if failed == 500:
            print('errno', error.errno)
            os.close(held.pop())
while connection.recv(4096):
    pass
connection.sendall(('%s %d\\n' % peer[:2]).encode())
";
    let running = start(bed, &python(bed, script, &[])?, &[V4])?;
    running.wait_for_log("full")?;
    let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
    ensure!(saw.to_string() == CLIENT4, "{saw}");
    ensure!(running.log().contains("errno 24"), "{}", running.log());
    Ok(())
}

/// As a service manager passes them: descriptor 3, and the id of the process that they are for.
fn passed_listeners_are_served(bed: &Bed) -> anyhow::Result<()> {
    let server = "\
import asyncio, os, socket
assert os.environ['LISTEN_PID'] == str(os.getpid()), (os.environ['LISTEN_PID'], os.getpid())
async def answer(reader, writer):
    await reader.read()
    writer.write(('%s %d\\n' % writer.get_extra_info('peername')[:2]).encode())
    writer.close()
async def main():
    server = await asyncio.start_server(answer, sock=socket.socket(fileno=3))
    print('serving')
    await server.serve_forever()
asyncio.run(main())
";
    let manager = "\
import os, socket, sys
listener = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True, backlog=5)
listener.setblocking(False)
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ['LISTEN_FDS'] = '1'
os.environ['LISTEN_PID'] = str(os.getpid())
os.execv(sys.argv[1], sys.argv[1:])
";
    let (server, manager) = (bed.write("server.py", server)?, bed.write("manager.py", manager)?);
    let truepeer = [env!("CARGO_BIN_EXE_truepeer"), "run", "--via", via(), "--", PYTHON, "-u"];
    let program = Program::new(PYTHON).arg(manager).args(truepeer).arg(server);
    let running = program.start(bed)?;
    running.wait_for_log("serving")?;
    crate::kit::every_form_names_the_client(&[V4, V6], &[CLIENT4, CLIENT6], Talk::Plain)
}
