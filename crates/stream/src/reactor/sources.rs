//! The readiness of each descriptor, and the tasks that wait for it.
//!
//! Events are edge-triggered: a descriptor counts as ready from an event until a call returns EAGAIN.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::{Context, Waker};

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Interest, Registry};
use truepeer_session::table::{Key, Table};

use super::wake::BELL;

/// The events to ask for. Urgent bytes stay in the stream (SO_OOBINLINE), but reads stop before them, so
/// EPOLLPRI is needed.
pub(super) const OF_A_CONNECTION: Interest =
    Interest::READABLE.add(Interest::WRITABLE).add(Interest::PRIORITY);

/// The state of one descriptor.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The descriptor, as long as this is one of the [`Sources`].
    pub(super) descriptor: Cell<RawFd>,
    pub(super) readable: Cell<bool>,
    pub(super) writable: Cell<bool>,
    /// The other end has finished, or the connection broke. No further event comes, so reads must continue
    /// until EAGAIN or the end.
    ending: Cell<bool>,
    /// Nothing can be sent any more.
    broken: Cell<bool>,
    /// A byte of the stream was marked urgent (tcp(7)): reads stop before it.
    urgent: Cell<bool>,
    /// Every read and write fails from now on.
    aborted: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

impl Source {
    /// Both directions may be ready: try.
    pub(super) fn fresh() -> Rc<Self> {
        Rc::new(Self { readable: Cell::new(true), writable: Cell::new(true), ..Self::default() })
    }

    /// A read returned fewer bytes than asked for. It has emptied the socket, unless it stopped at an end or
    /// an urgent byte.
    pub(super) fn on_short_read(&self) {
        self.readable.set(self.ending.get() || self.urgent.get());
    }

    /// Whether bytes that [peeking](super::TcpStream::poll_late_bytes) shows may be followed by more. It
    /// stops before an urgent byte.
    pub(super) fn may_show_more(&self) -> bool {
        !self.ending.get() && !self.urgent.get()
    }

    /// Whether the connection has failed, or has ended in both directions.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Makes every read and write fail, and the tasks notice it.
    pub(super) fn abort(&self) {
        self.aborted.set(true);
        self.readable.set(true);
        self.writable.set(true);
        wake(&self.reader);
        wake(&self.writer);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.get()
    }

    pub(super) fn await_readable(&self, cx: &Context<'_>) {
        wait(&self.reader, cx);
    }

    pub(super) fn await_writable(&self, cx: &Context<'_>) {
        wait(&self.writer, cx);
    }

    fn note(&self, event: &Event) {
        if event.is_write_closed() {
            self.broken.set(true);
        }
        if is_end_alone(event) || event.is_read_closed() || event.is_write_closed() || event.is_error() {
            self.ending.set(true);
        }
        if event.is_priority() {
            self.urgent.set(true);
        }
        if event.is_readable() || event.is_priority() || self.ending.get() {
            self.readable.set(true);
            wake(&self.reader);
        }
        if event.is_writable() || event.is_write_closed() || event.is_error() {
            self.writable.set(true);
            wake(&self.writer);
        }
    }
}

/// Whether the event is EPOLLRDHUP alone, which mio can't express. The kernel always sets EPOLLIN with it.
/// VPP does not, and treats this event as the last one.
fn is_end_alone(event: &Event) -> bool {
    let has_a_word = event.is_readable()
        || event.is_writable()
        || event.is_priority()
        || event.is_error()
        || event.is_read_closed()
        || event.is_write_closed();
    !has_a_word
}

fn wait(slot: &RefCell<Option<Waker>>, cx: &Context<'_>) {
    let mut slot = slot.borrow_mut();
    if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *slot = Some(cx.waker().clone());
    }
}

/// The waker is kept: most tasks soon wait again.
fn wake(slot: &RefCell<Option<Waker>>) {
    if let Some(waker) = slot.borrow().as_ref() {
        waker.wake_by_ref();
    }
}

/// All descriptors, by the token of their events.
pub(super) struct Sources(RefCell<Table<Rc<Source>>>);

impl Default for Sources {
    fn default() -> Self {
        Self(RefCell::new(Table::new()))
    }
}

impl Sources {
    pub(super) fn add(&self, source: &Rc<Source>) -> Key {
        self.0.borrow_mut().insert(Rc::clone(source))
    }

    pub(super) fn remove(&self, key: Key) {
        self.0.borrow_mut().remove(key);
    }

    /// Records the readiness from events, and wakes the tasks that wait for it. Returns the number of events.
    pub(super) fn note(&self, events: &mio::Events, registry: &Registry) -> usize {
        let mut sources = self.0.borrow_mut();
        let mut taken = 0;
        for event in events {
            taken += 1;
            let mio::Token(bits) = event.token();
            // A late event of a closed descriptor matches no key.
            let source =
                if event.token() == BELL { None } else { sources.get_mut(Key::from_bits(bits as u64)) };
            if let Some(source) = source {
                source.note(event);
                if is_end_alone(event) {
                    // The remaining bytes are sent on further events. If registering fails, a time-out ends
                    // the waiting task.
                    let descriptor = source.descriptor.get();
                    let _ = registry.reregister(&mut SourceFd(&descriptor), event.token(), OF_A_CONNECTION);
                }
            }
        }
        taken
    }
}

/// The token of events of `key`.
pub(super) fn token(key: Key) -> mio::Token {
    mio::Token(usize::try_from(key.to_bits()).unwrap_or(usize::MAX - 1))
}
