//! Namespaces: handles to network namespaces, and the mount and user namespaces that private beds need.
//!
//! A network namespace belongs to a *thread*. So [`NetNs::run`] runs the closure on a separate thread instead
//! of moving the caller there and back: a caller that fails half-way could otherwise stay in the wrong
//! namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::{CallError, Named};

/// This thread's own network namespace; `/proc/self` would be the main thread's.
const OWN_NETNS: &str = "/proc/thread-self/ns/net";

/// A handle to a network namespace. The kernel removes the namespace and everything configured in it with the
/// last handle and the last thread in it.
#[derive(Debug, Clone)]
pub struct NetNs {
    handle: Arc<OwnedFd>,
}

impl NetNs {
    /// Creates an empty namespace (its `lo` is down). Needs CAP_SYS_ADMIN.
    pub fn create() -> Result<Self, CallError> {
        on_own_thread(Self::create_and_enter)
    }

    /// Creates an empty namespace and moves the calling thread into it permanently.
    pub fn create_and_enter() -> Result<Self, CallError> {
        unshare(UnshareFlags::NEWNET, "unshare(CLONE_NEWNET)")?;
        Self::current()
    }

    /// The namespace that the calling thread is in.
    pub fn current() -> Result<Self, CallError> {
        Self::open(Path::new(OWN_NETNS))
    }

    /// Opens a namespace by a file: `/run/netns/NAME`, `/proc/PID/ns/net`.
    pub fn open(path: &Path) -> Result<Self, CallError> {
        let file = File::open(path).named("open(namespace)")?;
        Ok(Self { handle: Arc::new(file.into()) })
    }

    /// Moves the calling thread into this namespace permanently. Threads and programs that it starts from now
    /// on are in it, too.
    pub fn enter(&self) -> Result<(), CallError> {
        move_into_link_name_space(self.handle.as_fd(), Some(LinkNameSpaceType::Network))
            .named("setns(CLONE_NEWNET)")
    }

    /// Runs `work` on a separate thread in this namespace and waits for it. A panic continues in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, CallError> {
        on_own_thread(|| {
            self.enter()?;
            Ok(work())
        })
    }

    /// The kernel's identifier of the namespace.
    pub fn id(&self) -> io::Result<u64> {
        Ok(File::from(self.handle.try_clone()?).metadata()?.ino())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Runs `work` on a separate thread in the cgroup namespace of a process: paths of cgroups then begin at that
/// namespace's root. Needs CAP_SYS_ADMIN.
pub fn in_cgroup_namespace_of<T: Send>(
    process: u32,
    work: impl FnOnce() -> T + Send,
) -> Result<T, CallError> {
    let path = format!("/proc/{process}/ns/cgroup");
    let namespace = File::open(path).named("open(namespace)")?;
    on_own_thread(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ControlGroup))
            .named("setns(CLONE_NEWCGROUP)")?;
        Ok(work())
    })
}

/// Runs `work` on a separate thread that sees the mounts of a process, and begins at its root. Needs
/// CAP_SYS_ADMIN and CAP_SYS_CHROOT.
pub fn in_mount_namespace_of<T: Send>(process: u32, work: impl FnOnce() -> T + Send) -> Result<T, CallError> {
    let path = format!("/proc/{process}/ns/mnt");
    let namespace = File::open(path).named("open(namespace)")?;
    on_own_thread(|| {
        // Threads share their root and working directory; one that does can't change its mounts.
        unshare(UnshareFlags::FS, "unshare(CLONE_FS)")?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
            .named("setns(CLONE_NEWNS)")?;
        Ok(work())
    })
}

/// Gives the calling thread (and everything that it starts) its own mounts. Needs CAP_SYS_ADMIN. While the
/// mounts are shared, later mounts still reach the outside: make them private first.
pub fn enter_new_mount_namespace() -> Result<(), CallError> {
    unshare(UnshareFlags::NEWNS, "unshare(CLONE_NEWNS)")
}

/// Creates a user namespace and moves the calling process into it, with every capability there. The kernel
/// refuses it for a process with several threads. Until its maps are written, no user exists in it.
pub fn enter_new_user_namespace() -> Result<(), CallError> {
    unshare(UnshareFlags::NEWUSER, "unshare(CLONE_NEWUSER)")
}

fn unshare(flags: UnshareFlags, call: &'static str) -> Result<(), CallError> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: unshare is unsafe only for CLONE_FILES (a thread's descriptors would refer to other files than
    // another thread's). This function is private, and its callers pass NEWNET, FS, NEWNS and NEWUSER.
    unsafe { unshare_unsafe(flags) }.named(call)
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
