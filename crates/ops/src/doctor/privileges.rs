//! Tries what needs privileges, and lists what each way needs.

use std::fs;
use std::io;

use super::probe;
use super::report::{Check, Report};
use super::subject::Subject;
use truepeer_privilege::confine::needs::{self, MARK, NEEDS, Need, ROUTES, TRANSPARENT};
use truepeer_routes::item::IpFamily;

/// The command that grants the capability to this program's file.
fn grant(need: &Need) -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "truepeer".into());
    let capability = need.first();
    format!(
        "setcap {}+ep {} (or AmbientCapabilities={capability} in its unit)",
        capability.name(),
        program.display()
    )
}

/// Explains a refusal by the capabilities held.
fn refusal(need: &Need, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error.to_string();
    }
    if !need.is_held() {
        let names: Vec<_> =
            need.enough_on(needs::kernel()).map(|capability| capability.to_string()).collect();
        return format!("refused: {} is missing", names.join(" or "));
    }
    let capability = need.first();
    match confinement() {
        Some(profile) => format!("refused though {capability} is held: the profile {profile} may deny it"),
        None => {
            format!("refused though {capability} is held: this network namespace belongs to another user")
        }
    }
}

/// The profile of the security module that confines this process, if any.
fn confinement() -> Option<String> {
    let profile = fs::read_to_string("/proc/thread-self/attr/current").ok()?;
    let profile = profile.trim_end_matches(['\0', '\n']).to_owned();
    (!profile.is_empty() && profile != "unconfined" && profile != "kernel").then_some(profile)
}

pub(super) fn examine(subject: &Subject<'_>, report: &mut Report) {
    transparent(subject, report);
    if let Some(mark) = subject.mark {
        report.add(privilege_check("mark", format!("SO_MARK {mark}"), &MARK, probe::try_mark(mark)));
    }
    if !ROUTES.is_held() {
        let found = "CAP_NET_ADMIN is missing: routes and rules must be created before truepeer starts (truepeer routes apply)";
        report.add(Check::note("net_admin", "changing rules and routes", found).mend(grant(&ROUTES)));
    }
    report.set_needs(NEEDS);
}

/// Whether this process may connect as a client.
pub(super) fn transparent(subject: &Subject<'_>, report: &mut Report) {
    for family in IpFamily::ALL.into_iter().filter(|family| subject.has_family(*family)) {
        if family == IpFamily::V6 && !super::machine::has_ipv6() {
            continue;
        }
        let version = if family == IpFamily::V4 { "IPv4" } else { "IPv6" };
        let tried = format!("IP_TRANSPARENT on an {version} socket");
        report.add(privilege_check("transparent", tried, &TRANSPARENT, probe::try_transparent(family)));
    }
}

fn privilege_check(name: &'static str, tried: String, need: &Need, outcome: io::Result<()>) -> Check {
    match outcome {
        Ok(()) => Check::ok(name, tried),
        Err(error) => Check::fail(name, tried, refusal(need, &error)).mend(grant(need)),
    }
}
