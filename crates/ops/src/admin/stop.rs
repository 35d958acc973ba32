//! How the admin thread is woken and ended.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the thread, and wakes it.
#[derive(Debug, Clone)]
pub(super) struct Stopper {
    bell: Arc<UnixStream>,
    is_stopping: Arc<AtomicBool>,
}

impl Stopper {
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Makes the thread look at its connections.
    pub(super) fn wake(&self) {
        // A full pipe means that it was woken already.
        let _ = (&*self.bell).write(&[0]);
    }
}

/// The thread's end.
#[derive(Debug)]
pub(super) struct Stopped {
    bell: UnixStream,
    stopper: Stopper,
}

/// Creates both ends.
pub(super) fn stopper() -> io::Result<(Stopper, Stopped)> {
    let (bell, woken) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let stopper = Stopper { bell: Arc::new(bell), is_stopping: Arc::default() };
    Ok((stopper.clone(), Stopped { bell: woken, stopper }))
}

impl Stopped {
    pub(super) fn is_due(&self) -> bool {
        self.stopper.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Readable after a call to [`Stopper::wake`], until [`Self::hear`].
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(super) fn hear(&self) {
        let _ = (&self.bell).read(&mut [0; 64]);
    }
}
