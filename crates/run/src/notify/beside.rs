//! A supervisor beside a program that has the library. It serves the programs of the family that lack it:
//! those started with an empty environment (Postfix, Dovecot, `env -i`), static ones, set-user-ID ones, and
//! system calls that bypass the C library.
//!
//! ```text
//! truepeer ──fork──▶ the supervisor, in the background: unmarked accept() ─▶ answered as in --via notify
//!    │ filter: unmarked accept(), listen(), getpeername()                  ▲
//!    └──exec──▶ the program, with the library: its calls are marked       │ and pass
//!                 └──▶ a program without the library ──────────────────────┘
//! ```
//! Both know the same names: the supervisor's table is the family's (`TRUEPEER_FAMILY`). The process that the
//! user started becomes the program, as by preload: same number, same parent, same signals.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{PTracer, Pid, Resource, WaitOptions, getpid, getrlimit, set_ptracer, setsid, waitpid};
use truepeer_handover::{ConnectSettings, Names, RunSettings};
use truepeer_session::Advise;
use truepeer_sys::inherit::close_inherited;
use truepeer_sys::limits;
use truepeer_sys::process::{Forked, SignalFd, end_now, fork, receive_descriptor, send_descriptor};
use truepeer_sys::seccomp::{Filter, Notifier};

use super::feasible::{Infeasible, permitted};
use super::relation::{Relation, detach_stdio};
use super::supervisor::Supervisor;
use super::telling::Telling;
use super::{accepting_calls, connecting_calls};
use truepeer_sys::tell;

/// The descriptors that the library keeps have high numbers, as in `ours.rs` of the library.
const HIGHEST: u64 = 1024;
const ROOM: u64 = 64;

/// All signals that a process can block, but those of its own faults.
const SIGNALS: [i32; 13] = [1, 2, 3, 10, 12, 13, 14, 15, 20, 21, 22, 25, 28];

/// What the library must know of its supervisor.
#[derive(Debug)]
pub(crate) struct Beside {
    supervisor: i32,
    names: Option<OwnedFd>,
}

impl Beside {
    /// Environment variables for the program.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("TRUEPEER_SUPERVISOR", self.supervisor.to_string())];
        if let Some(names) = &self.names {
            let text = format!("{} {}", getpid().as_raw_nonzero(), names.as_raw_fd());
            all.push(("TRUEPEER_FAMILY", text));
        }
        all
    }
}

/// There is no supervisor: what may happen then, and why.
#[derive(Debug, thiserror::Error)]
#[error(
    "a program that this one starts without the library (env -i, a static program) would take headers for \
    data, and no supervisor can be beside it: {0}; --via preload starts it without this warning"
)]
pub(crate) struct Alone(#[from] Infeasible);

/// For a program that accepts connections.
///
/// # Errors
/// The supervisor could not be started although the kernel has what it needs. `Ok(Err(_))`: it has not.
pub(crate) fn run(settings: &RunSettings, advise: Advise, log: &dyn Fn()) -> Result<Result<Beside, Alone>> {
    let (names, fd) = Names::create().context("no memory for the names of clients")?;
    let filter = accepting_calls(settings.destination, true);
    let served = stand(&filter, log, |notifier, relation| {
        let open_files = limits::raise_open_files().unwrap_or_else(|_| limits::open_files());
        let supervisor = Supervisor::new(settings, notifier, relation, names, open_files, advise)?;
        Ok(|| supervisor.run().map(drop))
    })?;
    served
        .map(|supervisor| Ok(Beside { supervisor, names: Some(inheritable(&fd)?) }))
        .map_or_else(|alone| Ok(Err(alone)), |beside: Result<Beside>| beside.map(Ok))
}

/// For a program that makes connections.
///
/// # Errors
/// As [`run`].
pub(crate) fn connect(sending: &ConnectSettings, log: &dyn Fn()) -> Result<Result<Beside, Alone>> {
    let served = stand(&connecting_calls(true), log, |notifier, relation| {
        let _ = limits::raise_open_files();
        let telling = Telling::new(sending, notifier, relation)?;
        Ok(|| telling.run().map(drop))
    })?;
    Ok(served.map(|supervisor| Beside { supervisor, names: None }))
}

/// Starts the supervisor, and puts this process under the filter. Returns the supervisor's number. `ready`
/// prepares what serves until nobody is left.
fn stand<S: FnOnce() -> Result<()>>(
    filter: &Filter,
    log: &dyn Fn(),
    ready: impl FnOnce(Notifier, Relation) -> Result<S>,
) -> Result<Result<i32, Alone>> {
    if let Err(why) = permitted() {
        return Ok(Err(why.into()));
    }
    let program = getpid();
    let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .context("socketpair")?;
    match fork()? {
        Forked::Child => {
            drop(here);
            // The program must not find a child that it has not started.
            if let Ok(Forked::Child) = fork()
                && let Err(error) = supervise(&there, program, log, ready)
            {
                tell!("truepeer: the supervisor ends: {error:#}");
                end_now(1);
            }
            end_now(0)
        }
        Forked::Parent(child) => {
            drop(there);
            let _ = waitpid(Some(child), WaitOptions::empty());
        }
    }
    let listener = match filter.install() {
        Ok(listener) => listener,
        Err(error) => return Ok(Err(Infeasible::of_install(&error).into())),
    };
    send_descriptor(here.as_fd(), listener.as_fd()).context("no supervisor")?;
    drop(listener);
    let supervisor = acknowledged(here.as_fd())?;
    if let Some(supervisor) = Pid::from_raw(supervisor) {
        // EINVAL without Yama: then no permission is needed.
        let _ = set_ptracer(PTracer::ProcessID(supervisor));
    }
    Ok(Ok(supervisor))
}

/// The supervisor's process: never returns to what its parent does.
fn supervise<S: FnOnce() -> Result<()>>(
    starter: &OwnedFd,
    program: Pid,
    log: &dyn Fn(),
    ready: impl FnOnce(Notifier, Relation) -> Result<S>,
) -> Result<()> {
    // A terminal's and a service manager's signals are for the program. This process ends after it.
    let _signals = SignalFd::open(&SIGNALS)?;
    let _ = setsid();
    let _ = std::env::set_current_dir("/");
    close_inherited()?;
    let Some(listener) = receive_descriptor(starter.as_fd())? else { return Ok(()) };
    detach_stdio()?;
    log();
    let serve = ready(Notifier::new(listener), Relation::beside(program)?)?;
    send(starter, &getpid().as_raw_nonzero().get().to_ne_bytes(), SendFlags::NOSIGNAL)?;
    serve()
}

fn acknowledged(starter: BorrowedFd<'_>) -> Result<i32> {
    let mut number = [0; 4];
    let (count, _) = recv(starter, &mut number, RecvFlags::WAITALL)?;
    ensure!(count == number.len(), "the supervisor could not be started");
    Ok(i32::from_ne_bytes(number))
}

/// A duplicate that the program and its family inherit, beyond the numbers that programs use.
fn inheritable(fd: &OwnedFd) -> Result<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowest = i32::try_from(limit.min(HIGHEST).saturating_sub(ROOM)).unwrap_or(3);
    let kept = fcntl_dupfd_cloexec(fd, lowest).or_else(|_| fcntl_dupfd_cloexec(fd, 3))?;
    fcntl_setfd(&kept, FdFlags::empty())?;
    Ok(kept)
}
