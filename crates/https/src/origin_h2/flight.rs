//! One connection attempt that several requests wait for.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::exchange::Failure;

/// An attempt. The request that dials has the [`Pilot`], the others wait.
#[derive(Debug, Default)]
pub(crate) struct Flight(RefCell<FlightState>);

#[derive(Debug, Default)]
struct FlightState {
    landed: Option<Result<(), Failure>>,
    waiting: Vec<Waker>,
}

impl Flight {
    /// Waits for the attempt's end. `Ok`: look for a connection again. There may be none: the request that dialled may have left.
    ///
    /// # Errors
    /// The attempt failed.
    pub(crate) async fn landed(&self) -> Result<(), Failure> {
        poll_fn(|cx| {
            let mut state = self.0.borrow_mut();
            if let Some(landed) = &state.landed {
                return Poll::Ready(landed.clone());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn has_landed(&self) -> bool {
        self.0.borrow().landed.is_some()
    }

    fn land(&self, outcome: Result<(), Failure>) {
        let mut state = self.0.borrow_mut();
        let waiting = std::mem::take(&mut state.waiting);
        state.landed.get_or_insert(outcome);
        drop(state);
        waiting.iter().for_each(Waker::wake_by_ref);
    }
}

/// Ends the attempt for all who wait, also if the request that dials is given up.
#[derive(Debug)]
pub(crate) struct Pilot(Rc<Flight>);

impl Pilot {
    pub(super) fn new(flight: &Rc<Flight>) -> Self {
        Self(Rc::clone(flight))
    }

    /// Tells the others why there is no connection.
    pub(crate) fn fail(&self, failure: &Failure) {
        self.0.land(Err(failure.clone()));
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        self.0.land(Ok(()));
    }
}
