//! Who sends headers and whom they may name: what `truepeer run` and `truepeer attach` have in common.

use std::path::PathBuf;

use clap::Args;
use truepeer_policy::{Claims, PrefixSet};

use super::values::{self, Allow};
use crate::config::{ConfigError, read_prefixes};

#[derive(Debug, Clone, Args)]
pub(super) struct SenderArgs {
    /// Who sends headers: loopback, private, any, a prefix, or a file (beginning with / or .); repeatable [default: loopback]
    #[arg(long, value_name = "PREFIX|FILE")]
    allow: Vec<Allow>,
    /// The longest header taken
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = values::header_max)]
    pub(super) header_max: usize,
    /// Loopback, unspecified, multicast, broadcast and reserved addresses that a header may claim all the same; repeatable
    #[arg(long, value_name = "PREFIX")]
    allow_claims: Vec<PrefixSet>,
    /// File of clients to refuse, a prefix a line, # for comments; read once, at the start; repeatable
    #[arg(long, value_name = "FILE")]
    deny_clients: Vec<PathBuf>,
}

impl SenderArgs {
    /// Who may send, with files read.
    pub(super) fn senders(&self) -> Result<PrefixSet, ConfigError> {
        if self.allow.is_empty() {
            return Ok(PrefixSet::loopback());
        }
        let mut senders = PrefixSet::new();
        for entry in &self.allow {
            match entry {
                Allow::Prefixes(prefixes) => senders.extend(prefixes),
                Allow::File(path) => senders.extend(&read_prefixes("--allow", path)?),
            }
        }
        Ok(senders)
    }

    /// Who may be named, with files read.
    pub(super) fn claims(&self) -> Result<Claims, ConfigError> {
        let mut claims = Claims::default();
        self.allow_claims.iter().for_each(|prefixes| claims.allow.extend(prefixes));
        for path in &self.deny_clients {
            claims.deny.extend(&read_prefixes("--deny-clients", path)?);
        }
        Ok(claims)
    }
}
