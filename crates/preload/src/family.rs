//! The objects that the processes of one program share: the table of names, and the queue of connections
//! whose header came late.
//!
//! The first process creates both and describes them in its environment. Forked children inherit them. An
//! executed program finds them by the environment; or, if the descriptors have moved, in its own `/proc`
//! directory; or, for the names, through the `/proc` directory of the first process, of its parent, or of the
//! supervisor. What a program closes before it executes another is not inherited: the other program may
//! belong to another user, whom the kernel also keeps out of `/proc`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::{env, fs};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{getpid, getppid};
use truepeer_handover::{NO_CENSUS, Names, SocketDiag, WakeUp};

use crate::movable::Movable;
use crate::ours::{adopt, inspect};
use crate::ready::Ready;
use crate::{ours, say, supervised};

/// `PID NAMES IN OUT`: the process that created them, and its descriptors. `PID NAMES` if truepeer has
/// created the table for its supervisor: the first process with the library adds the queue.
const VARIABLE: &str = "TRUEPEER_FAMILY";

/// The shared objects.
#[derive(Debug)]
pub(crate) struct ProcessFamily {
    pub(crate) names: Names,
    /// The environment variable for the programs that this one executes.
    names_fd: Movable,
    pub(crate) ready: Ready,
    pub(crate) wake: WakeUp,
}

impl ProcessFamily {
    /// Joins the family that the environment names, or founds one.
    pub(crate) fn join() -> Result<Self, Errno> {
        match env::var(VARIABLE).ok().and_then(|text| Self::find(&text)) {
            Some(family) => Ok(family),
            None => Self::found(),
        }
    }

    fn found() -> Result<Self, Errno> {
        let (names, fd) = Names::create()?;
        if !SocketDiag::new().is_answered() {
            say::always(format_args!("{NO_CENSUS}"));
        }
        Self::begin(names, ours::keep(fd, true)?)
    }

    /// Adds the queue to a new table.
    fn begin(names: Names, fd: OwnedFd) -> Result<Self, Errno> {
        let ready = Ready::create()?;
        let [(into, into_inode), (out, out_inode)] = ready.ends();
        names.set_queue([into_inode, out_inode]);
        let text = format!("{} {} {into} {out}", getpid().as_raw_nonzero(), fd.as_raw_fd());
        // SAFETY: setting a variable requires that no other thread reads the environment. This runs once,
        // while the library is loaded: before main(), with one thread.
        unsafe { env::set_var(VARIABLE, text) };
        Ok(Self::of(names, Some(fd), ready))
    }

    fn of(names: Names, fd: Option<OwnedFd>, ready: Ready) -> Self {
        let names_fd = fd.map_or_else(Movable::nobody, Movable::holding);
        Self { wake: names.wake_up(), names, names_fd, ready }
    }

    fn find(text: &str) -> Option<Self> {
        let numbers: Vec<RawFd> = text.split(' ').map_while(|word| word.parse().ok()).collect();
        let (pid, names_fd, [into, out]) = match *numbers.as_slice() {
            [pid, names_fd] => (pid, names_fd, NO_QUEUE),
            [pid, names_fd, into, out] => (pid, names_fd, [into, out]),
            _ => return None,
        };
        if let Some((names, fd)) = own_names(names_fd) {
            let [into_inode, out_inode] = names.queue();
            if into_inode == 0 {
                return Self::begin(names, adopt(fd)).ok();
            }
            let ready = Ready::inherited((into, into_inode), (out, out_inode)).or_else(|| {
                let moved = |inode| Some((number_of(&format!("socket:[{inode}]"))?, inode));
                Ready::inherited(moved(into_inode)?, moved(out_inode)?)
            });
            return Some(Self::of(names, Some(adopt(fd)), ready.or_else(|| Ready::create().ok())?));
        }
        // The descriptors were closed on the way here. A program that doesn't accept connections needs only
        // the names.
        let parent = getppid().map_or(0, |parent| parent.as_raw_nonzero().get());
        // A session of sshd may outlive its listener. The supervisor outlives all of them.
        let names =
            [pid, parent, supervised::supervisor()].into_iter().find_map(|pid| names_of(pid, names_fd))?;
        Some(Self::of(names, None, Ready::create().ok()?))
    }

    /// If one of the shared descriptors has this number, moves it to another.
    ///
    /// # Errors
    /// Those of [`Movable::move_from`].
    pub(crate) fn move_from(&self, taken: RawFd) -> Result<bool, Errno> {
        Ok(self.ready.move_from(taken)? || self.names_fd.move_from(taken)?)
    }
}

/// No descriptor has this number.
const NO_QUEUE: [RawFd; 2] = [-1, -1];

/// The inherited table, and its descriptor.
fn own_names(told: RawFd) -> Option<(Names, RawFd)> {
    let open = |fd| Some((inspect(fd, |fd| Names::open(fd).ok())?, fd));
    open(told).or_else(|| open(number_of(NAMES_LINK)?))
}

/// The table of another process that this one may inspect.
fn names_of(pid: i32, told: RawFd) -> Option<Names> {
    let table = |number: &str| {
        let fd =
            open(format!("/proc/{pid}/fd/{number}"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Names::open(fd.as_fd()).ok()
    };
    table(&told.to_string()).or_else(|| table(&number_in(&format!("/proc/{pid}/fd"), NAMES_LINK)?))
}

/// The target of a descriptor in `/proc`.
const NAMES_LINK: &str = "/memfd:truepeer-names (deleted)";

fn number_of(link: &str) -> Option<RawFd> {
    number_in("/proc/self/fd", link)?.parse().ok()
}

/// The number of the descriptor with this target.
fn number_in(dir: &str, link: &str) -> Option<String> {
    fs::read_dir(dir).ok()?.filter_map(Result::ok).find_map(|entry| {
        let leads_there = fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link);
        leads_there.then(|| entry.file_name().to_string_lossy().into_owned())
    })
}
