//! Checks the kernel, both IP families, and the limits of a process.

use std::fs;

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use super::report::{Check, Report, Verdict};
use super::subject::Subject;
use truepeer_privilege::confine::{self, needs};
use truepeer_routes::item::{IpFamily, Need, Switch};
use truepeer_routes::netlink::Netlink;
use truepeer_routes::place::BackendPlace;
use truepeer_routes::sysctl;

/// The oldest kernel with routing rules that match a protocol and ports.
const PORT_RULES_SINCE: needs::Version = (4, 17);
/// A session takes two descriptors. Below this hard limit a busy proxy runs out of them.
const COMFORTABLE_OPEN_FILES: u64 = 65_536;
/// The most that a session keeps in pipes while it moves bulk data: one pipe for each direction.
const BULK_SESSION_BYTES: u64 = 2 * 256 * 1024;

/// Whether this network namespace has IPv6 on its loopback interface.
pub(super) fn has_ipv6() -> bool {
    sysctl::read_named("net.ipv6.conf.lo.disable_ipv6") == Some(0)
}

pub(super) fn examine(subject: &Subject<'_>, report: &mut Report) {
    report.add(policy_routing(subject));
    if let Some(check) = port_rules(subject) {
        report.add(check);
    }
    if let Some(check) = mark_accept(subject) {
        report.add(check);
    }
    report.add(loopback(subject, IpFamily::V4));
    if subject.has_family(IpFamily::V6) {
        report.add(ipv6(subject));
    }
    report.add(open_files());
    report.add(pipes());
}

fn policy_routing(subject: &Subject<'_>) -> Check {
    let name = "policy_routing";
    let tried = "policy routing in the kernel";
    let families =
        IpFamily::ALL.into_iter().filter(|f| subject.has_family(*f) && (*f == IpFamily::V4 || has_ipv6()));
    for family in families {
        if let Err(error) = Netlink::open().and_then(|mut netlink| netlink.rules(family)) {
            let why =
                format!("{family:?}: {} (CONFIG_IP_MULTIPLE_TABLES)", truepeer_routes::apply::chain(&error));
            return Check::fail(name, tried, why);
        }
    }
    Check::ok(name, tried)
}

fn port_rules(subject: &Subject<'_>) -> Option<Check> {
    let needs = |need: &Need| matches!(need, Need::Rule(rule) if rule.source_ports.is_some());
    subject.plan.items.iter().any(|item| needs(&item.need)).then(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim();
        let tried = format!("rules on a port (Linux {}.{})", PORT_RULES_SINCE.0, PORT_RULES_SINCE.1);
        if needs::version(release).is_none_or(|version| version >= PORT_RULES_SINCE) {
            Check::ok("port_rules", tried)
        } else {
            Check::fail("port_rules", tried, format!("this is {release}"))
        }
    })
}

fn mark_accept(subject: &Subject<'_>) -> Option<Check> {
    let name = Switch::TcpFwmarkAccept.name();
    let needed = subject.plan.items.iter().any(|item| item.need == Need::Switch(Switch::TcpFwmarkAccept));
    needed.then(|| match sysctl::read(Switch::TcpFwmarkAccept) {
        Some(_) => Check::ok("fwmark_accept", format!("{name} is known to the kernel")),
        None => Check::fail(
            "fwmark_accept",
            format!("{name} is known to the kernel"),
            "this kernel doesn't know it",
        ),
    })
}

fn loopback(subject: &Subject<'_>, family: IpFamily) -> Check {
    let address = family.loopback();
    let tried = format!("{address} is on the loopback interface");
    if subject.local.contains(&address) {
        Check::ok("loopback", tried)
    } else {
        Check::fail("loopback", tried, "it is missing").mend("ip link set lo up")
    }
}

fn ipv6(subject: &Subject<'_>) -> Check {
    let tried = "IPv6 is on";
    if has_ipv6() {
        if subject.has_backend(IpFamily::V6, BackendPlace::Loopback) {
            return loopback(subject, IpFamily::V6);
        }
        return Check::ok("ipv6", tried);
    }
    let found = "IPv6 is off here: a backend can't see IPv6 clients";
    let mend = "sysctl -w net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.lo.disable_ipv6=0";
    let verdict = if subject.options.named { Verdict::Fail } else { Verdict::Note };
    Check { verdict, ..Check::note("ipv6", tried, found).mend(mend) }
}

fn open_files() -> Check {
    let limit = getrlimit(Resource::Nofile).maximum;
    let tried = "room for open files";
    match limit {
        Some(hard) if hard < COMFORTABLE_OPEN_FILES => {
            let found =
                format!("the hard limit is {hard}, enough for {} sessions", hard.saturating_sub(64) / 2);
            Check::note("open_files", tried, found)
                .mend("systemctl edit truepeer (LimitNOFILE=1048576), or ulimit -Hn 1048576")
        }
        Some(hard) => Check::ok("open_files", tried).found(format!("{hard}")),
        None => Check::ok("open_files", tried).found("no limit"),
    }
}

/// Above `pipe-user-pages-soft`, a user without CAP_SYS_RESOURCE or CAP_SYS_ADMIN gets pipes of one or two
/// pages (pipe(7)). truepeer then copies instead of splicing.
fn pipes() -> Check {
    let tried = "room for pipes (splice)";
    let held = confine::held();
    let pages = sysctl::read_named("fs.pipe-user-pages-soft").and_then(|pages| u64::try_from(pages).ok());
    match pages {
        Some(pages)
            if pages > 0 && !held.intersects(CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN) =>
        {
            let sessions = pages * 4096 / BULK_SESSION_BYTES;
            let found = format!(
                "this user's quota is enough for {sessions} sessions that move bulk data at the same time; further ones copy"
            );
            Check::note("pipes", tried, found).mend("sysctl -w fs.pipe-user-pages-soft=262144")
        }
        _ => Check::ok("pipes", tried),
    }
}
