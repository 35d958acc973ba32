//! The state of one event loop, which its parts share.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use truepeer_session::table::Key;

use super::settling::Settling;
use super::sources::Sources;
use super::tasks::Tasks;
use super::timers::Timers;
use super::wake::WakeQueue;

/// How many reads and writes a task may do in one poll, over all its streams.
pub(super) const ALLOWANCE: u32 = 64;

/// The state of a loop.
pub(super) struct LoopState {
    pub(super) poll: RefCell<mio::Poll>,
    pub(super) mailbox: Arc<WakeQueue>,
    pub(super) sources: Sources,
    pub(super) tasks: Tasks,
    /// How many of the tasks are attendants.
    pub(super) attendants: Rc<Cell<usize>>,
    pub(super) timers: RefCell<Timers>,
    pub(super) now: Cell<Instant>,
    /// The last epoll_wait had room for more events.
    pub(super) took_all_events: Cell<bool>,
    pub(super) allowance: Cell<u32>,
    pub(super) turn: Settling,
    /// The keys of this turn's tasks; kept for its memory.
    pub(super) keys: RefCell<Vec<Key>>,
}

impl LoopState {
    pub(super) fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let mailbox = Arc::new(WakeQueue::new(poll.registry())?);
        Ok(Self {
            poll: RefCell::new(poll),
            mailbox,
            sources: Sources::default(),
            tasks: Tasks::default(),
            attendants: Rc::default(),
            timers: RefCell::default(),
            now: Cell::new(Instant::now()),
            took_all_events: Cell::new(false),
            allowance: Cell::new(ALLOWANCE),
            turn: Settling::default(),
            keys: RefCell::default(),
        })
    }
}
