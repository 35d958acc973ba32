//! Starting a program under a seccomp filter whose notifications come here.

use std::ffi::{CString, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::signals::{SignalDoor, set_mask};
use crate::seccomp::{Filter, MARK, Notifier};
use crate::{CallError, Named};

/// What is to be run.
#[derive(Clone)]
pub struct SpawnCommand {
    file: CString,
    argv: Vec<CString>,
    /// `NAME=value`, zero-terminated.
    environment: Vec<Vec<u8>>,
    /// Which of them is LISTEN_PID, if listening sockets were passed to this process: they go to the program, whose
    /// number is known only after the fork.
    listen_pid: Option<usize>,
    mask: Option<libc::sigset_t>,
}

/// A program under supervision.
#[derive(Debug)]
pub struct Supervised {
    /// Its process, child of this one; killed if the thread that started it ends.
    pub child: Child,
    /// What it, and all that it starts, ask.
    pub notifier: Notifier,
}

/// What the entry needs room for; the number of a process is at most 2²².
const LISTEN_PID: &[u8] = b"LISTEN_PID=";
const DIGITS: usize = 10;
/// As shells say it; nobody looks.
const NOT_EXECUTED: libc::c_int = 127;

impl SpawnCommand {
    /// `file` is run as it stands, without a look at PATH; `words` are its name and arguments. The environment is this
    /// process's.
    ///
    /// # Errors
    /// EINVAL for a zero byte in a word.
    pub fn new(file: &Path, words: Vec<OsString>) -> io::Result<Self> {
        let argv = words.into_iter().map(|word| CString::new(word.into_vec()));
        let entry = |(name, value): (OsString, OsString)| {
            [name.into_vec(), b"=".to_vec(), value.into_vec(), vec![0]].concat()
        };
        Ok(Self {
            file: CString::new(file.as_os_str().as_encoded_bytes())?,
            argv: argv.collect::<Result<_, _>>()?,
            environment: std::env::vars_os().map(entry).collect(),
            listen_pid: None,
            mask: None,
        })
    }

    /// Passes so many listening sockets on to it that a service manager has passed to us: tells it that they are for it.
    #[must_use]
    pub fn with_passed_sockets(mut self, count: u32) -> Self {
        let entry = self.environment.iter_mut().position(|entry| entry.starts_with(LISTEN_PID));
        self.listen_pid = entry.filter(|_| count > 0);
        if let Some(entry) = self.listen_pid.and_then(|index| self.environment.get_mut(index)) {
            entry.resize(LISTEN_PID.len() + DIGITS + 1, 0);
        }
        self
    }

    /// Lets the program have the signals that came through this door.
    #[must_use]
    pub fn with_signals_of(self, door: &SignalDoor) -> Self {
        Self { mask: Some(door.mask_before()), ..self }
    }

    /// Starts it. Call it on a thread that lives as long as the supervisor: the kernel kills the program when that thread
    /// ends, whatever ended it, so that nobody waits for answers that never come.
    ///
    /// # Errors
    /// What kept the program from being started: ENOENT, EACCES, ENOEXEC; or the filter from being installed, see
    /// [`Filter::install`].
    pub fn start(mut self, filter: Filter) -> Result<Supervised, CallError> {
        let (here, there) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .named("socketpair")?;
        let parent = getpid();
        let argv = Pointers::to(self.argv.iter().map(|word| word.as_ptr()));
        let environment = Pointers::to(self.environment.iter().map(|entry| entry.as_ptr().cast()));
        let mut command = std::process::Command::new("exec"); // never looked at: the closure below runs the program
        let become_the_program = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into()); // it has ended already
            }
            let listener = filter.install()?;
            pass_on(there.as_fd(), b"x", Some(listener.as_fd()))?;
            drop(listener);
            self.mask.as_ref().map(set_mask);
            self.write_listen_pid();
            let error = self.exec(&argv, &environment).raw_os_error().unwrap_or_default();
            // Not by returning it: that would be a write(), which may be one of the calls that are asked about.
            let _ = pass_on(there.as_fd(), &error.to_ne_bytes(), None);
            // SAFETY: ends this process, a copy that has nothing to be put in order.
            unsafe { libc::_exit(NOT_EXECUTED) }
        };
        // SAFETY: between fork and exec only system calls are made, and memory is used that was allocated before.
        unsafe { command.pre_exec(become_the_program) };
        let mut child = command.spawn().named("start")?;
        // With it goes this process's copy of the socket's other end, which is closed there by exec.
        drop(command);
        let notifier = Notifier::new(receive(here.as_fd()).named("recvmsg")?);
        let mut error = [0; 4];
        match rustix::net::recv(here.as_fd(), &mut error, RecvFlags::WAITALL).named("recv")? {
            (0, _) => Ok(Supervised { child, notifier }),
            _ => {
                let _ = child.wait();
                Err(Errno::from_raw_os_error(i32::from_ne_bytes(error))).named("exec")
            }
        }
    }

    fn write_listen_pid(&mut self) {
        let Some(entry) = self.listen_pid.and_then(|index| self.environment.get_mut(index)) else { return };
        let mut digits = [0; DIGITS];
        let mut number = getpid().as_raw_nonzero().get();
        let mut first = DIGITS;
        while number > 0 {
            first -= 1;
            digits[first] = b'0' + u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
        }
        let digits = &digits[first..];
        entry[..LISTEN_PID.len()].copy_from_slice(LISTEN_PID);
        entry[LISTEN_PID.len()..][..digits.len()].copy_from_slice(digits);
        entry[LISTEN_PID.len() + digits.len()] = 0;
    }

    /// Becomes the program; returns only if it can't.
    fn exec(&self, argv: &Pointers, environment: &Pointers) -> io::Error {
        // SAFETY: both arrays end with a null pointer and lead to zero-terminated strings that `self` owns and has not
        // moved since (they are on the heap).
        unsafe { libc::execvpe(self.file.as_ptr(), argv.0.as_ptr(), environment.0.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// Pointers to strings, and a null pointer at the end.
struct Pointers(Vec<*const libc::c_char>);

// SAFETY: nobody writes through them, and what they lead to goes where they go: into the closure that owns the strings.
unsafe impl Send for Pointers {}
// SAFETY: the pointers are only read, and nobody writes to the strings that they lead to.
unsafe impl Sync for Pointers {}

impl Pointers {
    fn to(strings: impl Iterator<Item = *const libc::c_char>) -> Self {
        Self(strings.chain([std::ptr::null()]).collect())
    }
}

/// `struct cmsghdr` with a descriptor behind it, as CMSG_DATA finds it.
#[repr(C)]
struct Rights {
    header: libc::cmsghdr,
    descriptor: RawFd,
}

/// Sends bytes, and a descriptor perhaps, through a socket; allocates nothing. Marked, since the filter is there already.
fn pass_on(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: both structs are numbers and pointers, for which zero is a value.
    let (mut rights, mut message): (Rights, libc::msghdr) = unsafe { std::mem::zeroed() };
    rights.descriptor = descriptor.map_or(-1, |descriptor| descriptor.as_raw_fd());
    rights.header.cmsg_level = libc::SOL_SOCKET;
    rights.header.cmsg_type = libc::SCM_RIGHTS;
    // SAFETY: this computes a length.
    rights.header.cmsg_len = unsafe { libc::CMSG_LEN(4) }.try_into().unwrap_or_default();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if descriptor.is_some() {
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = size_of::<Rights>();
    }
    let marked = u64::from(MARK) << 32;
    // SAFETY: the message leads to locals that outlive the call, which only reads them; `Rights` has the layout and, by its
    // alignment, the size that CMSG_SPACE(4) asks for.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const message, marked) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let buffer = &mut [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, buffer, &mut message, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = message.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.next().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
