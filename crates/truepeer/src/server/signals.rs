//! The server's events: signals, the engines' bell, watched descriptors, and a deadline.
//!
//! signal-hook's own iterator relies on MSG_DONTWAIT. VPP's library removes that flag from every `recv()`,
//! even on kernel sockets, so the iterator would block forever. So both ends of each wake-up pair are
//! non-blocking, and poll() does the waiting.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::iterator::backend::{OwningSignalIterator, PollResult, SignalDelivery};
use signal_hook::iterator::exfiltrator::SignalOnly;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Signal(i32),
    /// The bell was rung, once or several times.
    Bell,
    /// A watched descriptor is readable.
    Watched,
    /// The deadline has passed.
    Timeout,
}

/// The events of this process, in order.
pub(crate) struct Events {
    signals: OwningSignalIterator<UnixStream, SignalOnly>,
    rung: UnixStream,
    bell: Bell,
}

/// Wakes the server, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Arc<UnixStream>);

impl Bell {
    /// Makes [`Events::next`] return [`Event::Bell`].
    pub(crate) fn ring(&self) {
        // A full pipe means that it was rung already.
        let _ = (&*self.0).write(&[0]);
    }
}

impl Events {
    /// Catches `signals` from now on, instead of their default actions.
    ///
    /// # Errors
    /// The process has run out of descriptors, or a signal can't be caught.
    pub(crate) fn hear(signals: &[i32]) -> io::Result<Self> {
        let ((read, write), (rung, bell)) = (pair()?, pair()?);
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;
        let signals = OwningSignalIterator::new(delivery);
        Ok(Self { signals, rung, bell: Bell(Arc::new(bell)) })
    }

    pub(crate) fn bell(&self) -> Bell {
        self.bell.clone()
    }

    /// Waits for the next event, until `deadline` at most. What is `watched` stays readable until its owner
    /// has read it.
    ///
    /// # Errors
    /// poll(2) or read(2) failed.
    pub(crate) fn next(
        &mut self,
        deadline: Option<Instant>,
        watched: &[BorrowedFd<'_>],
    ) -> io::Result<Event> {
        let rung = &mut self.rung;
        let mut other = Event::Timeout;
        let mut wait = |signals: &mut UnixStream| {
            let woken = wait(signals, rung, watched, deadline)?;
            match woken {
                Woken::Bell => other = Event::Bell,
                Woken::Watched => other = Event::Watched,
                Woken::Signal | Woken::Deadline => {}
            }
            Ok(woken == Woken::Signal)
        };
        match self.signals.poll_signal(&mut wait) {
            PollResult::Signal(signal) => Ok(Event::Signal(signal)),
            PollResult::Pending => Ok(other),
            PollResult::Closed => Err(io::Error::other("signals are not heard any more")),
            PollResult::Err(error) => Err(error),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    Signal,
    Bell,
    Watched,
    Deadline,
}

/// signal-hook reads the bytes of signals; the bell's are read here.
fn wait(
    signals: &UnixStream,
    bell: &mut UnixStream,
    watched: &[BorrowedFd<'_>],
    deadline: Option<Instant>,
) -> io::Result<Woken> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let all = [signals.as_fd(), bell.as_fd()].into_iter().chain(watched.iter().copied());
        let mut polled: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut polled, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => return Ok(Woken::Deadline),
            Ok(_) if !polled[0].revents().is_empty() => return Ok(Woken::Signal),
            Ok(_) if polled[1].revents().is_empty() => return Ok(Woken::Watched),
            Ok(_) => {
                let _ = bell.read(&mut [0; 64]);
                return Ok(Woken::Bell);
            }
        }
    }
}

fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    write.set_nonblocking(true)?;
    Ok((read, write))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use signal_hook::consts::SIGWINCH;
    use signal_hook::low_level::raise;

    use super::*;

    #[test]
    fn signals_and_the_bell_come_one_after_the_other() {
        let mut events = Events::hear(&[SIGWINCH]).unwrap();
        for _ in 0..3 {
            raise(SIGWINCH).unwrap();
            assert_eq!(events.next(None, &[]).unwrap(), Event::Signal(SIGWINCH));
        }
        let bell = events.bell();
        let waiting = thread::spawn(move || (events.next(None, &[]), events));
        bell.ring();
        let (event, mut events) = waiting.join().unwrap();
        assert_eq!(event.unwrap(), Event::Bell);
        bell.ring();
        raise(SIGWINCH).unwrap();
        assert_eq!(events.next(None, &[]).unwrap(), Event::Signal(SIGWINCH));
        assert_eq!(events.next(None, &[]).unwrap(), Event::Bell);
    }

    #[test]
    fn a_watched_descriptor_comes_after_the_others() {
        let mut events = Events::hear(&[]).unwrap();
        let (watched, other) = UnixStream::pair().unwrap();
        (&other).write_all(b"x").unwrap();
        events.bell().ring();
        assert_eq!(events.next(None, &[watched.as_fd()]).unwrap(), Event::Bell);
        assert_eq!(events.next(None, &[watched.as_fd()]).unwrap(), Event::Watched);
    }

    #[test]
    fn waiting_ends_with_its_time() {
        let mut events = Events::hear(&[]).unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        assert_eq!(events.next(Some(deadline), &[]).unwrap(), Event::Timeout);
        assert!(Instant::now() >= deadline);
        assert_eq!(events.next(Some(deadline), &[]).unwrap(), Event::Timeout);
    }
}
