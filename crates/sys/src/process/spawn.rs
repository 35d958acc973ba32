//! Starts a program under a seccomp filter whose notifications arrive here.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

use super::signals::{SignalFd, ignore_pipe_as_before, set_mask};
use crate::error::{CallError, Named};
use crate::seccomp::{Filter, Notifier};

/// The command to run.
#[derive(Clone)]
pub struct SpawnCommand {
    file: CString,
    argv: Vec<CString>,
    /// `NAME=value`, zero-terminated.
    environment: Vec<Vec<u8>>,
    /// Where the number of the program goes, which is known only after the fork: the index of an entry, and
    /// the length of its name with `=`.
    own_number: Vec<(usize, usize)>,
    mask: Option<libc::sigset_t>,
}

/// A supervised program.
#[derive(Debug)]
pub struct Supervised {
    /// Its process, a child of this one. It is killed if the thread that started it ends.
    pub child: Child,
    /// The calls of the program and its children.
    pub notifier: Notifier,
}

/// Room for a process id, which is at most 2²².
const DIGITS: usize = 10;

impl SpawnCommand {
    /// A command that runs `file` without searching PATH. `words` are its name and arguments. The environment
    /// is this process's.
    ///
    /// # Errors
    /// EINVAL for a zero byte in an argument.
    pub fn new(file: &Path, words: Vec<OsString>) -> io::Result<Self> {
        let argv = words.into_iter().map(|word| CString::new(word.into_vec()));
        let entry = |(name, value): (OsString, OsString)| {
            [name.into_vec(), b"=".to_vec(), value.into_vec(), vec![0]].concat()
        };
        Ok(Self {
            file: CString::new(file.as_os_str().as_encoded_bytes())?,
            argv: argv.collect::<Result<_, _>>()?,
            environment: std::env::vars_os().map(entry).collect(),
            own_number: Vec::new(),
            mask: None,
        })
    }

    /// Variables that name this process, such as LISTEN_PID, will name the program. Others stay.
    #[must_use]
    pub fn with_own_number_in(mut self, names: &[&str]) -> Self {
        let own = getpid().as_raw_nonzero();
        for name in names {
            let now = format!("{name}={own}\0").into_bytes();
            if let Some(index) = self.environment.iter().position(|entry| *entry == now) {
                self.environment[index].resize(name.len() + 1 + DIGITS + 1, 0);
                self.own_number.push((index, name.len() + 1));
            }
        }
        self
    }

    /// Changes a variable, if it is set.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &OsStr) -> Self {
        let start = format!("{name}=").into_bytes();
        if let Some(entry) = self.environment.iter_mut().find(|entry| entry.starts_with(&start)) {
            *entry = [start.as_slice(), value.as_encoded_bytes(), b"\0"].concat();
        }
        self
    }

    /// Gives the program the signal mask from before it.
    #[must_use]
    pub fn with_signals_of(self, signals: &SignalFd) -> Self {
        Self { mask: Some(signals.mask_before()), ..self }
    }

    /// Starts it. Call it on a thread that lives as long as the supervisor: the kernel kills the program when
    /// that thread ends for any reason, so no call waits for an answer that never comes.
    ///
    /// # Errors
    /// The reason why the program could not be started: ENOENT, EACCES, ENOEXEC; or the reason why the filter
    /// could not be installed, see [`Filter::install`].
    pub fn start(mut self, filter: Filter) -> Result<Supervised, CallError> {
        let (here, there) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .named("socketpair")?;
        let parent = getpid();
        let argv = Pointers::to(self.argv.iter().map(|word| word.as_ptr()));
        let environment = Pointers::to(self.environment.iter().map(|entry| entry.as_ptr().cast()));
        // The name is never used: the closure below executes the program.
        let mut command = std::process::Command::new("exec");
        let become_the_program = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::BrokenPipe.into()); // it has already ended
            }
            let listener = filter.install()?;
            send_descriptor(there.as_fd(), listener.as_fd())?;
            drop(listener);
            self.mask.as_ref().map(set_mask);
            ignore_pipe_as_before();
            self.write_own_number();
            Err(self.exec(&argv, &environment))
        };
        // SAFETY: between fork and exec only system calls are made, and only memory is used that was
        // allocated before.
        unsafe { command.pre_exec(become_the_program) };
        let child = command.spawn().named("start")?;
        // Dropping it closes this process's copy of the socket's other end; exec closes the child's.
        drop(command);
        Ok(Supervised { child, notifier: Notifier::new(receive(here.as_fd()).named("recvmsg")?) })
    }

    /// Without allocating: the entries have room already.
    fn write_own_number(&mut self) {
        let mut digits = [0; DIGITS];
        let mut number = getpid().as_raw_nonzero().get();
        let mut first = DIGITS;
        while number > 0 {
            first -= 1;
            digits[first] = b'0' + u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
        }
        let digits = &digits[first..];
        for &(index, start) in &self.own_number {
            let entry = &mut self.environment[index];
            entry[start..][..digits.len()].copy_from_slice(digits);
            entry[start + digits.len()] = 0;
        }
    }

    /// Executes the program. Returns only on failure.
    fn exec(&self, argv: &Pointers, environment: &Pointers) -> io::Error {
        // SAFETY: both arrays end with a null pointer, and their entries point to zero-terminated strings on
        // the heap that `self` owns and has not changed.
        unsafe { libc::execvpe(self.file.as_ptr(), argv.0.as_ptr(), environment.0.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// Pointers to strings, with a null pointer at the end.
struct Pointers(Vec<*const libc::c_char>);

// SAFETY: nothing writes through the pointers, and the strings move with them into the closure that owns
// both.
unsafe impl Send for Pointers {}
// SAFETY: the pointers are only read, and nothing writes to the strings.
unsafe impl Sync for Pointers {}

impl Pointers {
    fn to(strings: impl Iterator<Item = *const libc::c_char>) -> Self {
        Self(strings.chain([std::ptr::null()]).collect())
    }
}

/// Sends a descriptor through a unix socket. Allocates nothing, so that it may be called between fork and
/// exec.
///
/// # Errors
/// Those of sendmsg(2).
pub fn send_descriptor(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives what [`send_descriptor`] has sent; `None` if the other end was closed instead.
///
/// # Errors
/// Those of recvmsg(2).
pub fn receive_descriptor(socket: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    match receive(socket) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        received => received.map(Some),
    }
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
