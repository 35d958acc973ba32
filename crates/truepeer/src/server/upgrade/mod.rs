//! A new process takes the place of an old one, without a pause.
//!
//! ```text
//! old, serves                                new
//!            ◀── POST /upgrade ───────────── connects to the admin socket
//! Sockets ──────────────────────────────▶    opens what is not among them
//!            ◀── Ready ─────────────────────
//! pauses UDP; Flows, Go ────────────────▶    opens the rest, adopts the flows, serves
//!            ◀── Serving ───────────────────
//! lets go, drains, ends
//! ```
//! Until Serving has come, the old process goes on if anything fails: it reads its UDP sockets again.
//! Connections are accepted all the time, by one or by both, because listening sockets are shared and never
//! closed.

mod give;
mod take;
mod wire;

use std::time::Duration;

pub(super) use give::give;
pub(super) use take::Taking;

/// How long the new process may take until it is ready: it reads files and resolves names.
const START: Duration = Duration::from_secs(60);
/// How long it may take until it serves. Datagrams wait meanwhile.
const SWITCH: Duration = Duration::from_secs(10);
/// How long the reason for a failure may take to reach the other process.
const LAST_WORD: Duration = Duration::from_secs(1);
