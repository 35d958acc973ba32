//! `truepeer run` as it is written.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use truepeer_handover::Destination;
use truepeer_proto::Versions;

use super::address::ListenAddr;
use super::groups::{SendersSpec, WaitSpec};
use super::port::Ports;

/// Start a program that sees the true peer: its accept() and getpeername() return the client, PROXY headers
/// are removed
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub(crate) senders: SendersSpec,
    #[command(flatten)]
    pub(crate) wait: WaitSpec,
    #[arg(long, value_parser = versions)]
    pub(crate) versions: Option<Versions>,
    #[arg(long)]
    pub(crate) port: Vec<Ports>,
    #[arg(long)]
    pub(crate) listen: Vec<ListenAddr>,
    #[arg(long, value_parser = destination)]
    pub(crate) destination: Option<Destination>,
    #[command(flatten)]
    pub how: HowArgs,
}

/// Options shared by `run` and `connect`.
#[derive(Debug, Clone, Args)]
pub struct HowArgs {
    #[arg(long)]
    pub via: Option<Via>,
    #[arg(short, long)]
    pub verbose: bool,
    #[arg(long, exclusive = true)]
    pub unpack: Option<PathBuf>,
    #[arg(trailing_var_arg = true, required_unless_present = "unpack")]
    pub command: Vec<OsString>,
}

/// A mechanism, or the automatic choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Via {
    /// Depends on the program.
    #[default]
    Auto,
    /// A library that the program's dynamic linker loads.
    Preload,
    /// A supervisor that the kernel notifies (seccomp user notification).
    Notify,
}

fn versions(text: &str) -> Result<Versions, &'static str> {
    match text {
        "1" => Ok(Versions::V1),
        "2" => Ok(Versions::V2),
        "1,2" | "2,1" => Ok(Versions::BOTH),
        _ => Err("expected 1, 2 or 1,2"),
    }
}

pub(crate) fn destination(text: &str) -> Result<Destination, &'static str> {
    match text {
        "socket" => Ok(Destination::Socket),
        "header" => Ok(Destination::Header),
        _ => Err("expected socket or header"),
    }
}
