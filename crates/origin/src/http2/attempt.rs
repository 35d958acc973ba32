//! One connection attempt that several requests wait for.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::failure::Failure;

/// An attempt. The request that dials has the [`Dialling`], the others wait.
#[derive(Debug)]
pub struct ConnectAttempt {
    state: RefCell<State>,
    /// The number of requests for which the connection will have streams.
    room: Cell<usize>,
}

#[derive(Debug, Default)]
struct State {
    ended: Option<Result<(), Failure>>,
    waiting: Vec<Waker>,
}

impl ConnectAttempt {
    /// `streams`: as many as the connection is expected to take.
    pub(super) fn new(streams: usize) -> Rc<Self> {
        Rc::new(Self { state: RefCell::default(), room: Cell::new(streams) })
    }

    /// Takes one of the expected streams. `false`: all are taken.
    pub(super) fn take_place(&self) -> bool {
        let left = self.room.get().checked_sub(1);
        self.room.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Waits for the attempt's end. `Ok`: look for a connection again. There may be none, because the client
    /// of the request that dialled has left.
    ///
    /// # Errors
    /// The attempt failed.
    pub async fn ended(&self) -> Result<(), Failure> {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if let Some(ended) = &state.ended {
                return Poll::Ready(ended.clone());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    fn end(&self, outcome: Result<(), Failure>) {
        let mut state = self.state.borrow_mut();
        let waiting = std::mem::take(&mut state.waiting);
        state.ended.get_or_insert(outcome);
        drop(state);
        waiting.iter().for_each(Waker::wake_by_ref);
    }
}

/// Dropping this ends the attempt for all requests that wait, also if the request that dials is given up.
#[derive(Debug)]
pub struct Dialling(Rc<ConnectAttempt>);

impl Dialling {
    pub(super) fn new(attempt: &Rc<ConnectAttempt>) -> Self {
        Self(Rc::clone(attempt))
    }

    /// Tells the others why there is no connection.
    pub fn fail(&self, failure: &Failure) {
        self.0.end(Err(failure.clone()));
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        self.0.end(Ok(()));
    }
}
