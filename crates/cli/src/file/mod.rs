//! The configuration file: from its text to a [`ProcessConfig`], with each problem at its place.
//!
//! ```text
//! text ─toml─▶ tables, with spans ─▶ words of the command of that name, each with its span ─clap─▶ spec ─▶ plan
//!   │ syntax      │ unknown keys        │ types                          │ values                │ contradictions, files
//!   └─────────────┴─────────────────────┴── Findings ────────────────────┴───────────────────────┘
//! ```
//!
//! A key is an option: nothing is declared here a second time. What a key takes, and what it means, are in
//! [`truepeer_config::spec`].
//!
//! [`ProcessConfig`]: truepeer_config::plan::ProcessConfig

mod as_service;
mod check;
mod document;
mod entry;
mod finding;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzed;
mod judge;
mod keys;
mod manual;
mod show;
mod source;
mod syntax;
mod table;
mod value;
mod written;

pub use check::check;
pub(crate) use manual::manual;
pub(crate) use show::of_command;
pub use source::{ConfigSource, LoadedConfig, Rejected};

#[cfg(test)]
mod messages;
#[cfg(test)]
mod tests;
