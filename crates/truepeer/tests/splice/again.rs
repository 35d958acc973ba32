//! A client that comes back with its address and port: the rest of an ended session that had left user space
//! hinders no new session, and a new session disturbs no open one.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Running, Test, client, kernel_counter, tests};

use crate::stand::{BACKEND, DOOR, SITE, Stand, echo, open, proxy, spliced};

/// A client that is hindered waits for 18 s and more.
const LATE: Duration = Duration::from_secs(15);

/// A SYN, or the end of a sender that has ended second, is repeated for the third time after more than that.
/// Load may lose it twice.
const THIRD_REPETITION: Duration = Duration::from_millis(6500);

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_client_comes_back_with_its_port_after_an_orderly_end,
        a_client_comes_back_with_its_port_after_a_reset,
        a_client_comes_back_with_its_port_after_kill_9,
        a_client_comes_back_with_its_port_to_a_truepeer_that_does_not_splice,
        a_port_of_a_living_session_is_in_conflict,
        a_port_of_a_living_session_is_refused_if_so_configured,
    ];
    for (name, load) in [
        ("ports_are_used_again_at_once_beside_long_sessions", Load { senders: 8, rounds: 30 }),
        ("ports_are_used_again_20_000_times_beside_long_sessions", Load { senders: 25, rounds: 800 }),
    ] {
        let test = Test::new(name, move |bed: &Bed| beside_long_sessions(bed, load));
        all.push(if load.rounds > 100 { test.time_limit(Duration::from_secs(3600)).long() } else { test });
    }
    all
}

fn end_orderly(mut stream: TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    Ok(())
}

/// The ports of this client's connections to the backend that have ended.
fn ports(backend: &Running) -> Vec<u16> {
    let log = backend.log();
    let ended = log.lines().filter(|line| line.contains(" eof ") || line.contains(" reset "));
    let seen = ended.filter_map(|line| line.split("203.0.113.7:").nth(1));
    seen.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

/// A session of this client that is served soon, from its own port.
fn comes_back(stand: &Stand) -> Result<TcpStream> {
    let begun = Instant::now();
    let stream = open(0).context("the client is not served again")?;
    ensure!(begun.elapsed() < LATE, "served after {:?}", begun.elapsed());
    let log = stand.truepeer.log();
    ensure!(!log.contains("203.0.113.7:0"), "from another port: {log}");
    Ok(stream)
}

fn a_client_comes_back_with_its_port_after_an_orderly_end(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    for wait in [0, 0, 7] {
        let mut stream = comes_back(&stand)?;
        stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
        end_orderly(stream)?;
        thread::sleep(Duration::from_secs(wait));
    }
    end_orderly(comes_back(&stand)?)?;
    stand.backend.wait_state("four ends", || ports(&stand.backend) == [5000; 4])
}

fn a_client_comes_back_with_its_port_after_a_reset(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    client::reset(stream)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    end_orderly(comes_back(&stand)?)?;
    stand.backend.wait_state("two ends", || ports(&stand.backend) == [5000; 2])
}

/// The session ends while no truepeer runs.
fn left_behind(bed: &Bed, next: &[&str]) -> Result<Stand> {
    let stand = Stand::make(bed, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    stand.truepeer.signal(Signal::KILL)?;
    stand.truepeer.wait_end()?;
    end_orderly(stream)?;
    let _ = fs::remove_file(&stand.admin);
    let next = if next.is_empty() { proxy(bed, &["--splice", "off"]) } else { spliced(bed, &[]) };
    let truepeer = next.start(bed)?;
    Ok(Stand { truepeer, ..stand })
}

fn a_client_comes_back_with_its_port_after_kill_9(bed: &Bed) -> Result<()> {
    let stand = left_behind(bed, &["--splice"])?;
    let mut stream = comes_back(&stand)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    end_orderly(stream)?;
    stand.backend.wait_state("two ends", || ports(&stand.backend) == [5000; 2])
}

fn a_client_comes_back_with_its_port_to_a_truepeer_that_does_not_splice(bed: &Bed) -> Result<()> {
    let stand = left_behind(bed, &[])?;
    end_orderly(comes_back(&stand)?)?;
    stand.backend.wait_state("two ends", || ports(&stand.backend) == [5000; 2])
}

fn a_port_of_a_living_session_is_in_conflict(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let begun = Instant::now();
    let second = open(0).context("the second session")?;
    ensure!(begun.elapsed() < LATE, "served after {:?}", begun.elapsed());
    end_orderly(second)?;
    stand.backend.wait_state("an end", || !ports(&stand.backend).is_empty())?;
    ensure!(ports(&stand.backend) != [5000], "both have one port");
    for _ in 0..10 {
        echo(&mut stream, b"undisturbed")?;
    }
    end_orderly(stream)?;
    stand.backend.wait_state("two ends", || ports(&stand.backend).contains(&5000))
}

fn a_port_of_a_living_session_is_refused_if_so_configured(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &["--on-conflict", "refuse"])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let begun = Instant::now();
    if open(0).is_ok() {
        bail!("served twice from one port");
    }
    ensure!(begun.elapsed() < LATE, "refused after {:?}", begun.elapsed());
    stand.truepeer.wait_for_log("are in use")?;
    echo(&mut stream, b"undisturbed")
}

/// Asks the backend for `bytes` bytes, from this port of the sender.
fn ask_for(bytes: u64, sender: u16, client: &str) -> Result<TcpStream> {
    let mut begun = Instant::now();
    let mut stream = loop {
        let tried = Instant::now();
        match client::connect_from(format!("127.0.0.9:{sender}"), DOOR) {
            Ok(stream) => {
                begun = tried;
                break stream;
            }
            // The sender's own socket waits for the last acknowledgement.
            Err(error) if is_busy(&error) && begun.elapsed() < THIRD_REPETITION => {
                thread::sleep(Duration::from_millis(1))
            }
            Err(error) => return Err(error),
        }
    };
    let connected = begun.elapsed();
    ensure!(connected < THIRD_REPETITION, "{client}: the sender was connected after {connected:?}");
    stream.write_all(&[client::v2(client, SITE)?, format!("{bytes}\n").into_bytes()].concat())?;
    stream.read_exact(&mut [0])?;
    ensure!(begun.elapsed() < LATE, "{client} was served after {:?}", begun.elapsed());
    Ok(stream)
}

fn is_busy(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| matches!(cause.kind(), ErrorKind::AddrNotAvailable | ErrorKind::AddrInUse))
}

#[derive(Debug, Clone, Copy)]
struct Load {
    /// Each has one port and uses it again at once.
    senders: u16,
    /// Sessions of each.
    rounds: u16,
}

/// Each sender's sessions that have to leave, at least.
const LEAVE: usize = 5;

/// The backend ends first, so truepeer's side of the sender's connection waits out the last segments.
fn beside_long_sessions(bed: &Bed, load: Load) -> Result<()> {
    const BYTES: u64 = 2 << 20;
    mount_bpf_in_place()?;
    let _backend = Behaviour::SlowSource.start(bed, &[BACKEND])?;
    let truepeer = spliced(bed, &[]).start(bed)?;
    let long = (0..20).map(|n| ask_for(1 << 40, 30_000 + n, &format!("203.0.113.1:{}", 2000 + n)));
    let long = long.collect::<Result<Vec<_>>>()?;
    let before = kernel_counter("TCPSynRetrans")?;
    let ask_once = |sender: u16, round: u16| -> Result<()> {
        let client = format!("203.0.113.{sender}:{}", 2000 + round);
        let mut stream = ask_for(BYTES, 40_000 + sender, &client)?;
        let rest = io::copy(&mut stream, &mut io::sink()).with_context(|| client.clone())?;
        ensure!(rest == BYTES - 1, "{client} got {rest} of {} bytes", BYTES - 1);
        Ok(())
    };
    let rounds = |sender: u16| -> Result<usize> {
        (0..load.rounds).try_for_each(|round| ask_once(sender, round))?;
        // The busier the machine, the fewer leave before they end.
        for round in load.rounds.. {
            let left = have_left(&truepeer, sender);
            if left >= LEAVE {
                return Ok(left);
            }
            ask_once(sender, round)?;
        }
        bail!("none left in {} rounds", u16::MAX)
    };
    let left = thread::scope(|scope| {
        let senders: Vec<_> =
            (10..10 + load.senders).map(|sender| scope.spawn(move || rounds(sender))).collect();
        let join = |sender: thread::ScopedJoinHandle<'_, Result<usize>>| {
            sender.join().map_err(|_| anyhow::anyhow!("a panic"))?
        };
        senders.into_iter().map(join).sum::<Result<usize>>()
    })?;
    drop(long);
    let repeated = kernel_counter("TCPSynRetrans")? - before;
    // Other load on the machine makes the loopback lose some.
    let all = usize::from(load.senders) * usize::from(load.rounds);
    eprintln!("{left} of {all} sessions have left, {repeated} SYNs were repeated");
    Ok(())
}

/// Short sessions of this sender that have left user space.
fn have_left(truepeer: &Running, sender: u16) -> usize {
    let client = format!("client=203.0.113.{sender}:");
    let log = truepeer.log();
    log.lines().filter(|line| line.contains("has left user space") && line.contains(&client)).count()
}
