//! What any session needs, whoever moves its bytes.
//!
//! Two engines serve sessions: `relay` (state machines on an edge-triggered epoll) and `https` (a task for each
//! connection). Everything around a session is here, once: what sessions may hold together ([`budget`]), what is counted
//! and logged ([`counters`], [`journal`], [`complaints`]), why sessions end ([`close`]), where they are kept ([`table`])
//! and how long they wait ([`deadlines`]), how listening sockets are opened ([`listening`]) and backends reached
//! ([`connect_as`]). What the program can change about an engine that runs is [`engine::Engine`]; what happens when a
//! worker ends by itself is [`supervision`].
#![forbid(unsafe_code)]

pub mod budget;
pub mod close;
pub mod complaints;
pub mod connect_as;
pub mod counters;
pub mod deadlines;
pub mod engine;
pub mod journal;
pub mod listening;
pub mod mailbox;
pub mod refusals;
pub mod send_proxy;
pub mod settings;
pub mod supervision;
pub mod table;

pub use close::CloseReason;
pub use engine::{Engine, EngineError, ListenerSnapshot, Snapshot};
pub use journal::{Ended, Ending, Journal};
pub use settings::{ListenerId, ListenerRules};
pub use supervision::{Health, Supervision, Watched};
