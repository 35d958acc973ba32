//! Headers that come when the connection was served without one (`--header optional`): AWS NLB's default
//! where the server speaks first. They are never data.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Program, Running, Test, client, tests};

use crate::kit::{CLIENT4, PYTHON, V4, destination_for, python, start, under};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_header_after_the_wait_is_refused_by_name,
        bytes_after_the_wait_that_are_no_header_are_data,
        a_header_after_the_wait_does_not_reach_a_child_of_the_program,
        a_silent_client_of_a_program_with_its_own_filter_is_named_in_the_log,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

const HASTY: [&str; 4] = ["--header", "optional", "--header-wait", "100ms"];

/// It speaks first and returns what it reads: by a thread or a process for each connection, or by epoll.
const SERVER: &str = "\
import os, select, signal, socket, sys, threading
way, address, port = sys.argv[1:]
family = socket.AF_INET6 if ':' in address else socket.AF_INET
listener = socket.create_server((address, int(port)), family=family, backlog=4096,
                                dualstack_ipv6=family == socket.AF_INET6)
def talk(connection):
    try:
        while part := connection.recv(4096):
            connection.sendall(part)
    except OSError:
        pass
    connection.close()
if way == 'fork':
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while way != 'epoll':
    connection, _ = listener.accept()
    connection.sendall(b'hello\\n')
    if way == 'threads':
        threading.Thread(target=talk, args=[connection], daemon=True).start()
    elif os.fork() == 0:
        listener.close()
        talk(connection)
        os._exit(0)
    else:
        connection.close()
listener.setblocking(False)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
connections = {}
def read(connection):
    try:
        while part := connection.recv(4096):
            connection.sendall(part)
    except BlockingIOError:
        return
    except OSError:
        pass
    del connections[connection.fileno()]
    connection.close()
while True:
    for number, _ in epoll.poll():
        if number != listener.fileno():
            read(connections[number])
            continue
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        connection.sendall(b'hello\\n')
        connection.setblocking(False)
        connections[connection.fileno()] = connection
        epoll.register(connection, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
";

/// A server, and the addresses at which it is reached.
struct Server {
    running: Running,
    addresses: Vec<String>,
}

/// Run as root: newer kernels demand CAP_NET_ADMIN for a filter on a TCP socket.
fn servers(bed: &Bed, ways: &[&str]) -> Result<Vec<Server>> {
    let mut port = 8080;
    let mut servers = Vec::new();
    for way in ways {
        for (listens, reached) in [("127.0.0.1", &["127.0.0.1"][..]), ("::", &["127.0.0.1", "[::1]"][..])] {
            port += 1;
            let script = bed.write(&bed.fresh_name("server.py"), SERVER)?;
            let python = Program::new(PYTHON).arg("-u").arg(script).args([*way, listens, &port.to_string()]);
            let addresses: Vec<String> = reached.iter().map(|ip| format!("{ip}:{port}")).collect();
            let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
            servers.push(Server { running: start(bed, &under(python, &HASTY), &all)?, addresses });
        }
    }
    Ok(servers)
}

/// Connections on which the server has spoken first.
fn greeted<T: Clone>(servers: &[Server], cases: &[T]) -> Result<Vec<(TcpStream, T)>> {
    let mut streams = Vec::new();
    for address in servers.iter().flat_map(|server| &server.addresses) {
        for case in cases {
            streams.push((client::connect(address)?, case.clone()));
        }
    }
    for (stream, _) in &streams {
        stream.set_nodelay(true)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        ensure!(line == "hello\n", "{line:?}");
    }
    Ok(streams)
}

fn headers_in_two() -> Result<Vec<(Vec<u8>, usize)>> {
    let destination = destination_for(CLIENT4);
    let headers = [client::v1(CLIENT4, destination)?, client::v2(CLIENT4, destination)?];
    let cuts = |header: Vec<u8>| [0, 1, 5, 11, header.len() - 1].map(|cut| (header.clone(), cut));
    Ok(headers.into_iter().flat_map(cuts).collect())
}

/// Returns what the program has sent back, once the connection has ended.
fn echo_of_a_late_header(stream: &mut TcpStream, header: &[u8], cut: usize) -> Result<Vec<u8>> {
    for piece in [&header[..cut], &[&header[cut..], b"data"].concat()] {
        // The connection may have been refused by then.
        let _ = stream.write_all(piece);
        // A longer part is a header already, so it stays unacknowledged.
        if piece.len() < 12 {
            let _ = wait_until_sent(stream);
        }
    }
    let mut echo = Vec::new();
    match stream.read_to_end(&mut echo) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error).context("it was not closed"),
        _ => Ok(echo),
    }
}

fn is_refused(mut stream: TcpStream, header: &[u8], cut: usize) -> Result<()> {
    let echo = echo_of_a_late_header(&mut stream, header, cut)?;
    let has_passed = echo.len() <= 11 && header[..cut].starts_with(&echo);
    ensure!(has_passed, "cut at {cut} the program got {}", echo.escape_ascii());
    Ok(())
}

fn a_header_after_the_wait_is_refused_by_name(bed: &Bed) -> Result<()> {
    let servers = servers(bed, &["threads", "epoll"])?;
    for (stream, (header, cut)) in greeted(&servers, &headers_in_two()?)? {
        is_refused(stream, &header, cut)?;
    }
    servers.iter().try_for_each(|server| {
        server.running.wait_for_log("a PROXY header came after 0.1 s of silence")?;
        server.running.wait_for_log("header_placement must be on_first_ack")
    })
}

/// Interactive clients: byte by byte, and what begins like a header. Once bytes have come, nothing is one.
fn bytes_after_the_wait_that_are_no_header_are_data(bed: &Bed) -> Result<()> {
    let servers = servers(bed, &["threads", "epoll"])?;
    let data = [
        "GET / HTTP/1.1\r\n\r\n",
        "PASS word\r\n",
        "PROXIMITY is no header",
        "HELLO world, HELLO",
        "\r\nX",
        "\r\n\r\n\0\r\nQUIX, which is no header",
        "P",
        "\r",
        "PROXY",
        "\r\n\r\n",
    ];
    let cases: Vec<_> = data.into_iter().flat_map(|data| [1, 5, data.len()].map(|n| (data, n))).collect();
    for (mut stream, (data, piece)) in greeted(&servers, &cases)? {
        let later = (data.len() > 12).then(|| client::v1(CLIENT4, destination_for(CLIENT4))).transpose()?;
        for piece in data.as_bytes().chunks(piece).chain(later.as_deref()) {
            stream.write_all(piece)?;
            let mut echo = vec![0; piece.len()];
            stream.read_exact(&mut echo).with_context(|| format!("of {data:?}"))?;
            ensure!(echo == piece, "of {data:?}: {}", echo.escape_ascii());
        }
        ensure!(client::ask(&mut stream, b"")?.is_empty(), "{data:?}");
    }
    servers.iter().try_for_each(|server| {
        let log = server.running.log();
        ensure!(!log.contains("silence") && !log.contains("has sent nothing"), "{log}");
        Ok(())
    })
}

/// The process that has accepted it has closed it.
fn a_header_after_the_wait_does_not_reach_a_child_of_the_program(bed: &Bed) -> Result<()> {
    let servers = servers(bed, &["fork"])?;
    for (stream, (header, cut)) in greeted(&servers, &headers_in_two()?)? {
        is_refused(stream, &header, cut)?;
    }
    servers.iter().try_for_each(|server| server.running.wait_for_log("header_placement must be on_first_ack"))
}

/// Its connections have the listener's filter (SO_ATTACH_FILTER), and there is no place for a second one. The
/// same is said where the kernel permits none.
fn a_silent_client_of_a_program_with_its_own_filter_is_named_in_the_log(bed: &Bed) -> Result<()> {
    let script = "\
import ctypes, socket, struct
listener = socket.create_server(('127.0.0.1', 8080))
everything = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffffffff))
try:
    listener.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HP', 1, ctypes.addressof(everything)))
except PermissionError:
    pass
while True:
    connection, peer = listener.accept()
    connection.sendall(b'hello ' + peer[0].encode())
    connection.close()
";
    let running = start(bed, &python(bed, script, &["--header", "optional"])?, &[V4])?;
    let mut stream = client::connect(V4)?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    ensure!(said == "hello 127.0.0.1", "{said:?}");
    running.wait_for_log("127.0.0.1:")?;
    running.wait_for_log("has sent nothing in time")
}
