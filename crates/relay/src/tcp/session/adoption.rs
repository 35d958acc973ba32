//! Sessions that left user space in another process, which has handed them over or is gone.

use std::time::Instant;

use truepeer_policy::{BackendAddr, ClientAddr, OnConflict, Origin, Route, SenderAddr};
use truepeer_splice::Watched;

use super::super::left::Left;
use super::{Session, Stage};
use crate::kernel::Kernel;

impl Session<Kernel> {
    /// A session that has left user space in another process, which is gone or hands over.
    pub(crate) fn adopt_left(watched: Watched, now: Instant) -> Self {
        let [down, up] = watched.connections();
        let client = ClientAddr::new(up.own);
        let route = Route {
            client,
            origin: Origin::Header,
            backend: BackendAddr::new(up.peer),
            source: Some(up.own),
            on_conflict: OnConflict::Refuse,
            send_proxy: None,
            destination: None,
            special: None,
        };
        let [bytes_up, bytes_down] = watched.bytes();
        let began = now.checked_sub(watched.age()).unwrap_or(now);
        let sender = SenderAddr::new(down.peer);
        // The other process has counted the bytes so far.
        let left = Left::new(watched, (bytes_up, bytes_down), now);
        Self { route: Some(Box::new(route)), ..Self::at(Stage::Left(Box::new(left)), sender, began, None) }
    }
}
