//! The repair keeper: what both processes may do, and what becomes of sessions when it ends or stands still.

use std::fs;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout, socket_type};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use truepeer_sys::repair::is_under_repair;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Behaviour, Running, Test, client, tests, wait_for};

use crate::stand::{BACKEND, DOOR, SITE, Stand, echo, open, spliced};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        the_process_keeps_no_capability_for_sessions_that_leave,
        without_its_keeper_sessions_stay_and_those_that_have_left_go_on,
        a_keeper_that_stands_still_is_waited_for_once,
        a_socket_under_repair_stays_there,
        sessions_that_are_leaving_outlive_a_killed_keeper,
    ];
    all.push(
        Test::new("sessions_that_are_leaving_outlive_100_killed_keepers", |bed| outlive(bed, 100))
            .time_limit(Duration::from_secs(600))
            .long(),
    );
    all
}

const NET_ADMIN: u64 = 1 << 12;
const NET_BIND_SERVICE: u64 = 1 << 10;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// A line of /proc/PID/status of each thread.
fn of_each_thread(process: i32, name: &str) -> Result<Vec<String>> {
    fs::read_dir(format!("/proc/{process}/task"))?
        .map(|thread| {
            let status = fs::read_to_string(thread?.path().join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            Ok(line.with_context(|| format!("no {name} in {status}"))?.to_owned())
        })
        .collect()
}

fn capabilities(process: i32) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for sets in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for one in of_each_thread(process, sets)? {
            all.push(u64::from_str_radix(&one, 16)?);
        }
    }
    Ok(all)
}

fn keeper_of(truepeer: &Running) -> Result<i32> {
    truepeer.helper("truepeer-splice")
}

fn signal(process: i32, signal: Signal) -> Result<()> {
    Ok(kill_process(Pid::from_raw(process).context("0")?, signal)?)
}

/// Since Linux 6.0 an open table needs no capability.
fn has_free_tables() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    release.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major >= 6)
}

fn the_process_keeps_no_capability_for_sessions_that_leave(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let truepeer = spliced(bed, &[]).start(bed)?;
    let backend = Behaviour::Echo.start(bed, &["127.0.0.1:8009"])?;
    let stand = Stand { truepeer, backend, admin: bed.dir().join("admin") };
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let process = stand.truepeer.pid();
    let unwanted = NET_ADMIN | PERFMON | if has_free_tables() { BPF } else { 0 };
    let held = capabilities(process)?;
    ensure!(held.iter().all(|set| set & unwanted == 0), "{held:x?}: {}", stand.truepeer.log());
    let keeper = keeper_of(&stand.truepeer)?;
    let held = capabilities(keeper)?;
    let wanted = NET_ADMIN | NET_BIND_SERVICE;
    ensure!(held == [wanted, wanted, 0, 0], "the keeper's: {held:x?}");
    for (name, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        ensure!(of_each_thread(keeper, name)? == [wanted], "the keeper's {name}");
    }
    ensure!(of_each_thread(keeper, "Uid")?[0] == of_each_thread(process, "Uid")?[0]);
    let open = fs::read_dir(format!("/proc/{keeper}/fd"))?.count();
    // The standard streams, and the socket to its process.
    ensure!(open == 4, "{open} descriptors");
    stand.ask(bed, &["sessions", "--kill", "--client", "203.0.113.0/24"])?;
    crate::stand::is_reset(&mut stream)?;
    stand.truepeer.stop()?;
    ensure!(!fs::exists(format!("/proc/{keeper}"))?, "the keeper outlives its process");
    Ok(())
}

fn stayed(stand: &Stand, bed: &Bed) -> Result<()> {
    let is_counted = || stand.ask(bed, &["status"]).is_ok_and(|status| status.contains("keeper_gone"));
    stand.truepeer.wait_state("a session that stays for want of the keeper", is_counted)
}

fn end(mut stream: TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    Ok(())
}

fn without_its_keeper_sessions_stay_and_those_that_have_left_go_on(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut left = [open(0)?];
    stand.wait_spliced(bed, &mut left)?;
    signal(keeper_of(&stand.truepeer)?, Signal::KILL)?;
    stand.truepeer.wait_for_log("has ended by itself: connections are served on, but sessions stay")?;
    let mut stays = open(1)?;
    for _ in 0..50 {
        echo(&mut stays, &[3; 3000])?;
        echo(&mut left[0], &[4; 3000])?;
    }
    stayed(&stand, bed)?;
    let list = stand.ask(bed, &["sessions"])?;
    ensure!(list.matches(" spliced ").count() == 1 && list.matches(" relaying ").count() == 1, "{list}");
    end(stays)?;
    left.into_iter().try_for_each(end)?;
    for port in [5000, 5001] {
        stand.truepeer.wait_for_log(&format!("client=203.0.113.7:{port} "))?;
    }
    ensure!(stand.truepeer.log().matches("close=\"finished\"").count() == 2, "{}", stand.truepeer.log());
    ensure!(
        stand.truepeer.log().matches("the repair keeper (process").count() == 1,
        "{}",
        stand.truepeer.log()
    );
    stand.truepeer.stop().map(drop)
}

/// No answer takes longer than the one wait of a second, with room for a busy machine.
fn a_keeper_that_stands_still_is_waited_for_once(bed: &Bed) -> Result<()> {
    const MOST: Duration = Duration::from_secs(15);
    let stand = Stand::make(bed, &[])?;
    let keeper = keeper_of(&stand.truepeer)?;
    signal(keeper, Signal::STOP)?;
    let begun = Instant::now();
    let mut streams = (0..20).map(open).collect::<Result<Vec<_>>>()?;
    for stream in &mut streams {
        (0..20).try_for_each(|_| echo(stream, &[3; 3000]))?;
    }
    ensure!(begun.elapsed() < MOST, "{:?}", begun.elapsed());
    stand.truepeer.wait_for_log("does not answer: connections are served on, but sessions stay")?;
    stayed(&stand, bed)?;
    // What it has not begun, it does not do any more.
    signal(keeper, Signal::CONT)?;
    wait_for("the keeper's end", || !fs::exists(format!("/proc/{keeper}")).unwrap_or(true))?;
    for stream in &mut streams {
        echo(stream, &[5; 3000])?;
    }
    streams.into_iter().try_for_each(end)?;
    stand.truepeer.stop().map(drop)
}

/// Its owner may have connected it without a handshake.
fn a_socket_under_repair_stays_there(bed: &Bed) -> Result<()> {
    const STAND: u8 = 1;
    const ASK_PEERS: u8 = 2;
    const SILENCE: u8 = 3;
    let stand = Stand::make(bed, &[])?;
    let line = line_of(&stand.truepeer)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = client::connect(listener.local_addr()?)?;
    let both = [one, listener.accept()?.0];
    let are_under_repair = |wanted| both.iter().all(|socket| is_under_repair(socket.as_fd()) == Ok(wanted));
    for kind in [STAND, ASK_PEERS] {
        ensure!(order(&line, kind, &both)?.is_none() && are_under_repair(false), "order {kind}");
    }
    ensure!(order(&line, SILENCE, &both)?.is_none() && are_under_repair(true));
    for kind in [STAND, ASK_PEERS] {
        let outcome = order(&line, kind, &both)?;
        ensure!(outcome == Some(Errno::ACCESS) && are_under_repair(true), "order {kind}: {outcome:?}");
    }
    stand.truepeer.stop().map(drop)
}

/// A copy of its socket to the repair keeper: the only one of its kind that is read with a time-out.
fn line_of(truepeer: &Running) -> Result<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(truepeer.pid()).context("0")?, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{}/fd", truepeer.pid()))? {
        let number: i32 = entry?.file_name().to_string_lossy().parse()?;
        let Ok(copy) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else { continue };
        let is_it = socket_type(&copy) == Ok(SocketType::SEQPACKET)
            && socket_timeout(&copy, Timeout::Recv).is_ok_and(|limit| limit.is_some());
        if is_it {
            return Ok(copy);
        }
    }
    bail!("it has no socket to a repair keeper")
}

/// Gives an order, and returns the error that comes back.
fn order(line: &OwnedFd, kind: u8, sockets: &[TcpStream; 2]) -> Result<Option<Errno>> {
    let mut message = [0; 56];
    message[4] = kind;
    let sockets = sockets.each_ref().map(|socket| socket.as_fd());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&sockets)));
    sendmsg(line, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
    wait_for("an answer", || {
        let mut polled = [PollFd::new(line, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())) == Ok(1)
    })?;
    let mut answer = [0; 28];
    ensure!(rustix::io::read(line, &mut answer)? == answer.len());
    let [.., a, b, c, d] = *answer.first_chunk::<8>().context("short")?;
    let errno = i32::from_ne_bytes([a, b, c, d]);
    Ok((errno != 0).then(|| Errno::from_raw_os_error(errno)))
}

fn sessions_that_are_leaving_outlive_a_killed_keeper(bed: &Bed) -> Result<()> {
    outlive(bed, 6)
}

/// Each other time, the keeper is stopped instead.
fn outlive(bed: &Bed, times: u64) -> Result<()> {
    let mut stand = Stand::make(bed, &[])?;
    let mut chance = Chance::new(17);
    for number in 0..times {
        let load = Load::default();
        let keeper = keeper_of(&stand.truepeer)?;
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let load = &load;
                scope.spawn(move || load.run(number * THREADS + thread));
            }
            thread::sleep(Duration::from_millis(200 + chance.below(100) as u64));
            let outcome = signal(keeper, if number % 2 == 0 { Signal::KILL } else { Signal::STOP });
            // Also through the second that a worker may wait.
            let right = load.right.load(Relaxed);
            let more = || load.right.load(Relaxed) >= right + 20;
            let outcome = outcome.and_then(|()| wait_for("more sessions", more));
            load.is_over.store(true, Relaxed);
            outcome
        })?;
        let (wrong, broken) = (load.wrong.load(Relaxed), load.broken.load(Relaxed));
        let right = load.right.load(Relaxed);
        eprintln!("{number}: {right} sessions were right, {broken} broke or hung, {wrong} got other bytes");
        ensure!(wrong == 0, "{}", stand.truepeer.log());
        // An order that the keeper had begun may leave the sockets of its session under repair; one order is
        // under way at a time.
        ensure!(broken <= 1, "{broken} sessions broke or hung: {}", stand.truepeer.log());
        if number % 2 == 1 {
            signal(keeper, Signal::KILL)?;
        }
        stand.truepeer.stop()?;
        let _ = fs::remove_file(&stand.admin);
        stand.truepeer = spliced(bed, &[]).start(bed)?;
    }
    Ok(())
}

const THREADS: u64 = 3;

/// Sessions of some dozen turns, one after the other.
#[derive(Default)]
struct Load {
    is_over: AtomicBool,
    right: AtomicUsize,
    /// They hung, or ended before all bytes had come back.
    broken: AtomicUsize,
    /// Other bytes came back than were sent, or more.
    wrong: AtomicUsize,
}

impl Load {
    fn run(&self, seed: u64) {
        let mut chance = Chance::new(seed);
        for number in 0.. {
            if self.is_over.load(Relaxed) {
                return;
            }
            let client = format!("203.0.113.{}:{}", 10 + seed % 200, 10_000 + number % 40_000);
            match client.parse().map_err(Into::into).and_then(|client| session(client, &mut chance)) {
                Ok(Bytes::AsSent) => self.right.fetch_add(1, Relaxed),
                Ok(Bytes::Other) => self.wrong.fetch_add(1, Relaxed),
                Err(error) => {
                    eprintln!("{client}: {error:#}");
                    self.broken.fetch_add(1, Relaxed)
                }
            };
        }
    }
}

/// What came back.
enum Bytes {
    AsSent,
    Other,
}

/// Fails if it hangs, or ends too early.
fn session(client: SocketAddr, chance: &mut Chance) -> Result<Bytes> {
    let mut stream = client::connect(DOOR)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&client::v2(client, SITE)?)?;
    for _ in 0..chance.below(20) {
        let sent = Pattern::bytes(1 + chance.below(8000));
        stream.write_all(&sent)?;
        if !comes_back(&mut stream, &sent)? {
            return Ok(Bytes::Other);
        }
        thread::sleep(Duration::from_millis(chance.below(6) as u64));
    }
    stream.shutdown(Shutdown::Write)?;
    let more = stream.read(&mut [0]).context("its end")?;
    Ok(if more == 0 { Bytes::AsSent } else { Bytes::Other })
}

/// Whether what comes back is a part of these bytes' beginning, or all. Fails if it is less than all.
fn comes_back(stream: &mut TcpStream, sent: &[u8]) -> Result<bool> {
    let (mut back, mut len) = (vec![0; sent.len()], 0);
    while len < sent.len() {
        let read = match stream.read(&mut back[len..]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error).context("it hangs"),
            other => other?,
        };
        len += read;
        if back[..len] != sent[..len] {
            return Ok(false);
        }
        ensure!(read > 0, "it ended after {len} of {} bytes", sent.len());
    }
    Ok(true)
}
