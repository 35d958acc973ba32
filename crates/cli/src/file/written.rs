//! A file, table by table, each as the command line that says the same.

use clap::ArgMatches;

use super::keys;
use super::table::Words;
use truepeer_config::spec::{AcmeTable, AdminTable, LogTable, ProcessTable};

/// What a file says.
pub(super) struct Written {
    /// The keys before the first table.
    pub(super) top: ArgMatches,
    pub(super) admin: ArgMatches,
    pub(super) log: ArgMatches,
    pub(super) acme: ArgMatches,
    pub(super) acme_words: Words,
    pub(super) entries: Vec<WrittenEntry>,
}

/// A table that is a command.
pub(super) struct WrittenEntry {
    /// The command's name.
    pub(super) name: &'static str,
    pub(super) words: Words,
    /// `None`: the table has an error.
    pub(super) matches: Option<ArgMatches>,
}

impl Written {
    /// A file without any key.
    pub(super) fn nothing() -> Self {
        Self {
            top: keys::of_table::<ProcessTable>().nothing(),
            admin: keys::of_table::<AdminTable>().nothing(),
            log: keys::of_table::<LogTable>().nothing(),
            acme: keys::of_table::<AcmeTable>().nothing(),
            acme_words: Words::default(),
            entries: Vec::new(),
        }
    }
}
