//! Many clients at once.

use std::env;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;

/// The first argument that turns a test binary into a part of a crowd.
const AS_CROWD: &str = "__crowd";
/// The most connections of one process: some machines have a hard limit of 20 000 descriptors.
const MOST_EACH: usize = 5000;

/// Starts `count` connections to an IPv4 address and sends nothing on them. They end when the handles are
/// dropped. They come from many loopback addresses, to have enough ports, and from several processes, to have
/// enough descriptors.
pub fn gather(bed: &Bed, count: usize, to: impl Display) -> anyhow::Result<Vec<Running>> {
    gather_saying(bed, count, to, "")
}

/// The same; each sends `text` once it is connected, and nothing after it.
pub fn gather_saying(bed: &Bed, count: usize, to: impl Display, text: &str) -> anyhow::Result<Vec<Running>> {
    let exe = env::current_exe().context("the path of this program")?;
    let mut crowd = Vec::new();
    for first in (0..count).step_by(MOST_EACH) {
        let numbers = [first, (first + MOST_EACH).min(count)].map(|number| number.to_string());
        let program = Program::new(&exe).arg(AS_CROWD).args(numbers).arg(to.to_string()).arg(text);
        crowd.push(program.start(bed)?);
    }
    crowd.iter().try_for_each(|part| part.wait_for_log("all begun"))?;
    Ok(crowd)
}

/// If this process was started as a part of a crowd, runs it until it is killed.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [role, first, end, to, text] = args.as_slice() else { return None };
    if role != AS_CROWD {
        return None;
    }
    let held = (|| -> anyhow::Result<Vec<Socket>> {
        let to: SocketAddr = to.parse()?;
        let held: Vec<Socket> = (first.parse()?..end.parse()?)
            .map(|n| Ok(begin_to_connect(n, to)?))
            .collect::<anyhow::Result<_>>()?;
        for mut socket in held.iter().filter(|_| !text.is_empty()) {
            // The write waits for the handshake.
            socket.set_nonblocking(false)?;
            socket.write_all(text.as_bytes())?;
        }
        Ok(held)
    })();
    match held {
        Ok(_held) => {
            println!("all begun");
            loop {
                thread::park();
            }
        }
        Err(error) => {
            eprintln!("crowd: {error:#}");
            Some(ExitCode::FAILURE)
        }
    }
}

/// Connects without waiting for the result, from an address that few numbers share.
pub fn begin_to_connect(n: usize, to: SocketAddr) -> io::Result<Socket> {
    const FROM_ONE_ADDRESS: usize = 250;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    let [.., high, low] = (n / FROM_ONE_ADDRESS + 256).to_be_bytes();
    socket.bind(&SocketAddr::from(([127, 1, high, low], 0)).into())?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}

/// The address of a different client for each number: `nth_client(0)`, `nth_client(1)`, … below five million.
///
/// The ports are below those that the kernel chooses from (32768 to 60999). While a socket is bound to a
/// port, in TIME_WAIT too, the kernel gives this port to no connect(), whatever the addresses are. Truepeer's
/// sockets are bound to clients' ports, so the test's own connections would find none.
///
/// # Panics
/// Above that, which is a mistake in the test.
pub fn nth_client(n: usize) -> SocketAddr {
    const PORTS: usize = 22_000;
    let host = u8::try_from(n / PORTS + 1).expect("below five million clients");
    let port = u16::try_from(10_000 + n % PORTS).expect("below 32 000");
    SocketAddr::new(Ipv4Addr::new(203, 0, 113, host).into(), port)
}

/// Runs `work(0..count)` on a few threads in the calling thread's network namespace. The first failure ends
/// all.
pub fn in_parallel(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return Ok(());
            }
            if let Err(error) = work(n) {
                next.store(count, Ordering::Relaxed); // the other threads stop, too
                return Err(error.context(format!("number {n}")));
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let outcomes = workers.into_iter().map(thread::ScopedJoinHandle::join);
        outcomes
            .into_iter()
            .try_for_each(|outcome| outcome.map_err(|_| anyhow::anyhow!("a worker panicked"))?)
    })
}
