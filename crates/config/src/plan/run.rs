//! `truepeer run`: the rules for a program's connections.

use truepeer_handover::{Destination, Listeners, RunSettings};
use truepeer_policy::{Claims, HeaderRule, HeaderTimes, HostAddresses, PrefixSet};
use truepeer_proto::Limits;

use super::listener::HeaderLimits;
use super::problem::Problem;
use super::senders::{ClaimsConfig, SendersConfig};
use super::{resolve, senders, speaks_first};
use crate::spec::RunArgs;

/// The rules, with files read, and warnings about risky or ineffective options.
pub fn run_settings(spec: &RunArgs) -> Result<(RunSettings, Vec<String>), Problem> {
    let senders = SendersConfig::of(&spec.senders, &[], (&PrefixSet::loopback(), HeaderRule::Require))?;
    let claims = ClaimsConfig::of(&spec.senders, &PrefixSet::new(), false);
    let header = HeaderLimits::of(&spec.senders, spec.wait.header_wait);
    let allow = senders.allowed()?;
    let secrets = senders.secrets()?;
    senders.policy(&allow, &secrets)?;
    senders.refuse_keyed("run compares secrets, and checks no digests")?;
    let mut warnings = senders::warnings(&allow, &senders, &claims);
    let addresses = spec.listen.iter().map(resolve::listen).collect::<Result<_, _>>()?;
    let ports = spec.port.iter().flat_map(|ports| ports.0.iter().copied()).collect();
    let settings = RunSettings {
        allow,
        header: senders.header,
        exceptions: senders.rules.iter().map(|rule| (rule.senders.clone(), rule.rule)).collect(),
        proofs: senders.proofs(&secrets),
        claims: Claims { host: HostAddresses::default(), ..claims.policy(&claims.denied()?) },
        limits: Limits {
            max_len: header.max_bytes,
            versions: spec.versions.unwrap_or_else(|| senders.versions()),
        },
        header_times: HeaderTimes { timeout: header.timeout, wait: header.wait },
        listeners: Listeners { ports, addresses },
        destination: spec.destination.unwrap_or_default(),
        verbose: spec.how.verbose,
    };
    warnings.extend(in_vain(spec, &settings));
    warnings.extend(speaks_first::warning(senders.sender, settings.listeners.ports.iter().copied()));
    Ok((settings, warnings))
}

/// What `--sender` stands for here.
pub fn note_of_run_sender(spec: &RunArgs) -> Option<String> {
    let usual = (&PrefixSet::loopback(), HeaderRule::Require);
    SendersConfig::of(&spec.senders, &[], usual).ok()?.note(None)
}

fn in_vain(spec: &RunArgs, settings: &RunSettings) -> Vec<String> {
    let of_headers = [
        ("--versions", spec.versions.is_some()),
        ("--header-wait", spec.wait.header_wait.is_some()),
        ("--header-timeout", spec.senders.header_timeout.is_some()),
        ("--destination header", spec.destination == Some(Destination::Header)),
        ("--header-max", spec.senders.header_max.is_some()),
        ("--allow-claims", !spec.senders.allow_claims.is_empty()),
        ("--deny-clients", !spec.senders.deny_clients.is_empty()),
    ];
    let given = of_headers.iter().filter(|(_, is_given)| *is_given && settings.takes_no_header());
    given
        .map(|(option, _)| format!("{option} has no effect: no sender's header is taken (--header forbid)"))
        .collect()
}
