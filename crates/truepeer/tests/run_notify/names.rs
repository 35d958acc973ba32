//! Names of connections that are made, passed on or kept in unusual ways.

use std::io::Write;

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Running, Test, User, client, tests};

use crate::kit::{CLIENT4, PYTHON, Talk, V4, header_of, python, start, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_connection_keeps_its_name_in_every_process,
        a_header_that_comes_with_the_syn_is_taken_off,
        a_listener_bound_to_a_device_forgets_no_client,
        a_listener_of_another_network_is_served_with_a_warning,
        without_netlink_recent_clients_are_not_forgotten,
        a_multipath_sender_is_served,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// By dup(), to a forked child, and through a socket (SCM_RIGHTS).
fn a_connection_keeps_its_name_in_every_process(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import itertools, os, socket
listener = socket.create_server(('127.0.0.1', 8080))
near, far = socket.socketpair()
def answer(connection):
    while connection.recv(4096):
        pass
    connection.sendall(('%s %d\\n' % connection.getpeername()).encode())
    connection.close()
if os.fork() == 0:
    listener.close()
    while True:
        _, fds, _, _ = socket.recv_fds(far, 1, 1)
        answer(socket.socket(fileno=fds[0]))
for n in itertools.count():
    connection, peer = listener.accept()
    if n % 3 == 0:
        answer(connection.dup())
    elif n % 3 == 1 and os.fork() == 0:
        answer(connection)
        os._exit(0)
    elif n % 3 == 2:
        socket.send_fds(near, [b'x'], [connection.fileno()])
    connection.close()
";
    let _running = start(bed, &python(bed, script, &[])?, &[V4])?;
    let header = header_of(CLIENT4)?;
    for n in 0..9 {
        let saw = Talk::Plain.ask(V4, &[&header, b"x"])?;
        ensure!(saw.to_string() == CLIENT4, "connection {n}: {saw}");
    }
    Ok(())
}

/// TCP fast open: the connection's data arrives with its SYN.
fn a_header_that_comes_with_the_syn_is_taken_off(bed: &Bed) -> anyhow::Result<()> {
    // For clients and all listeners, without a cookie.
    std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "1543")?;
    let server = "\
import socket
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(('%s %d\\n' % connection.getpeername()).encode())
    connection.close()
";
    let client = "\
import socket, sys
def passive():
    lines = [line.split() for line in open('/proc/self/net/netstat') if line.startswith('TcpExt')]
    return int(dict(zip(*lines))['TCPFastOpenPassive'])
header = bytes.fromhex(sys.argv[1])
before = passive()
for cut in (len(header), 20):
    s = socket.socket()
    s.sendto(header[:cut], socket.MSG_FASTOPEN, ('127.0.0.1', 8080))
    s.sendall(header[cut:] + b'x')
    s.shutdown(socket.SHUT_WR)
    print(s.recv(100).decode().strip())
print(passive() - before)
";
    let _running = start(bed, &python(bed, server, &[])?, &[V4])?;
    let header: String = header_of(CLIENT4)?.iter().map(|byte| format!("{byte:02x}")).collect();
    let client = Program::new(PYTHON).arg(bed.write("client.py", client)?).arg(header);
    let said = client.run(bed)?;
    ensure!(said == "203.0.113.7 5000\n203.0.113.7 5000\n2\n", "{said}");
    Ok(())
}

/// Keeps the first connections, and compares their names at the end with those at the start.
const KEEPING: &str = "\
import socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
BIND
listener.bind(('127.0.0.1', 8080))
listener.listen(100)
kept = []
while True:
    connection, peer = listener.accept()
    if len(kept) < 50:
        kept.append((connection, peer))
    elif connection.recv(4096) == b'end':
        break
    else:
        connection.close()
wrong = [(peer, c.getpeername()) for c, peer in kept if c.getpeername() != peer or peer[0] != '203.0.113.7']
print('wrong:', len(wrong), wrong[:3])
";

/// More connections than the table of names has slots at first.
fn keeps_its_first_clients(bed: &Bed, program: &Program) -> anyhow::Result<Running> {
    let running = start(bed, program, &[V4])?;
    let header = header_of(CLIENT4)?;
    let mut kept = Vec::new();
    for n in 0..2500 {
        let mut stream = client::connect(V4)?;
        let last = if n == 2499 { b"end" } else { b"one" };
        stream.write_all(&[header.as_slice(), last].concat())?;
        if n < 50 {
            kept.push(stream);
        } else {
            client::read_end(&mut stream)?;
        }
    }
    running.wait_for_log("wrong: ")?;
    ensure!(running.stdout().contains("wrong: 0 "), "{}", running.log());
    Ok(running)
}

fn a_listener_bound_to_a_device_forgets_no_client(bed: &Bed) -> anyhow::Result<()> {
    let bind = "listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')";
    let running = keeps_its_first_clients(bed, &python(bed, &KEEPING.replace("BIND", bind), &[])?)?;
    ensure!(!running.log().contains("still open"), "{}", running.log());
    Ok(())
}

/// As with systemd's RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX: netlink sockets are refused.
fn without_netlink_recent_clients_are_not_forgotten(bed: &Bed) -> anyhow::Result<()> {
    let restrict = "\
import ctypes, os, platform, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
number = {'x86_64': 41, 'aarch64': 198}[platform.machine()]
ALLOW, REFUSE = 0x7fff0000, 0x00050000 | 97 # EAFNOSUPPORT
AF_NETLINK = 16
filter = b''.join(struct.pack('=HBBI', *line) for line in [
    (0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, AF_NETLINK), (6, 0, 0, REFUSE), (6, 0, 0, ALLOW)])
held = ctypes.create_string_buffer(filter)
program = ctypes.create_string_buffer(struct.pack('@HP', 6, ctypes.addressof(held)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
";
    let restrict = bed.write("restrict.py", restrict)?;
    let serve = bed.write("keeping.py", KEEPING.replace("BIND", ""))?;
    let program =
        Program::new(PYTHON).arg(restrict).arg(env!("CARGO_BIN_EXE_truepeer")).as_user(User::TESTER);
    let program = program.args(["run", "--via", via(), "--", PYTHON, "-u"]).arg(serve);
    let running = keeps_its_first_clients(bed, &program)?;
    ensure!(running.log().contains("permit AF_NETLINK"), "{}", running.log());
    Ok(())
}

/// Inherited from outside: nothing here can connect to it to announce late connections.
fn a_listener_of_another_network_is_served_with_a_warning(bed: &Bed) -> anyhow::Result<()> {
    let outside = "\
import ctypes, os, socket, sys
listener = socket.create_server(('127.0.0.1', 8080))
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
CLONE_NEWNET = 0x40000000
assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
os.execv(sys.argv[1], sys.argv[1:])
";
    let serve = "\
import socket
listener = socket.socket(fileno=3)
print('ready')
while True:
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(b'%s %d' % (peer[0].encode(), peer[1]))
    connection.close()
";
    let (outside, serve) = (bed.write("outside.py", outside)?, bed.write("serve.py", serve)?);
    let program = Program::new(PYTHON).arg(outside).arg(env!("CARGO_BIN_EXE_truepeer"));
    let running = program.args(["run", "--via", via(), "--", PYTHON, "-u"]).arg(serve).start(bed)?;
    running.wait_for_log("ready")?;
    let saw = Talk::Plain.ask(V4, &[&[header_of(CLIENT4)?.as_slice(), b"x"].concat()])?;
    ensure!(saw.to_string() == CLIENT4, "{saw}");
    running.wait_for_log("another network namespace")
}

/// A sender with Multipath TCP, whose connection has two paths.
fn a_multipath_sender_is_served(bed: &Bed) -> anyhow::Result<()> {
    if std::fs::read_to_string("/proc/sys/net/mptcp/enabled").is_ok_and(|text| text.trim() == "1") {
        for command in ["limits set subflow 2 add_addr_accepted 2", "endpoint add 127.0.0.2 dev lo subflow"] {
            Program::new("ip").arg("mptcp").args(command.split(' ')).run(bed)?;
        }
    } else {
        return truepeer_testbed::skip("this kernel has no MPTCP (net.mptcp.enabled)");
    }
    let server = "\
import hashlib, socket
MPTCP = 262
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', 8080))
listener.listen()
while True:
    connection, peer = listener.accept()
    assert connection.getpeername() == peer
    protocol = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL)
    body = hashlib.sha256()
    while data := connection.recv(65536):
        body.update(data)
    connection.sendall(('%s %d protocol %d body %s' % (*peer, protocol, body.hexdigest())).encode())
    connection.close()
";
    let server = server.replace("socket.SO_PROTOCOL", "38");
    let _running = start(bed, &python(bed, &server, &[])?, &[V4])?;
    // Between the pieces it waits for their acknowledgement; before the body, for the second path.
    let sender = "\
import fcntl, hashlib, socket, struct, sys, termios, time
MPTCP, SOL_MPTCP, MPTCP_INFO = 262, 284, 1
def wait(what, holds):
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.005)
socket.setdefaulttimeout(30)
sender = socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP)
sender.connect(('127.0.0.1', 8080))
assert sender.getsockopt(socket.SOL_SOCKET, 38) == MPTCP
for piece in sys.argv[1:]:
    sender.sendall(bytes.fromhex(piece))
    wait('sent', lambda: fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)) == bytes(4))
wait('a second path', lambda: sender.getsockopt(SOL_MPTCP, MPTCP_INFO, 64)[0] > 0)
body = bytes(range(256)) * 8192
sender.sendall(body)
sender.shutdown(socket.SHUT_WR)
answer = b''
while data := sender.recv(4096):
    answer += data
name, digest = answer.decode().rsplit(' body ', 1)
assert digest == hashlib.sha256(body).hexdigest(), answer
print(name)
";
    let sender = bed.write("sender.py", sender)?;
    for header in [client::v1(CLIENT4, "192.0.2.1:443")?, client::v2(CLIENT4, "192.0.2.1:443")?] {
        for cut in [header.len(), 7] {
            let (first, second) = header.split_at(cut);
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let pieces = [first, second].into_iter().filter(|piece| !piece.is_empty()).map(hex);
            let said = Program::new(PYTHON).arg(&sender).args(pieces).run(bed)?;
            ensure!(said.trim() == "203.0.113.7 5000 protocol 262", "cut at {cut}: {said}");
        }
    }
    Ok(())
}
