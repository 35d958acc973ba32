//! What an operator wrote ([`spec`]), and what it means ([`plan`]): defaults filled in, contradictions
//! refused, a list of listeners and attachments. The words of options, their help and the file's syntax are
//! in the crate `cli`.
//!
//! `Config::of_*` are pure. I/O that is left, all of it in [`plan`]: `check` reads the files that are named
//! (lists, certificates, keys) and resolves host names; [`plan::passed`] reads the names of sockets that
//! systemd passes.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a field has an option's name, and the table of options its text")]

pub mod date;
pub mod plan;
pub mod spec;
