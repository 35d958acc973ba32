//! Many connections: nothing is left over, and silent ones delay no other.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::crowd::{gather, in_parallel, nth_client};
use truepeer_testbed::{Bed, Behaviour, Running, Test, tests};

use crate::kit::{CLIENT4, PYTHON, Talk, V4, header_of, python, start, supervisor_and_program, under};

const MINUTES: Duration = Duration::from_secs(300);

pub(crate) fn tests() -> Vec<Test> {
    let silent = tests![
        silent_connections_do_not_fill_a_short_queue,
        silent_connections_do_not_fill_a_short_queue_without_syn_cookies,
        silent_connections_do_not_fill_a_short_queue_with_syn_cookies_only,
    ];
    let mut all: Vec<Test> = silent
        .into_iter()
        .map(|test| test.needs_program(PYTHON).needs_several_users().needs_open_files(4096))
        .collect();
    let bursts = [
        ("every_burst_is_answered_to_the_last", bursts as fn(&Bed) -> anyhow::Result<()>),
        ("every_burst_is_answered_by_a_supervisor_that_is_stopped_now_and_then", bursts_while_stopped),
    ];
    all.extend(bursts.map(|(name, run)| {
        Test::new(name, run).needs_program(PYTHON).needs_several_users().time_limit(MINUTES)
    }));
    all.push(
        Test::new("six_hundred_bursts_are_answered_to_the_last", many_bursts)
            .needs_program(PYTHON)
            .needs_several_users()
            .long()
            .time_limit(4 * MINUTES),
    );
    all.push(
        Test::new("twenty_thousand_connections_leave_nothing_behind", twenty_thousand).time_limit(MINUTES),
    );
    all.push(
        Test::new(
            "a_hundred_and_forty_thousand_connections_leave_nothing_behind",
            a_hundred_and_forty_thousand,
        )
        .long()
        .time_limit(4 * MINUTES),
    );
    all
}

fn silent_connections_do_not_fill_a_short_queue(bed: &Bed) -> anyhow::Result<()> {
    among_the_silent(bed, 1)
}

fn silent_connections_do_not_fill_a_short_queue_without_syn_cookies(bed: &Bed) -> anyhow::Result<()> {
    among_the_silent(bed, 0)
}

fn silent_connections_do_not_fill_a_short_queue_with_syn_cookies_only(bed: &Bed) -> anyhow::Result<()> {
    among_the_silent(bed, 2)
}

/// A thousand silent connections to a program with a backlog of five.
fn among_the_silent(bed: &Bed, syn_cookies: u8) -> anyhow::Result<()> {
    fs::write("/proc/sys/net/ipv4/tcp_syncookies", syn_cookies.to_string()).context("tcp_syncookies")?;
    let script = "\
import asyncio
async def answer(reader, writer):
    await reader.read()
    writer.write(('%s %d\\n' % writer.get_extra_info('peername')[:2]).encode())
    writer.close()
async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 8080, backlog=5)
    await server.serve_forever()
asyncio.run(main())
";
    let _python = start(bed, &python(bed, script, &["--header-timeout", "60s"])?, &[V4])?;
    let _crowd = gather(bed, 1000, V4)?;
    for _ in 0..3 {
        let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?, b"x"])?;
        ensure!(saw.to_string() == CLIENT4, "{saw}");
    }
    Ok(())
}

/// Two processes, each with its own listener and epoll, on one address: a wake-up of one doesn't wake the
/// other.
fn two_that_listen(bed: &Bed) -> anyhow::Result<Running> {
    let script = "\
import os, select, socket
os.fork()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(('127.0.0.1', 8080))
listener.listen(4096)
listener.setblocking(False)
print('listening')
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
while True:
    epoll.poll()
    while True:
        try:
            connection, peer = listener.accept()
        except BlockingIOError:
            break
        connection.setblocking(True)
        while connection.recv(4096):
            pass
        connection.sendall(('%s %d\\n' % peer).encode())
        connection.close()
";
    let running = start(bed, &python(bed, script, &[])?, &[V4])?;
    // Counted, because the two write at once and their lines may be mixed.
    running.wait_state("two listening processes", || running.stdout().matches("listening").count() == 2)?;
    Ok(running)
}

/// Fifty at a time, then none: otherwise the next connection would hide a lost wake-up.
fn burst() -> anyhow::Result<()> {
    in_parallel(50, 200, |n| {
        let client = nth_client(n);
        let header = header_of(&client.to_string())?;
        let cut = if n.is_multiple_of(10) { 20 } else { 0 };
        let saw = Talk::Plain.ask_fast(V4, &[&header[..cut], &header[cut..]])?;
        ensure!(saw == client, "{client} was seen as {saw}");
        Ok(())
    })
}

fn bursts(bed: &Bed) -> anyhow::Result<()> {
    let _two = two_that_listen(bed)?;
    (0..15).try_for_each(|n| burst().with_context(|| format!("burst {n}")))
}

fn many_bursts(bed: &Bed) -> anyhow::Result<()> {
    let _two = two_that_listen(bed)?;
    (0..600).try_for_each(|n| burst().with_context(|| format!("burst {n}")))
}

/// A stop, as by a debugger or a paused container, interrupts whatever the supervisor waits for in the
/// kernel.
fn bursts_while_stopped(bed: &Bed) -> anyhow::Result<()> {
    let two = two_that_listen(bed)?;
    let [supervisor, _] = supervisor_and_program(&two);
    let supervisor = Pid::from_raw(supervisor).context("no process")?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| -> anyhow::Result<()> {
            while !over.load(Relaxed) {
                kill_process(supervisor, Signal::STOP)?;
                kill_process(supervisor, Signal::CONT)?;
                thread::sleep(Duration::from_micros(200)); // it must get something done in between
            }
            Ok(())
        });
        let answered = (0..15).try_for_each(|n| burst().with_context(|| format!("burst {n}")));
        over.store(true, Relaxed);
        stopping.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        answered
    })
}

fn twenty_thousand(bed: &Bed) -> anyhow::Result<()> {
    leave_nothing_behind(bed, 20_000)
}

fn a_hundred_and_forty_thousand(bed: &Bed) -> anyhow::Result<()> {
    leave_nothing_behind(bed, 140_000)
}

/// Counts descriptors of the program and of the supervisor, and measures the supervisor's memory. The table
/// of names always has 6 MiB.
fn leave_nothing_behind(bed: &Bed, count: usize) -> anyhow::Result<()> {
    const NAMES_BYTES: usize = 7 << 20;
    let program = Behaviour::Who.program(&[V4])?;
    let who = start(bed, &under(program, &[]), &[V4])?;
    let one = |n: usize| -> anyhow::Result<()> {
        let client = nth_client(n);
        let header = header_of(&client.to_string())?;
        // One of ten arrives in two parts and usually takes the slow path.
        let cut = if n.is_multiple_of(10) { 20 } else { 0 };
        let saw = Talk::Plain.ask_fast(V4, &[&header[..cut], &header[cut..]])?;
        ensure!(saw == client, "{client} was seen as {saw}");
        Ok(())
    };
    in_parallel(8, 1000, one)?; // after this, everything kept for the next connections has been allocated
    settled(bed, &who)?;
    let [supervisor, _] = supervisor_and_program(&who);
    let before = resident_bytes(supervisor)?;
    in_parallel(8, count, |n| one(1000 + n))?;
    settled(bed, &who)?;
    let grown = resident_bytes(supervisor)?.saturating_sub(before);
    ensure!(grown < NAMES_BYTES, "memory has grown by {grown} bytes");
    Ok(())
}

/// Waits until neither process has a connection's descriptor.
fn settled(bed: &Bed, who: &Running) -> anyhow::Result<()> {
    const A_FEW: usize = 16; // standard streams, listeners, epolls, the supervisor's own
    let [supervisor, program] = supervisor_and_program(who);
    let open = |pid: i32| fs::read_dir(format!("/proc/{pid}/fd")).map_or(usize::MAX, Iterator::count);
    bed.wait_for("the descriptors of all connections to be closed", || {
        open(supervisor) <= A_FEW && open(program) <= A_FEW
    })
}

fn resident_bytes(pid: i32) -> anyhow::Result<usize> {
    let pages: usize = fs::read_to_string(format!("/proc/{pid}/statm"))?
        .split_whitespace()
        .nth(1)
        .context("the second field of statm")?
        .parse()?;
    Ok(pages * rustix::param::page_size())
}
