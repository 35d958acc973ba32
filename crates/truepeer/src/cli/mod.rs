//! The command line: from words to an [`Invocation`], with an error that names the option or a text to print.
//!
//! ```text
//! argv ─▶ compat::Role (name called by, --compat) ─▶ go_style (‑long ⇒ ‑‑long) ─▶ clap ─▶ Config
//! ```
#![allow(rustdoc::broken_intra_doc_links, reason = "help is printed as it stands: [::1] is an address")]

mod attach;
mod compat;
mod doctor;
mod go_style;
mod https;
mod proxy;
mod routes;
mod routing;
mod run;
mod senders;
mod tls;
mod values;
mod vpp;

use std::ffi::OsString;

use clap::{Args as _, Command, FromArgMatches as _};

pub(crate) use attach::{AttachAction, AttachArgs, PlaceArgs};
pub(crate) use compat::Compat;
pub(crate) use doctor::DoctorArgs;
pub(crate) use routes::{RoutesAction, RoutesArgs};
pub(crate) use run::{ConnectArgs, HowArgs, RunArgs, Via};
pub(crate) use vpp::{Stack, StackArgs, UpArgs, VppAction, VppArgs, VppDemoArgs, VppPlaceArgs, VppRunArgs};

use crate::plan::{Config, ConfigError};
use https::HttpsArgs;
use proxy::{Defaults, ProxyArgs};

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Relay, as configured; the program whose place we take, if any.
    Proxy(Box<Config>, Option<Compat>),
    /// Take HTTPS off, on one stack or the other.
    Https(Box<Config>, StackArgs),
    /// Show, set or remove rules and routes.
    Routes(RoutesArgs),
    /// Take headers off in the kernel.
    Attach(Box<AttachArgs>),
    /// Start a program that sees the client.
    Run(Box<RunArgs>),
    /// Start a program that sends headers.
    Connect(Box<ConnectArgs>),
    /// Find out what is missing.
    Doctor(DoctorArgs),
    /// Start VPP, or put a program onto it.
    Vpp(Box<VppArgs>),
}

/// A command line that can't be followed, or one that asks for a text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    /// clap's: prints itself, in colour, to the right stream, help and version included.
    #[error(transparent)]
    Clap(#[from] clap::Error),
    /// Options that contradict each other, or a value that the machine refutes.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// As above, found here. Begins with the option.
    #[error("{0}")]
    Options(String),
}

impl UsageError {
    /// Prints the error (or the text asked for) and says with which status to end: 2, or 0 for help and version.
    pub(crate) fn report(self) -> u8 {
        match self {
            Self::Clap(error) => {
                // Nobody is left to tell if the terminal is gone.
                let _ = error.print();
                u8::from(error.use_stderr()) * 2
            }
            Self::Config(_) | Self::Options(_) => {
                eprintln!("error: {:#}", anyhow::Error::new(self));
                2
            }
        }
    }
}

const ABOUT: &str = "Your backend sees the true peer: PROXY protocol in, the client's own address out";

const AFTER_HELP: &str = "\
Examples:
  truepeer proxy -l :8443 -4 127.0.0.1:443 -6 [::1]:443 --allow 10.0.0.0/8
  truepeer https -l :443 --cert site.pem --key site.key --origin http://127.0.0.1:8080
  truepeer attach --port 443 --allow 10.0.0.0/8
  truepeer run --allow 10.0.0.0/8 -- nginx -g 'daemon off;'
  truepeer doctor -4 127.0.0.1:443
  truepeer routes show

Called as go-mmproxy or mmproxy (a link is enough), or with
--compat go-mmproxy|mmproxy-rs|cloudflare, it has that program's options and defaults.";

/// Reads a command line; the first word is the name that the program was called by.
pub(crate) fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    match compat::detect(argv)? {
        compat::Role::Truepeer(argv) => parse_as_truepeer(argv),
        compat::Role::Other(compat, argv) => {
            let args = compat.parse(argv)?;
            Ok(Invocation::Proxy(Box::new(args.into_config(&compat.defaults())?), Some(compat)))
        }
    }
}

fn parse_as_truepeer(argv: Vec<OsString>) -> Result<Invocation, UsageError> {
    let command = command();
    let argv = match argv.get(1).and_then(|word| command.find_subcommand(word)) {
        Some(subcommand) => go_style::rewrite(argv, subcommand),
        None => argv,
    };
    let matches = command.try_get_matches_from(argv)?;
    match matches.subcommand() {
        Some(("proxy", matches)) => {
            let config = ProxyArgs::from_arg_matches(matches)?.into_config(&Defaults::default())?;
            Ok(Invocation::Proxy(Box::new(config), None))
        }
        Some(("https", matches)) => {
            let args = HttpsArgs::from_arg_matches(matches)?;
            let stack = args.stack.clone();
            let config = args.into_config()?;
            Ok(Invocation::Https(Box::new(config), stack))
        }
        Some(("attach", matches)) => Ok(Invocation::Attach(Box::new(AttachArgs::from_arg_matches(matches)?))),
        Some(("run", matches)) => Ok(Invocation::Run(Box::new(RunArgs::from_arg_matches(matches)?))),
        Some(("connect", matches)) => {
            Ok(Invocation::Connect(Box::new(ConnectArgs::from_arg_matches(matches)?)))
        }
        Some(("routes", matches)) => Ok(Invocation::Routes(RoutesArgs::from_arg_matches(matches)?)),
        Some(("doctor", matches)) => Ok(Invocation::Doctor(DoctorArgs::from_arg_matches(matches)?)),
        Some(("vpp", matches)) => Ok(Invocation::Vpp(Box::new(VppArgs::from_arg_matches(matches)?))),
        _ => Err(UsageError::Options(
            "expected a command: proxy, https, attach, run, connect, routes, doctor or vpp; see truepeer --help"
                .to_owned(),
        )),
    }
}

fn command() -> Command {
    Command::new("truepeer")
        .about(ABOUT)
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(AFTER_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(proxy_command("proxy"))
        .subcommand(HttpsArgs::augment_args(Command::new("https")).after_help(https::AFTER_HELP))
        .subcommand(AttachArgs::augment_args(Command::new("attach")).after_help(attach::AFTER_HELP))
        .subcommand(RunArgs::augment_args(Command::new("run")).after_help(run::RUN_HELP))
        .subcommand(ConnectArgs::augment_args(Command::new("connect")).after_help(run::CONNECT_HELP))
        .subcommand(RoutesArgs::augment_args(Command::new("routes")).after_help(routes::AFTER_HELP))
        .subcommand(DoctorArgs::augment_args(Command::new("doctor")))
        .subcommand(VppArgs::augment_args(Command::new("vpp")).after_help(vpp::AFTER_HELP))
}

fn proxy_command(name: &'static str) -> Command {
    ProxyArgs::augment_args(Command::new(name)).after_help(proxy::AFTER_HELP)
}

#[cfg(test)]
mod tests;
