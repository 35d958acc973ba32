//! cloudflare/mmproxy (2018): getopt_long options, four of them with other names. An allow-list and backends
//! are required.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use truepeer_policy::{OnConflict, PrefixSet};

use crate::UsageError;
use truepeer_config::plan::{Defaults, RoutesConfig, UsualBackends};
use truepeer_config::spec::{ListenAddr, ProxySpec, RoutesMode};

pub(super) const USAGE: &str = "\
truepeer in the place of cloudflare/mmproxy. Its options, with its defaults:
  -a, --allowed-networks FILE (needed)   -l, --listen ADDR ([::]:8080)
  -4, --target-v4 ADDR (needed)   -6, --target-v6 ADDR (needed)   -m, --mark N (123)
  -t, --table N (100)   -q, --quiet   -v, --verbose   -P, --force-real-client-port
  -N, --do-not-sandbox (nothing to do)
Headers may claim loopback addresses, and routing is left to you, as there. The client's port
is kept if it is free; with -P, a session whose port is in use is refused. SIGTERM ends it at
once; SIGHUP reads the FILE again.";

/// As `--help` says them.
pub(super) const OWN_DEFAULTS: [(&str, &str); 9] = [
    ("listen", "[::]:8080"),
    ("ipv4", "none: it is needed"),
    ("ipv6", "none: it is needed"),
    ("allow", "none: --allowed-networks is needed"),
    ("allow_claims", "loopback and this host's own"),
    ("mark", "123"),
    ("routes", "manual"),
    ("table", "100"),
    ("drain_timeout", "0s"),
];

/// Its names and truepeer's. getopt_long accepts unambiguous prefixes of long options.
pub(super) fn command(command: Command) -> Command {
    let flag =
        |id: &'static str, short| Arg::new(id).short(short).long(id).action(ArgAction::SetTrue).hide(true);
    command
        .mut_arg("allowed_subnets", |arg| arg.alias("allowed-networks"))
        .mut_arg("ipv4", |arg| arg.alias("target-v4"))
        .mut_arg("ipv6", |arg| arg.alias("target-v6"))
        .mut_arg("table", |arg| arg.short('t'))
        .arg(flag(REAL_PORT, 'P'))
        .arg(flag("do-not-sandbox", 'N'))
        .infer_long_args(true)
}

/// Whether only Cloudflare's mmproxy has this option. A long one may be shortened.
pub(super) fn has_alone(option: &str) -> bool {
    let long =
        ["--allowed-networks", "--target-v4", "--target-v6", "--force-real-client-port", "--do-not-sandbox"];
    matches!(option, "-t" | "-P" | "-N")
        || option.len() > 2 && long.iter().any(|name| name.starts_with(option))
}

const REAL_PORT: &str = "force-real-client-port";

/// "Please specify …": it has no defaults for these.
pub(super) fn require(matches: &ArgMatches) -> Result<(), UsageError> {
    for (id, option) in [
        ("allowed_subnets", "--allowed-networks FILE: expected, the prefixes that may send, one a line"),
        ("ipv4", "-4, --target-v4 ADDR: expected, the backend for IPv4 clients, such as 127.0.0.1:22"),
        ("ipv6", "-6, --target-v6 ADDR: expected, the backend for IPv6 clients, such as [::1]:22"),
    ] {
        if !matches.contains_id(id) {
            return Err(UsageError::Options(format!("{option} (as cloudflare/mmproxy needs it)")));
        }
    }
    Ok(())
}

/// With `-P`, a session whose port is in use is refused.
pub(super) fn keeps_port(matches: &ArgMatches) -> bool {
    matches.get_flag(REAL_PORT)
}

/// Applies its own options.
pub(super) fn adapt(args: &mut ProxySpec, matches: &ArgMatches) {
    if matches.get_flag(REAL_PORT) {
        args.upstream.on_conflict.get_or_insert(OnConflict::Refuse);
    }
    // There, --quiet concerns the advice printed at the start, --verbose the connections.
    args.log.quiet &= !args.log.verbose && args.log.v.is_none();
}

/// Only listed senders are admitted; the mark and the table are those of its documentation, which also shows
/// `[::]:8080`.
pub(super) fn defaults() -> Defaults {
    Defaults {
        listen: ListenAddr::new("::", 8080),
        allow: PrefixSet::new(),
        backends: UsualBackends::EachAlone,
        claims: PrefixSet::loopback(),
        claims_host: true,
        mark: 123,
        routes: RoutesConfig { mode: RoutesMode::Manual, table: 100 },
        drain: Duration::ZERO,
        ..Defaults::default()
    }
}
