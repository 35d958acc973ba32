//! The programs that truepeer replaces: their options and defaults. Every option of `truepeer proxy` works, too,
//! so that the advice in a warning can be followed.

mod cloudflare;
mod go_mmproxy;
mod mmproxy_rs;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, FromArgMatches as _};

use super::{UsageError, go_style};
use crate::plan::Defaults;
use crate::spec::ProxySpec;

/// A program that truepeer replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compat {
    /// path-network/go-mmproxy and its successor kzemek/go-mmproxy.
    GoMmproxy,
    /// mmproxy-rs, whose binary is called mmproxy.
    MmproxyRs,
    /// cloudflare/mmproxy, whose binary is also called mmproxy: only by `--compat cloudflare`.
    Cloudflare,
}

/// The program to act as, and the command line without `--compat`.
pub(super) enum Role {
    Truepeer(Vec<OsString>),
    Other(Compat, Vec<OsString>),
}

/// Determines the program to act as: by `--compat`, otherwise by the name of the binary.
pub(super) fn detect(mut argv: Vec<OsString>) -> Result<Role, UsageError> {
    let asked = take_option(&mut argv)?;
    let by_name = argv.first().and_then(|name| by_name(name));
    match asked.or(by_name) {
        Some(compat) => {
            if asked.is_some() && by_name.is_none() && argv.get(1).is_some_and(|word| word == "proxy") {
                argv.remove(1);
            }
            Ok(Role::Other(compat, argv))
        }
        None => Ok(Role::Truepeer(argv)),
    }
}

fn by_name(called: &OsStr) -> Option<Compat> {
    match Path::new(called).file_name()?.to_str()? {
        "go-mmproxy" => Some(Compat::GoMmproxy),
        "mmproxy" => Some(Compat::MmproxyRs),
        _ => None,
    }
}

/// Removes `--compat NAME` or `--compat=NAME` from the command line.
fn take_option(argv: &mut Vec<OsString>) -> Result<Option<Compat>, UsageError> {
    let end = argv.iter().position(|word| word == "--").unwrap_or(argv.len());
    let is_option =
        |word: &OsString| word == "--compat" || word.to_str().is_some_and(|w| w.starts_with("--compat="));
    let Some(place) = argv[..end].iter().position(is_option) else { return Ok(None) };
    let word = argv.remove(place);
    let name = match word.to_str().and_then(|word| word.split_once('=')) {
        Some((_, name)) => name.to_owned(),
        None if place < argv.len() => argv.remove(place).to_string_lossy().into_owned(),
        None => String::new(),
    };
    match name.as_str() {
        "go-mmproxy" => Ok(Some(Compat::GoMmproxy)),
        "mmproxy-rs" => Ok(Some(Compat::MmproxyRs)),
        "cloudflare" => Ok(Some(Compat::Cloudflare)),
        _ => Err(UsageError::Options(format!(
            "--compat {name}: expected go-mmproxy, mmproxy-rs or cloudflare"
        ))),
    }
}

impl Compat {
    /// Parses the command line as that program does.
    pub(super) fn parse(self, argv: Vec<OsString>) -> Result<ProxySpec, UsageError> {
        let command = self.command();
        let argv = if self == Self::Cloudflare { argv } else { go_style::rewrite(argv, &command) };
        let matches = command.try_get_matches_from(argv).map_err(|error| self.explain(error))?;
        if self == Self::Cloudflare {
            cloudflare::require(&matches)?;
        }
        let mut args = ProxySpec::from_arg_matches(&matches)?;
        if self == Self::Cloudflare {
            cloudflare::adapt(&mut args, &matches);
        }
        Ok(args)
    }

    /// Two programs are called mmproxy: names the other one where an option is its own.
    fn explain(self, error: clap::Error) -> UsageError {
        match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(option))
                if self == Self::MmproxyRs
                    && error.kind() == ErrorKind::UnknownArgument
                    && cloudflare::has_alone(option) =>
            {
                UsageError::Options(format!(
                    "{option}: an option of cloudflare/mmproxy; mmproxy-rs, whose options are expected here, \
                     has none of this name: to take cloudflare/mmproxy's place, add --compat cloudflare"
                ))
            }
            _ => error.into(),
        }
    }

    /// The defaults of that program.
    pub(super) fn defaults(self) -> Defaults {
        match self {
            Self::GoMmproxy => go_mmproxy::defaults(),
            Self::MmproxyRs => mmproxy_rs::defaults(),
            Self::Cloudflare => cloudflare::defaults(),
        }
    }

    /// A repeated option replaces the previous one, as in these programs.
    fn command(self) -> Command {
        let command = match self {
            Self::GoMmproxy => super::proxy::command("go-mmproxy").before_help(go_mmproxy::USAGE),
            Self::MmproxyRs => super::proxy::command("mmproxy").before_help(mmproxy_rs::USAGE),
            Self::Cloudflare => {
                cloudflare::command(super::proxy::command("mmproxy")).before_help(cloudflare::USAGE)
            }
        };
        command.args_override_self(true).version(env!("CARGO_PKG_VERSION"))
    }
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GoMmproxy => "go-mmproxy",
            Self::MmproxyRs => "mmproxy-rs",
            Self::Cloudflare => "cloudflare/mmproxy",
        })
    }
}

#[cfg(test)]
mod tests;
