//! On a host that cannot connect to its own listeners: the supervisor beside the library wakes the threads
//! that the library cannot, and the library alone names the program that it cannot wake.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Host, Program, Running, Test, Topology, User, client, tests, wait_for};

use crate::PYTHON;
use crate::kit::{header_of, under_by};
use crate::obstructed::{
    CLIENT, QUESTION, Server, are_served_by, is_served_in_parts, names_the_client, wait_until_accepted,
};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        late_headers_wake_each_way_of_waiting_by_default,
        late_headers_wake_calls_that_bypass_the_library,
        an_idle_process_with_the_library_is_woken_beside_a_busy_one,
        a_program_that_the_library_cannot_wake_is_named,
        a_program_that_has_closed_its_listener_is_named,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// poll() by a system call of the program's own.
const RAW: (&str, u16) = ("raw", 8089);
const ALLOWED: [&str; 2] = ["--allow", "10.77.0.1"];

fn late_headers_wake_each_way_of_waiting_by_default(bed: &Bed) -> Result<()> {
    are_served_by("auto", bed, "lb", |_, _| Ok(()))
}

fn late_headers_wake_calls_that_bypass_the_library(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let server = Server::start_by("auto", bed, host, RAW, "lb", &[])?;
    let began = Instant::now();
    for _ in 0..3 {
        let parts = || is_served_in_parts(host, server.address);
        lb.run(parts)?.with_context(|| server.log())?;
    }
    // On a busy machine it may be true that nobody has accepted a connection for seconds.
    let is_quick = began.elapsed() < Duration::from_secs(2);
    ensure!(!is_quick || !server.log().contains("nobody has accepted"), "{}", server.log());
    Ok(())
}

/// Without a supervisor. The next connection wakes it.
fn a_program_that_the_library_cannot_wake_is_named(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let server = Server::start_by("preload", bed, host, RAW, "lb", &[])?;
    let late = lb.run(|| begin(host, server.address))??;
    // The library has looked at its first part.
    server.running.wait_for_log("waits").with_context(|| server.log())?;
    let late = complete(late)?;
    server.running.wait_for_log("nobody has accepted it for seconds").with_context(|| server.log())?;
    ensure!(server.log().contains("without a supervisor also poll()"), "{}", server.log());
    lb.run(|| next_is_served(server.address))??;
    names_the_client(late)
}

/// Sends the first part of a header, until it has been accepted.
fn begin(host: &Host, address: SocketAddr) -> Result<TcpStream> {
    let mut stream = client::connect(address)?;
    stream.write_all(&header_of(CLIENT)?[..20])?;
    wait_until_sent(&stream)?;
    host.run(|| wait_until_accepted(address.port()))??;
    Ok(stream)
}

fn complete(mut stream: TcpStream) -> Result<TcpStream> {
    stream.write_all(&[&header_of(CLIENT)?[20..], QUESTION].concat())?;
    Ok(stream)
}

fn next_is_served(address: SocketAddr) -> Result<()> {
    let mut next = client::connect(address)?;
    next.write_all(&[&header_of(CLIENT)?, QUESTION].concat())?;
    names_the_client(next)
}

/// Two processes wait for the same listener. Each says which one it is, and is busy until it has been told
/// something.
const SIBLINGS: &str = "\
import os, select, socket, sys
way = sys.argv[1]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lb')
listener.bind(('0.0.0.0', 3000))
listener.listen()
listener.setblocking(way == 'accept')
os.fork()
epoll, poll = select.epoll(), select.poll()
epoll.register(listener, select.EPOLLIN)
poll.register(listener, select.POLLIN)
ways = {'epoll': epoll.poll, 'poll': poll.poll, 'select': lambda: select.select([listener], [], [])}
wait = ways.get(way, lambda: None)
while True:
    wait()
    try:
        connection, peer = listener.accept()
    except BlockingIOError:
        continue
    connection.setblocking(True)
    connection.sendall(b'%d\\n' % os.getpid())
    connection.recv(100)
    connection.sendall(b'%s %d\\n' % (peer[0].encode(), peer[1]))
    connection.close()
";

fn an_idle_process_with_the_library_is_woken_beside_a_busy_one(bed: &Bed) -> Result<()> {
    for way in ["epoll", "poll", "select", "accept"] {
        let line = Topology::line(&["lb", "host"])?;
        let (lb, host) = (line.host("lb"), line.host("host"));
        let script = bed.write(&bed.fresh_name("siblings.py"), SIBLINGS)?;
        let python = Program::new(PYTHON).arg("-u").arg(script).arg(way).in_netns(&host.netns);
        let server = under_by("auto", python.as_user(User::TESTER), &ALLOWED).start(bed)?;
        let address = host.at(false, 3000);
        server.wait_listening(address)?;
        lb.run(|| an_idle_one_is_woken(host, address, &server))?
            .with_context(|| format!("{way}: {}", server.log()))?;
        server.stop()?;
    }
    Ok(())
}

fn an_idle_one_is_woken(host: &Host, address: SocketAddr, server: &Running) -> Result<()> {
    let parent = server.pid();
    wait_for("the child", || server.children().is_ok_and(|children| !children.is_empty()))?;
    let child = *server.children()?.first().context("a child")?;
    let tell = |signal| kill_process(Pid::from_raw(child).context("its number")?, signal).context("kill");
    // Only the parent accepts.
    wait_for("the child to wait", || sleeps(child))?;
    tell(Signal::STOP)?;
    let late = begin(host, address)?;
    let (mut busy, who) = who_answers({
        let mut stream = client::connect(address)?;
        stream.write_all(&header_of(CLIENT)?)?;
        stream
    })?;
    ensure!(who == parent, "{who} accepts, and not {parent}");
    tell(Signal::CONT)?;
    wait_for("the child to wait again", || sleeps(child))?;
    let (late, who) = who_answers(complete(late)?)?;
    ensure!(who == child, "{who} was woken, and not {child}");
    names_the_client(late)?;
    busy.write_all(QUESTION)?;
    names_the_client(busy)
}

fn who_answers(stream: TcpStream) -> Result<(TcpStream, i32)> {
    let mut number = String::new();
    BufReader::with_capacity(1, &stream).read_line(&mut number)?;
    let number = number.trim().parse().with_context(|| format!("{number:?}"))?;
    Ok((stream, number))
}

/// In an interruptible call of the kernel.
fn sleeps(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

/// The first process closes its listener after a late connection; the second one begins to wait then.
const CLOSES: &str = "\
import os, select, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lb')
listener.bind(('0.0.0.0', 3000))
listener.listen()
listener.setblocking(False)
mine, theirs = os.pipe()
if os.fork():
    select.select([listener], [], [])
    try:
        listener.accept()
    except BlockingIOError:
        listener.close()
        print('closed')
        os.write(theirs, b'.')
        while True:
            select.select([], [], [])
os.read(mine, 1)
while True:
    select.select([listener], [], [])
    try:
        connection, peer = listener.accept()
    except BlockingIOError:
        continue
    connection.setblocking(True)
    connection.recv(100)
    connection.sendall(b'%s %d\\n' % (peer[0].encode(), peer[1]))
    connection.close()
";

fn a_program_that_has_closed_its_listener_is_named(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let python = Program::new(PYTHON).arg("-u").arg(bed.write("closes.py", CLOSES)?).in_netns(&host.netns);
    let server = under_by("preload", python.as_user(User::TESTER), &ALLOWED).start(bed)?;
    let address = host.at(false, 3000);
    server.wait_listening(address)?;
    let late = lb.run(|| begin(host, address))??;
    server.wait_for_log("closed").with_context(|| server.log())?;
    let mut late = complete(late)?;
    server.wait_for_log("this process has closed it").with_context(|| server.log())?;
    lb.run(|| next_is_served(address))??;
    let mut said = String::new();
    late.read_to_string(&mut said).with_context(|| server.log())?;
    ensure!(said.ends_with("203.0.113.7 5000\n"), "{said:?}");
    Ok(())
}
