//! The programs that truepeer replaces: their options and defaults. Every option of `truepeer proxy` works,
//! too, so that the advice in a warning can be followed.

mod cloudflare;
mod go_mmproxy;
mod mmproxy_rs;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, FromArgMatches as _};

use super::{UsageError, go_style};
use crate::file;
use truepeer_config::plan::{Config, Defaults, RoutesConfig};
use truepeer_config::spec::ProxySpec;

/// A program that truepeer replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compat {
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
        let matches = self.matches(self.words(argv))?;
        let mut args = ProxySpec::from_arg_matches(&matches)?;
        if self == Self::Cloudflare {
            cloudflare::adapt(&mut args, &matches);
        }
        Ok(args)
    }

    fn words(self, argv: Vec<OsString>) -> Vec<OsString> {
        if self == Self::Cloudflare { argv } else { go_style::rewrite(argv, &self.command()) }
    }

    fn matches(self, words: Vec<OsString>) -> Result<ArgMatches, UsageError> {
        let matches = self.command().try_get_matches_from(words).map_err(|error| self.explain(error))?;
        if self == Self::Cloudflare {
            cloudflare::require(&matches)?;
        }
        Ok(matches)
    }

    /// The command line as a file for `truepeer serve`: that program's defaults, which a file does not have,
    /// are written out.
    pub(super) fn print(self, argv: Vec<OsString>, dir: &Path) -> Result<String, UsageError> {
        let mut words = self.words(argv);
        let matches = self.matches(words.clone())?;
        let spec = ProxySpec::from_arg_matches(&matches)?;
        let config = Config::of_proxy(&spec, &self.defaults())?;
        words.extend(self.written_out(&spec, &config).into_iter().map(OsString::from));
        if self == Self::Cloudflare && cloudflare::keeps_port(&matches) {
            words.push("--on-conflict=refuse".into());
        }
        let text = file::of_command("proxy", &self.matches(words)?, dir)?;
        let host = "# A header may not name an address of this host, as it could there: allow-claims = [\"ADDRESS\"] permits one.\n";
        Ok(format!("# {self}'s command line, with its defaults.\n{host}{text}"))
    }

    /// Its defaults, where the command line says nothing else.
    fn written_out(self, spec: &ProxySpec, config: &Config) -> Vec<String> {
        let defaults = self.defaults();
        let mut words = Vec::new();
        let mut add = |is_given: bool, option: String| {
            if !is_given {
                words.push(option);
            }
        };
        if let Some(first) = config.listeners.first() {
            add(!spec.listen.is_empty(), format!("--listen={}", first.bind));
            let backends =
                [("ipv4", &spec.ipv4, &first.backends.ipv4), ("ipv6", &spec.ipv6, &first.backends.ipv6)];
            for (option, given, meant) in backends {
                if let Some(meant) = meant {
                    add(given.is_some(), format!("--{option}={meant}"));
                }
            }
            add(first.mark == 0 || spec.upstream.mark.is_some(), format!("--mark={}", first.mark));
        }
        let names_senders = !spec.senders.allow.is_empty() || !spec.allowed_subnets.is_empty();
        add(names_senders || defaults.allow.is_empty(), "--allow=any".to_owned());
        add(!spec.senders.allow_claims.is_empty(), "--allow-claims=loopback".to_owned());
        let leads_anywhere = spec.dynamic_destination && defaults.dynamic_allow.is_some();
        add(!leads_anywhere || !spec.dynamic_allow.is_empty(), "--dynamic-allow=any".to_owned());
        add(spec.routes.routes.is_some(), "--routes=manual".to_owned());
        let usual = RoutesConfig::default();
        add(
            spec.routes.table.is_some() || config.routes.table == usual.table,
            format!("--table={}", config.routes.table),
        );
        add(spec.process.drain_timeout.is_some(), "--drain-timeout=0s".to_owned());
        words
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
    pub(super) fn command(self) -> Command {
        let command = match self {
            Self::GoMmproxy => super::proxy::command("go-mmproxy").before_help(go_mmproxy::USAGE),
            Self::MmproxyRs => super::proxy::command("mmproxy").before_help(mmproxy_rs::USAGE),
            Self::Cloudflare => {
                cloudflare::command(super::proxy::command("mmproxy")).before_help(cloudflare::USAGE)
            }
        };
        let command = command.args_override_self(true).version(env!("CARGO_PKG_VERSION"));
        self.own_defaults().iter().fold(command, |command, (id, default)| {
            command.mut_arg(id, |arg| {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let what = help.rsplit_once(" [default: ").map_or(&help[..], |(what, _)| what);
                arg.help(format!("{what} [default: {default}]"))
            })
        })
    }

    /// What `--help` says of options whose defaults are not those of `truepeer proxy`, by their ids.
    fn own_defaults(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::GoMmproxy | Self::MmproxyRs => &go_mmproxy::OWN_DEFAULTS,
            Self::Cloudflare => &cloudflare::OWN_DEFAULTS,
        }
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
