//! Programs that wait in select() or poll() for more than a blocking listener: a silent or refused connection
//! there must not keep them from the rest.

use std::io::{Read, Write};

use anyhow::ensure;
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Running, Test, client, tests};

use crate::kit::{CLIENT4, header_of, python, start};

const LISTENER: &str = "127.0.0.1:8080";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        select_continues_with_open_connections,
        poll_continues_with_open_connections,
        a_wait_with_a_time_out_ends,
        a_signal_that_pselect_unblocks_is_delivered,
        a_program_that_only_accepts_gets_no_extra_error,
    ];
    all.into_iter().map(|test| test.needs_program(crate::PYTHON).needs_several_users()).collect()
}

/// One thread serves all its connections: each sends bytes and gets its client's name.
const BY_SELECT: &str = "\
import select, socket
listener = socket.create_server(('127.0.0.1', 8080))
connections = {}
def readable():
    return select.select([listener, *connections], [], [])[0]
def serve():
    for one in readable():
        if one is not listener:
            if one.recv(100):
                one.sendall(b'%s %d\\n' % (connections[one][0].encode(), connections[one][1]))
            else:
                del connections[one]
                one.close()
            continue
        try:
            connection, peer = listener.accept()
            connections[connection] = peer
        except ConnectionAbortedError:
            print('aborted')
";

fn loops(script: &str) -> String {
    format!("{script}while True:\n    serve()\n")
}

fn ask(stream: &mut std::net::TcpStream) -> anyhow::Result<()> {
    stream.write_all(b"who?")?;
    let mut answer = [0; 17];
    stream.read_exact(&mut answer)?;
    ensure!(&answer == b"203.0.113.7 5000\n", "{:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Makes a connection that accept() must skip, and waits until it was examined.
fn refused() -> anyhow::Result<()> {
    let mut refused = client::connect(LISTENER)?;
    refused.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    client::read_end(&mut refused)?;
    Ok(())
}

fn goes_on_with_open_connections(bed: &Bed, script: &str) -> anyhow::Result<()> {
    let python = start(bed, &python(bed, &loops(script), &["--header-timeout", "10m"])?, &[LISTENER])?;
    let header = header_of(CLIENT4)?;
    let mut open = client::connect(LISTENER)?;
    open.write_all(&header)?;
    ask(&mut open)?;
    for _ in 0..3 {
        let mut late = client::connect(LISTENER)?;
        late.write_all(&header[..20])?;
        wait_until_sent(&late)?;
        refused()?;
        ask(&mut open)?;
        late.write_all(&header[20..])?;
        ask(&mut late)?;
        ask(&mut open)?;
    }
    ensure!(python.stdout().contains("aborted"), "{}", python.log());
    Ok(())
}

fn select_continues_with_open_connections(bed: &Bed) -> anyhow::Result<()> {
    goes_on_with_open_connections(bed, BY_SELECT)
}

fn poll_continues_with_open_connections(bed: &Bed) -> anyhow::Result<()> {
    let by_poll = "    poll = select.poll()
    by_number = {one.fileno(): one for one in (listener, *connections)}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, events in poll.poll()]
";
    let by_select = "    return select.select([listener, *connections], [], [])[0]\n";
    let script = BY_SELECT.replace(by_select, by_poll);
    ensure!(script != BY_SELECT);
    goes_on_with_open_connections(bed, &script)
}

/// As http.server does: it checks regularly whether it must end.
fn a_wait_with_a_time_out_ends(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import http.server, os, threading, time
server = http.server.HTTPServer(('127.0.0.1', 8080), http.server.BaseHTTPRequestHandler)
thread = threading.Thread(target=server.serve_forever)
thread.start()
while not os.path.exists('go'):
    time.sleep(0.01)
server.shutdown()
print('ended')
";
    let script = format!("import os\nos.chdir({:?})\n{script}", bed.dir());
    let python = start(bed, &python(bed, &script, &["--header-timeout", "10m"])?, &[LISTENER])?;
    refused()?;
    bed.write("go", "")?;
    ensure!(python.wait_end()?.success(), "{}", python.log());
    Ok(())
}

/// The program expects a signal during its wait that it blocks elsewhere.
fn a_signal_that_pselect_unblocks_is_delivered(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def on_signal(number, frame):
    print('ended')
    sys.exit(0)
signal.signal(signal.SIGUSR1, on_signal)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
listener = socket.create_server(('127.0.0.1', 8080))
none = ctypes.create_string_buffer(128)
while True:
    readable = ctypes.create_string_buffer(128)
    readable[listener.fileno() // 8] = 1 << listener.fileno() % 8
    if libc.pselect(listener.fileno() + 1, readable, None, None, None, none) > 0:
        try:
            listener.accept()
        except ConnectionAbortedError:
            pass
";
    let python = start(bed, &python(bed, script, &["--header-timeout", "10m"])?, &[LISTENER])?;
    refused()?;
    python.signal(rustix::process::Signal::USR1)?;
    ensure!(python.wait_end()?.success() && python.stdout() == "ended\n", "{}", python.log());
    Ok(())
}

/// An error that it doesn't expect would end it. It has used poll() before, for other descriptors.
fn a_program_that_only_accepts_gets_no_extra_error(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import select, socket
listener = socket.create_server(('127.0.0.1', 8080))
other = socket.create_server(('127.0.0.1', 8081))
select.select([listener, other], [], [])
while True:
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(b'%s %d' % (peer[0].encode(), peer[1]))
    connection.close()
";
    let python: Running = start(bed, &python(bed, script, &[])?, &[LISTENER])?;
    let header = header_of(CLIENT4)?;
    for _ in 0..2 {
        let said = client::ask(&mut client::connect(LISTENER)?, &header)?;
        ensure!(said == "203.0.113.7 5000", "{said}");
    }
    let mut other = client::connect("127.0.0.1:8081")?;
    other.write_all(&header)?;
    refused()?;
    let said = client::ask(&mut client::connect(LISTENER)?, &header)?;
    ensure!(said == "203.0.113.7 5000" && python.is_alive(), "{said}; {}", python.log());
    Ok(())
}
