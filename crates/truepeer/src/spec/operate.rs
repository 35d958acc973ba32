//! `truepeer status`, `sessions` and `top` as they are written.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use truepeer_policy::PrefixSet;

use super::address::AdminAddr;
use super::serve::FileSpec;
use super::values;

/// Identifies the running truepeer.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct AskSpec {
    #[command(flatten)]
    pub(crate) file: FileSpec,
    #[arg(long)]
    pub(crate) admin: Option<AdminAddr>,
}

/// Show what the running truepeer does: its listeners, what they have taken, and what they have refused
#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) ask: AskSpec,
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the open sessions of the running truepeer, or end them
#[derive(Debug, Clone, Args)]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    pub(crate) ask: AskSpec,
    #[arg(long)]
    pub(crate) client: Option<ClientPrefix>,
    #[arg(long)]
    pub(crate) json: bool,
    #[arg(long, requires = "client")]
    pub(crate) kill: bool,
}

/// Watch the running truepeer on a terminal: rates, sessions, refusals
#[derive(Debug, Clone, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) ask: AskSpec,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) interval: Option<Duration>,
}

/// Prefixes, as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientPrefix(String);

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
