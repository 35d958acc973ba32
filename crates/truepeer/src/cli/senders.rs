//! Who sends headers and whom they may name: what `truepeer run` and `truepeer attach` have in common.

use std::path::PathBuf;

use clap::Args;
use truepeer_policy::{Claims, PrefixSet};
use truepeer_proto::Limits;

use super::values::{self, Allow};
use crate::plan::{ConfigError, read_prefixes};

#[derive(Debug, Clone, Args)]
pub(super) struct SenderArgs {
    /// Who sends headers: loopback, private, any, a prefix, or a file (beginning with / or .); repeatable [default: loopback]
    #[arg(long, value_name = "PREFIX|FILE")]
    allow: Vec<Allow>,
    /// The longest header taken [default: 16KiB]
    #[arg(long, value_name = "SIZE", value_parser = values::header_max)]
    header_max: Option<usize>,
    /// This host's own, loopback, unspecified, multicast, broadcast and reserved addresses that a header may claim all the
    /// same; repeatable
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

    /// What is allowed, and perhaps not meant. `senders` are those of [`SenderArgs::senders`].
    pub(super) fn warnings(&self, senders: &PrefixSet) -> Vec<String> {
        let mut warnings = Vec::new();
        if senders.has_everybody() {
            warnings.push(
                "every host may connect and claim to be any client; list your load balancers with --allow PREFIX"
                    .to_owned(),
            );
        }
        let mut claims = PrefixSet::new();
        self.allow_claims.iter().for_each(|prefixes| claims.extend(prefixes));
        if !claims.is_empty() {
            warnings.push(format!(
                "a header may claim that the client is in {claims}: a backend that trusts such addresses trusts every sender"
            ));
        }
        warnings
    }

    /// The longest header taken, in bytes.
    pub(super) fn header_max(&self) -> usize {
        self.header_max.unwrap_or(Limits::default().max_len)
    }

    /// The options given that are of use only where headers are taken.
    pub(super) fn said_of_headers(&self) -> impl Iterator<Item = &'static str> {
        let said = [
            ("--header-max", self.header_max.is_some()),
            ("--allow-claims", !self.allow_claims.is_empty()),
            ("--deny-clients", !self.deny_clients.is_empty()),
        ];
        said.into_iter().filter(|(_, is_said)| *is_said).map(|(option, _)| option)
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
