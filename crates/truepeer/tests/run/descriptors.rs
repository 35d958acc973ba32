//! A program that replaces all descriptors, or closes them with its own system calls. The library's
//! descriptors are among them.

use std::io::Write;
use std::time::Duration;

use anyhow::ensure;
use truepeer_testbed::client;
use truepeer_testbed::sockets::wait_until_read;
use truepeer_testbed::{Bed, Running, Test, tests};

use crate::library::{CLIENT, LISTENER, ask_late, header};
use crate::{PYTHON, python};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_program_that_replaces_every_descriptor_is_still_served,
        the_program_can_use_every_descriptor,
        a_waiting_connection_yields_its_number_to_the_program,
        a_late_connection_needs_no_second_descriptor,
        late_connections_of_one_listener_outlive_a_wake_up_of_another,
        an_executed_program_finds_moved_descriptors,
        a_program_that_closes_by_system_calls_is_still_served_and_not_slowed,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// The start of the scripts: replaces everything but the listener with a file of the program.
const COVER: &str = "\
import ctypes, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.create_server(('127.0.0.1', 8080))
mine = os.memfd_create('mine')
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
others = [number for number in range(3, limit) if number not in (listener.fileno(), mine)]
def link(number):
    return os.readlink('/proc/self/fd/%d' % number)
def answer(connection, peer):
    while connection.recv(4096):
        pass
    connection.sendall(b'%s %d' % (peer[0].encode(), peer[1]))
    connection.close()
";

fn start(bed: &Bed, script: &str, limits: &str) -> anyhow::Result<Running> {
    let launch = ["run", "--via", "preload", "--header-timeout", "60s", "--"];
    let program = python(bed, &format!("{COVER}{script}"))?.limit(limits);
    let running = program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).start(bed)?;
    running.wait_listening(LISTENER)?;
    Ok(running)
}

fn is_served_late(running: &Running) -> anyhow::Result<()> {
    let said = ask_late()?;
    ensure!(said == "203.0.113.7 5000", "{said:?}; {}", running.log());
    Ok(())
}

/// As daemons do, before each connection, with both calls.
fn a_program_that_replaces_every_descriptor_is_still_served(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
def replace_all(replace):
    for number in others:
        assert replace(mine, number) == number, os.strerror(ctypes.get_errno())
        assert link(number) == '/memfd:mine (deleted)', link(number)
        os.close(number)
while True:
    replace_all(libc.dup2)
    replace_all(lambda old, new: libc.dup3(old, new, os.O_CLOEXEC))
    answer(*listener.accept())
";
    for limits in ["nofile=256:256", "nofile=256:4096", "nofile=2048:2048"] {
        let running = start(bed, script, limits)?;
        (0..5).try_for_each(|_| is_served_late(&running))?;
    }
    Ok(())
}

/// All numbers at once, up to the program's limit. Then it frees a few for connections.
fn the_program_can_use_every_descriptor(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
while True:
    for number in others:
        assert libc.dup2(mine, number) == number, os.strerror(ctypes.get_errno())
    assert {link(number) for number in others} == {'/memfd:mine (deleted)'}
    for number in others[:20]:
        os.close(number)
    answer(*listener.accept())
";
    let running = start(bed, script, "nofile=256:4096")?;
    (0..3).try_for_each(|_| is_served_late(&running))
}

fn a_waiting_connection_yields_its_number_to_the_program(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
listener.setblocking(False)
def sockets():
    return [number for number in others if os.path.exists('/proc/self/fd/%d' % number) and 'socket:' in link(number)]
before = len(sockets())
while True:
    try:
        connection, peer = listener.accept()
    except BlockingIOError:
        if len(sockets()) >= before + 3:
            for number in others:
                assert libc.dup2(mine, number) == number, os.strerror(ctypes.get_errno())
                os.close(number)
            print('replaced', flush=True)
            listener.setblocking(True)
        continue
    answer(connection, peer)
";
    let running = start(bed, script, "nofile=512:512")?;
    let header = header()?;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut stream = client::connect(LISTENER)?;
        stream.write_all(&header[..20])?;
        waiting.push(stream);
    }
    running.wait_for_log("replaced")?;
    for mut stream in waiting {
        stream.write_all(&header[20..])?;
        let said = client::ask(&mut stream, b"x")?;
        ensure!(said == "203.0.113.7 5000", "{said:?}; {}", running.log());
    }
    Ok(())
}

/// Uses all descriptors, and then all but so many.
const FILL: &str = "\
def fill(free):
    held = []
    try:
        while True:
            held.append(os.dup(mine))
    except OSError:
        pass
    for number in held[-free:]:
        os.close(number)
    return held[:-free]
";

fn a_late_connection_needs_no_second_descriptor(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
answer(*listener.accept())
fill(1)
while True:
    try:
        connection, peer = listener.accept()
    except OSError as error:
        assert error.errno == 24 # the library needs the last one itself, for a moment
    else:
        answer(connection, peer)
";
    let running = start(bed, &format!("{FILL}{script}"), "nofile=256:256")?;
    starts_the_waiter(&running)?;
    (0..3).try_for_each(|_| is_served_late(&running))
}

/// It needs descriptors of its own.
fn starts_the_waiter(running: &Running) -> anyhow::Result<()> {
    let header = header()?;
    let mut stream = client::connect(LISTENER)?;
    stream.write_all(&header[..20])?;
    let threads = || std::fs::read_dir(format!("/proc/{}/task", running.pid())).map_or(0, Iterator::count);
    running.wait_state("the library's thread", || threads() > 1)?;
    stream.write_all(&header[20..])?;
    client::ask(&mut stream, b"x").map(drop)
}

/// The program has fewer free descriptors than late connections, which wait at another listener.
fn late_connections_of_one_listener_outlive_a_wake_up_of_another(bed: &Bed) -> anyhow::Result<()> {
    const MANY: usize = 40;
    let script = "\
import select, time
other = socket.create_server(('127.0.0.1', 8081))
other.setblocking(False)
answer(*listener.accept())
first = True
while first:
    select.select([other], [], [])
    try:
        while True:
            connection, peer = other.accept()
            first = False
            answer(connection, peer)
    except BlockingIOError:
        pass
print('all wait', flush=True)
answer(*listener.accept())
held = fill(8)
print('full', flush=True)
for _ in range(3):
    answer(*listener.accept())
for number in held:
    os.close(number)
other.setblocking(True)
while True:
    answer(*other.accept())
";
    let running = start(bed, &format!("{FILL}{script}"), "nofile=512:512")?;
    starts_the_waiter(&running)?;
    let header = header()?;
    let mut waiting = Vec::new();
    for _ in 0..MANY {
        let mut stream = client::connect("127.0.0.1:8081")?;
        stream.write_all(&header[..20])?;
        waiting.push(stream);
    }
    // Its bytes come after theirs, so the program has taken all of them from the queue.
    let mut last = client::connect("127.0.0.1:8081")?;
    last.write_all(&header)?;
    let said = client::ask(&mut last, b"x")?;
    ensure!(said == "203.0.113.7 5000", "{said:?}; {}", running.log());
    running.wait_for_log("all wait")?;
    for stream in &mut waiting {
        stream.write_all(&header[20..])?;
        wait_until_read(stream)?;
    }
    client::ask(&mut client::connect(LISTENER)?, &[&header[..], b"x"].concat())?;
    running.wait_for_log("full")?;
    (0..3).try_for_each(|_| is_served_late(&running))?;
    for (n, mut stream) in waiting.into_iter().enumerate() {
        let said = client::ask(&mut stream, b"x")?;
        ensure!(said == "203.0.113.7 5000", "{n}: {said:?}; {}", running.log());
    }
    Ok(())
}

/// The names and the queue of late connections have other numbers than the environment says.
fn an_executed_program_finds_moved_descriptors(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import sys
for number in others:
    libc.dup2(mine, number)
    os.close(number)
connection, peer = listener.accept()
os.set_inheritable(connection.fileno(), True)
os.set_inheritable(listener.fileno(), True)
program = '''
import socket, sys
first = socket.socket(fileno=int(sys.argv[1]))
listener = socket.socket(fileno=int(sys.argv[2]))
while True:
    while first.recv(4096):
        pass
    first.sendall(b'%s %d' % (first.getpeername()[0].encode(), first.getpeername()[1]))
    first.close()
    first, peer = listener.accept()
'''
os.execv(sys.executable, [sys.executable, '-c', program, str(connection.fileno()), str(listener.fileno())])
";
    let running = start(bed, script, "nofile=512:512")?;
    (0..3).try_for_each(|_| is_served_late(&running))?;
    ensure!(running.stderr().is_empty(), "{}", running.stderr());
    let saw = client::ask(&mut client::connect(LISTENER)?, &header()?)?;
    ensure!(saw.trim() == CLIENT.replace(':', " "), "{saw:?}");
    Ok(())
}

/// With system calls that the library doesn't see. The library recreates its descriptors and logs that.
fn a_program_that_closes_by_system_calls_is_still_served_and_not_slowed(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import time
SYS_close_range = 436
while True:
    assert libc.syscall(SYS_close_range, mine + 1, 0xFFFFFFFF, 0) == 0
    before = time.process_time()
    time.sleep(.5)
    used = time.process_time() - before
    assert used < .2, used
    print('closed', flush=True)
    answer(*listener.accept())
";
    let running = start(bed, script, "nofile=512:512")?;
    for round in 1..4 {
        running
            .wait_state("everything to be closed", || running.stdout().matches("closed").count() >= round)?;
        // In two parts; the first is examined before the second arrives.
        let mut stream = client::connect(LISTENER)?;
        let header = header()?;
        stream.write_all(&header[..20])?;
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(&header[20..])?;
        let said = client::ask(&mut stream, b"x")?;
        ensure!(said == "203.0.113.7 5000", "{said:?}; {}", running.log());
    }
    Ok(())
}
