//! An entry of the file: a command's options, and its plan.

use clap::{ArgMatches, FromArgMatches as _};

use super::keys::{self, Grammar};
use super::written::Written;
use crate::table::{self, Commands};
use truepeer_config::plan::{
    AcmeConfig, AdminConfig, AttachKey, Config, Defaults, EntryConfig, LogConfig, Problem, Problems,
    attach_rules,
};
use truepeer_config::spec::{
    AcmeSpec, AcmeTable, AdminSpec, AdminTable, AttachSpec, HttpsSpec, LogSpec, LogTable, ProcessSpec,
    ProcessTable, ProxySpec, StackArgs,
};

/// The tables that are commands.
pub(super) const ENTRIES: [&str; 3] = ["proxy", "https", "attach"];

/// What an entry says.
pub(super) enum Entry {
    Proxy(Box<ProxySpec>),
    Https(Box<HttpsSpec>),
    Attach(Box<AttachSpec>),
}

/// The settings of the whole process.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) process: ProcessTable,
    pub(super) admin: AdminConfig,
    pub(super) log: LogConfig,
    pub(super) acme: AcmeConfig,
}

impl Shared {
    /// `None` can't happen: the tables were parsed with these types' own options.
    pub(super) fn of(written: &Written) -> Option<Result<Self, Problem>> {
        let process = ProcessTable::from_arg_matches(&written.top).ok()?;
        let admin = AdminTable::from_arg_matches(&written.admin).ok()?;
        let log = LogTable::from_arg_matches(&written.log).ok()?;
        let acme = AcmeTable::from_arg_matches(&written.acme).ok()?;
        Some(AcmeConfig::of(&acme.into()).map(|acme| Self {
            process,
            admin: AdminConfig { listen: admin.listen, is_usual: false },
            log: LogConfig { verbosity: log.level.unwrap_or_default(), format: log.format },
            acme,
        }))
    }
}

/// The keys of an entry.
pub(super) fn grammar(entry: &str) -> Grammar {
    match entry {
        "proxy" => keys::of_entry::<ProxySpec>(
            entry,
            rows(entry),
            &[keys::group::<ProcessTable>, keys::group::<AdminSpec>, keys::group::<LogSpec>],
        ),
        "https" => keys::of_entry::<HttpsSpec>(
            entry,
            rows(entry),
            &[
                keys::group::<ProcessSpec>,
                keys::group::<AdminSpec>,
                keys::group::<LogSpec>,
                keys::group::<AcmeSpec>,
                keys::group::<StackArgs>,
            ],
        ),
        _ => keys::of_entry::<AttachSpec>(entry, rows(entry), &[]),
    }
}

/// The rows of an entry's options.
pub(super) fn rows(entry: &str) -> Commands {
    match entry {
        "proxy" => table::PROXY,
        "https" => table::HTTPS,
        _ => table::ATTACH,
    }
}

impl Entry {
    /// `None` can't happen: `matches` are of the command `name`.
    pub(super) fn of(name: &str, matches: &ArgMatches) -> Option<Self> {
        Some(match name {
            "proxy" => Self::Proxy(Box::new(ProxySpec::from_arg_matches(matches).ok()?)),
            "https" => Self::Https(Box::new(HttpsSpec::from_arg_matches(matches).ok()?)),
            _ => Self::Attach(Box::new(AttachSpec::from_arg_matches(matches).ok()?)),
        })
    }

    /// The entry's plan, with the settings of the whole process.
    pub(super) fn plan(self, shared: &Shared) -> Result<EntryConfig, Problems> {
        let Shared { process, admin, log, acme } = shared;
        let shared =
            |config| Box::new(Config { admin: admin.clone(), log: *log, acme: acme.clone(), ..config });
        Ok(match self {
            Self::Proxy(mut spec) => {
                (spec.process, spec.flows) = (process.process.clone(), process.flows.clone());
                EntryConfig::Proxy(shared(Config::of_proxy(&spec, &Defaults::default())?))
            }
            Self::Https(mut spec) => {
                spec.process = process.process.clone();
                EntryConfig::Https(shared(Config::of_https(&spec)?))
            }
            Self::Attach(args) => EntryConfig::Attach(args),
        })
    }
}

/// What an entry does, for comparison: two files that mean the same have the same text.
pub(super) fn meaning(entry: &EntryConfig) -> Result<String, Problems> {
    match entry {
        EntryConfig::Proxy(config) | EntryConfig::Https(config) => Ok(format!("{config:?}")),
        EntryConfig::Attach(args) => {
            let all = vec!["all".to_owned()];
            let devices = if args.dev.is_empty() { &all } else { &args.dev };
            // A default that would only add a warning (`udp-dialect` without a UDP port) is not the same.
            let (rules, warnings) = attach_rules(args)?;
            let place = AttachKey::of(args);
            Ok(format!("{rules:?} {warnings:?} {place:?} {devices:?} {:?} {:?}", args.cgroup, args.unit))
        }
    }
}
