//! Everything that a session needs except moving its bytes.
//!
//! Two engines serve sessions: `relay` (state machines on an edge-triggered epoll) and `https` (a task for
//! each connection). This crate has what both share: limits of sessions together ([`budget`]), counters and
//! logs ([`counters`], [`journal`], [`complaints`], [`hint`]), reasons for endings ([`close`]) and
//! their words ([`reason`]), the table of
//! sessions ([`table`]) and their deadlines ([`deadlines`]), listening sockets ([`listening`]) and
//! connections to backends ([`connect_as`]). [`engine::Engine`] lists the changes to a running engine. Its
//! owner keeps its [`workers`] and [`listeners`]; [`supervision`] handles workers that end unexpectedly.
#![forbid(unsafe_code)]

mod allowance;
pub mod budget;
pub mod clients;
pub mod close;
pub mod complaints;
pub mod connect_as;
pub mod counters;
pub mod deadlines;
pub mod engine;
pub mod hint;
pub mod histogram;
pub mod journal;
pub mod listeners;
pub mod listening;
pub mod mailbox;
pub mod reason;
pub mod refusals;
pub mod registry;
pub mod send_proxy;
pub mod settings;
pub mod supervision;
pub mod table;
pub mod tags;
pub mod workers;

pub use close::CloseReason;
pub use engine::{Engine, EngineError, ListenerSnapshot, Snapshot};
pub use hint::{Advise, Hint};
pub use journal::{Ended, Ending, Journal};
pub use reason::Reason;
pub use registry::{OpenSession, SessionFilter, SessionId, SessionList};
pub use settings::{ListenerId, ListenerRules};
pub use supervision::{Health, Supervision, Watched};
pub use tags::Tags;
