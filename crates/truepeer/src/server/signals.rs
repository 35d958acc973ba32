//! Signals as a blocking iterator that ends when it is closed. It works on VPP's stack, too.
//!
//! signal-hook's own iterator relies on MSG_DONTWAIT. VPP's library removes that flag from every `recv()`, even
//! on kernel sockets, so the iterator would block forever. So both ends of the wake-up pair are non-blocking, and
//! poll() does the waiting.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::iterator::Handle;
use signal_hook::iterator::backend::{OwningSignalIterator, PollResult, SignalDelivery};
use signal_hook::iterator::exfiltrator::SignalOnly;

/// The signals that this process catches, in order of arrival. Ends when its handle is closed.
pub(crate) struct Signals {
    iterator: OwningSignalIterator<UnixStream, SignalOnly>,
    handle: Handle,
}

impl Signals {
    /// Catches `signals` from now on, instead of their default actions.
    ///
    /// # Errors
    /// The process is out of descriptors, or a signal can't be caught.
    pub(crate) fn hear(signals: &[i32]) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        let handle = delivery.handle();
        Ok(Self { iterator: OwningSignalIterator::new(delivery), handle })
    }

    /// Closes the iterator, from any thread.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Iterator for Signals {
    type Item = i32;

    fn next(&mut self) -> Option<i32> {
        loop {
            match self.iterator.poll_signal(&mut wait) {
                PollResult::Signal(signal) => return Some(signal),
                PollResult::Pending => {}
                PollResult::Closed => return None,
                PollResult::Err(error) => {
                    tracing::error!("waiting for signals failed: {error}");
                    return None;
                }
            }
        }
    }
}

/// Waits until a signal handler has written. signal-hook then reads which signal it was.
fn wait(read: &mut UnixStream) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(&read.as_fd(), PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use signal_hook::consts::SIGWINCH;
    use signal_hook::low_level::raise;

    use super::*;

    #[test]
    fn signals_come_one_after_the_other_until_the_end() {
        let mut signals = Signals::hear(&[SIGWINCH]).unwrap();
        let handle = signals.handle();
        for _ in 0..3 {
            raise(SIGWINCH).unwrap();
            assert_eq!(signals.next(), Some(SIGWINCH));
        }
        let waiting = thread::spawn(move || signals.next());
        handle.close();
        assert_eq!(waiting.join().unwrap(), None);
    }
}
