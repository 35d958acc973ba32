//! The engine's connections as other threads see them: each worker is asked for its own.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use truepeer_session::registry::{Page, PageStart, SessionTable};
use truepeer_session::{SessionFilter, SessionId, SessionList};

use super::worker::{Order, OrderSender};

/// How long a worker may take to answer: it may be busy with handshakes.
const PATIENCE: Duration = Duration::from_secs(2);

/// The queues of all workers.
pub(super) struct HttpsSessions(pub(super) Vec<OrderSender>);

impl SessionList for HttpsSessions {
    fn page(&self, filter: &SessionFilter, start: Option<PageStart>) -> Page {
        let start = start.unwrap_or(PageStart { table: SessionTable::Tls, worker: 0, place: 0 });
        let (done, answer) = channel();
        let asked = self.ask(start.worker, Order::Page { filter: filter.clone(), start, done }, &answer);
        let mut page = asked.unwrap_or_default();
        let other = start.worker + 1;
        if page.next.is_none() && usize::from(other) < self.0.len() {
            page.next = Some(PageStart { table: SessionTable::Tls, worker: other, place: 0 });
        }
        page
    }

    fn end(&self, id: SessionId) -> bool {
        if id.table != SessionTable::Tls {
            return false;
        }
        let (done, answer) = channel();
        self.ask(id.worker, Order::End { id, done }, &answer).unwrap_or(false)
    }
}

impl HttpsSessions {
    /// `None`: the worker has ended, or is too busy.
    fn ask<T>(&self, worker: u16, order: Order, answer: &Receiver<T>) -> Option<T> {
        self.0.get(usize::from(worker))?.post(order).ok()?;
        answer.recv_timeout(PATIENCE).ok()
    }
}
