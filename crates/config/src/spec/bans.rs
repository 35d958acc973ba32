//! `truepeer ban`, `unban`, `bans` and `crowdsec` as they are written.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use truepeer_policy::BannedPrefix;

use super::address::OriginUrl;
use super::operate::AskSpec;
use super::values;

/// Refuse a client from now on: its new connections, requests and datagrams; what it has open ends
#[derive(Debug, Clone, Args)]
pub struct BanArgs {
    #[arg(required = true)]
    pub clients: Vec<Banned>,
    #[arg(long = "for", value_parser = time)]
    pub time: Option<Duration>,
    #[arg(long, value_parser = port)]
    pub port: Option<NonZeroU16>,
    #[arg(long, value_parser = why)]
    pub why: Option<String>,
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub pins: Option<PathBuf>,
}

/// Let banned clients come again
#[derive(Debug, Clone, Args)]
pub struct UnbanArgs {
    #[arg(required_unless_present = "all")]
    pub clients: Vec<Banned>,
    #[arg(long, conflicts_with_all = ["clients", "port"])]
    pub all: bool,
    #[arg(long, value_parser = port)]
    pub port: Option<NonZeroU16>,
    #[arg(long, value_parser = why, conflicts_with = "all")]
    pub why: Option<String>,
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub pins: Option<PathBuf>,
}

/// List who is banned: until when, by whom and why
#[derive(Debug, Clone, Args)]
pub struct BansArgs {
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub pins: Option<PathBuf>,
    #[arg(long)]
    pub json: bool,
}

/// Ban whom CrowdSec bans, and lift its bans, until this process ends
#[derive(Debug, Clone, Args)]
pub struct CrowdsecArgs {
    #[arg(long, value_parser = key_file)]
    pub key: PathBuf,
    #[arg(long)]
    pub url: Option<OriginUrl>,
    #[arg(long, value_parser = values::positive_duration)]
    pub interval: Option<Duration>,
    #[command(flatten)]
    pub ask: AskSpec,
    #[arg(long)]
    pub pins: Option<PathBuf>,
}

/// Whom to ban: a prefix, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Banned {
    Prefix(BannedPrefix),
    File(PathBuf),
    /// Standard input.
    Input,
}

impl FromStr for Banned {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "-" => Ok(Self::Input),
            path if path.starts_with(['/', '.']) => Ok(Self::File(path.into())),
            text => text
                .parse()
                .map(Self::Prefix)
                .map_err(|error: truepeer_policy::BannedPrefixError| error.to_string()),
        }
    }
}

/// The longest reason, in bytes.
const MOST_WHY: usize = 200;

/// A reason is one line: it is listed, and logs have it.
fn why(text: &str) -> Result<String, String> {
    if text.len() > MOST_WHY || text.chars().any(char::is_control) {
        return Err(format!("expected at most {MOST_WHY} bytes in one line"));
    }
    Ok(text.to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let days = days.and_then(|days| days.checked_mul(86_400)).filter(|seconds| *seconds > 0);
    let other = || {
        let days = "or days (7d); without it the ban lasts until unban";
        values::positive_duration(text).map_err(|error| format!("{error}, {days}"))
    };
    days.map_or_else(other, |seconds| Ok(Duration::from_secs(seconds)))
}

/// A key in a command line could be read by everybody on the host.
fn key_file(text: &str) -> Result<PathBuf, &'static str> {
    let file = text.strip_prefix('@').filter(|file| !file.is_empty());
    file.map(PathBuf::from).ok_or("expected @FILE with the key: cscli bouncers add truepeer -o raw > FILE")
}

fn port(text: &str) -> Result<NonZeroU16, String> {
    text.parse().map_err(|_| "expected a port from 1 to 65535".to_owned())
}
