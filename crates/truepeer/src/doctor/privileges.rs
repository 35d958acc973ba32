//! The capabilities that each operation needs, as data, and checks against the kernel.

use std::fs;
use std::io;

use rustix::thread::CapabilitySet;

use super::probe;
use super::report::{Check, Report};
use super::{IpFamily, Subject};

/// What an operation needs from the kernel.
pub(crate) struct Privilege {
    /// The operation.
    pub(crate) what: &'static str,
    /// Any one of these is enough.
    pub(crate) any_of: &'static [Capability],
}

/// A capability, by its name in setcap(8) and systemd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capability {
    /// CAP_NET_RAW.
    NetRaw,
    /// CAP_NET_ADMIN.
    NetAdmin,
}

impl Capability {
    fn name(self) -> &'static str {
        match self {
            Self::NetRaw => "cap_net_raw",
            Self::NetAdmin => "cap_net_admin",
        }
    }

    fn is_in(self, set: CapabilitySet) -> bool {
        set.contains(match self {
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
        })
    }
}

/// Binding to a foreign address (`IP_TRANSPARENT`, `IPV6_TRANSPARENT`).
pub(crate) const SPOOF: Privilege =
    Privilege { what: "IP_TRANSPARENT", any_of: &[Capability::NetRaw, Capability::NetAdmin] };

/// `SO_MARK`: CAP_NET_RAW is enough since Linux 5.17.
pub(crate) const MARK: Privilege =
    Privilege { what: "SO_MARK", any_of: &[Capability::NetRaw, Capability::NetAdmin] };

/// Rules, routes, and the per-namespace sysctls.
pub(crate) const ROUTES: Privilege = Privilege { what: "rules and routes", any_of: &[Capability::NetAdmin] };

impl Privilege {
    /// Whether this thread's effective set has one of the capabilities.
    pub(crate) fn is_held(&self) -> bool {
        let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        self.any_of.iter().any(|capability| capability.is_in(held))
    }

    /// The command that grants the capability to this program's file.
    fn grant(&self) -> String {
        let program = std::env::current_exe().unwrap_or_else(|_| "truepeer".into());
        let name = self.any_of.first().map_or("", |capability| capability.name());
        format!(
            "setcap {name}+ep {} (or AmbientCapabilities={} in its unit)",
            program.display(),
            name.to_uppercase()
        )
    }

    /// Explains a refusal by the capabilities held.
    fn refusal(&self, error: &io::Error) -> String {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return error.to_string();
        }
        let names: Vec<_> = self.any_of.iter().map(|c| c.name().to_uppercase()).collect();
        if !self.is_held() {
            return format!("refused: {} is missing", names.join(" or "));
        }
        match confinement() {
            Some(profile) => {
                format!("refused though {} is held: the profile {profile} may deny it", names[0])
            }
            None => {
                format!("refused though {} is held: this network namespace belongs to another user", names[0])
            }
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
    for family in IpFamily::ALL.into_iter().filter(|family| subject.has_family(*family)) {
        if family == IpFamily::V6 && !super::machine::has_ipv6() {
            continue;
        }
        let version = if family == IpFamily::V4 { "IPv4" } else { "IPv6" };
        let tried = format!("{} on an {version} socket", SPOOF.what);
        report.add(privilege_check("transparent", tried, &SPOOF, probe::try_transparent(family)));
    }
    if let Some(mark) = subject.mark {
        report.add(privilege_check("mark", format!("{} {mark}", MARK.what), &MARK, probe::try_mark(mark)));
    }
    if !ROUTES.is_held() {
        let found = "CAP_NET_ADMIN is missing: routes and rules must be created before truepeer starts (truepeer routes apply)";
        report.add(Check::note("net_admin", format!("changing {}", ROUTES.what), found).mend(ROUTES.grant()));
    }
}

fn privilege_check(
    name: &'static str,
    tried: String,
    privilege: &Privilege,
    outcome: io::Result<()>,
) -> Check {
    match outcome {
        Ok(()) => Check::ok(name, tried),
        Err(error) => Check::fail(name, tried, privilege.refusal(&error)).mend(privilege.grant()),
    }
}
