//! `truepeer status`, `sessions`, `whois` and `top` as they are written.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use truepeer_policy::{AskedAddress, PrefixSet};

use super::address::AdminAddr;
use super::serve::FileSpec;
use super::values;

/// Identifies the running truepeer.
#[derive(Debug, Clone, Default, Args)]
pub struct AskSpec {
    #[command(flatten)]
    pub file: FileSpec,
    #[arg(long)]
    pub admin: Option<AdminAddr>,
}

/// Show what the running truepeer does: its listeners, what they have taken, and what they have refused
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub json: bool,
}

/// List the open sessions of the running truepeer, or end them
#[derive(Debug, Clone, Args)]
pub struct SessionsArgs {
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub client: Option<ClientPrefix>,
    #[arg(long)]
    pub json: bool,
    #[arg(long, requires = "client")]
    pub kill: bool,
}

/// Tell who is behind an address that a server or its log has: client, sender, TLVs, and why
#[derive(Debug, Clone, Args)]
pub struct WhoisArgs {
    #[arg(required = true)]
    pub address: AskedAddress,
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub pins: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// Watch the running truepeer on a terminal: rates, sessions, refusals
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long, value_parser = values::positive_duration)]
    pub interval: Option<Duration>,
}

/// Prefixes, as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPrefix(String);

impl FromStr for ClientPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = "expected an address, a prefix such as 10.0.0.0/8, loopback, private or any";
        text.parse::<PrefixSet>().map(|_| Self(text.to_owned())).map_err(|_| wrong.to_owned())
    }
}

impl fmt::Display for ClientPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
