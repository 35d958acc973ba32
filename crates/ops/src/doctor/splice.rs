//! Checks whether sessions of `truepeer proxy` can leave user space here. A failure is only a note, because
//! they are relayed otherwise. Of a running truepeer: how many have stayed, and why.

use std::collections::BTreeMap;

use anyhow::Context as _;
use rustix::system::uname;

use super::report::{Check, Report};
use crate::admin::client::Client;
use crate::admin::status::{ListenerDoc, SpliceDoc, StatusDoc};
use crate::reasons;
use crate::units::Times;
use truepeer_config::spec::AdminAddr;
use truepeer_privilege::confine::needs::{
    self, ATTACH_MOUNT, SPLICE_BPF, SPLICE_NET, SPLICE_PERFMON, SPLICE_TESTED,
};

/// SO_NETNS_COOKIE.
const OLDEST: needs::Version = (5, 14);
const AUTO: &str = "truepeer proxy --splice auto (sessions that leave user space)";

pub(super) fn examine(running: Option<&AdminAddr>, report: &mut Report) {
    match obstacle() {
        None => report.add(auto()),
        Some((found, mend)) => {
            let check = Check::note("splice", AUTO, format!("sessions are relayed: {found}"));
            report.add(if mend.is_empty() { check } else { check.mend(mend) });
        }
    }
    let Some(running) = running else { return };
    match ask(running) {
        Ok(status) => stays(&status).into_iter().for_each(|check| report.add(check)),
        Err(failure) => {
            report.add(Check::skip(
                "splice_stays",
                format!("the truepeer at {running}"),
                format!("{failure:#}"),
            ));
        }
    }
}

/// The first missing requirement, and the command that provides it, if there is one.
fn obstacle() -> Option<(String, &'static str)> {
    if !truepeer_bpf::are_built_in() {
        let found = "this truepeer was built without clang and has no kernel programs";
        return Some((found.to_owned(), "apt-get install clang libbpf-dev"));
    }
    if needs::kernel() < OLDEST {
        let release = uname().release().to_string_lossy().into_owned();
        return Some((format!("Linux {release} is older than {}.{}", OLDEST.0, OLDEST.1), ""));
    }
    let needed = [SPLICE_BPF, SPLICE_PERFMON, SPLICE_NET];
    let missing: Vec<_> =
        needed.iter().filter(|need| !need.is_held()).map(|need| need.first().to_string()).collect();
    if !missing.is_empty() {
        return Some((format!("missing: {}", missing.join(", ")), "sudo truepeer doctor"));
    }
    let is_there = truepeer_bpf::Place::can_be_at(&truepeer_bpf::find_splice_pins());
    let mend = "mount -t bpf bpf /sys/fs/bpf";
    (!is_there && !ATTACH_MOUNT.is_held())
        .then(|| ("no BPF file system is mounted at /sys/fs/bpf".to_owned(), mend))
}

fn auto() -> Check {
    let check = Check::ok("splice", AUTO);
    if needs::kernel() >= SPLICE_TESTED {
        return check;
    }
    let (major, minor) = SPLICE_TESTED;
    check.found(format!(
        "not tested before Linux {major}.{minor}: if the kernel refuses the programs, sessions are relayed"
    ))
}

fn ask(running: &AdminAddr) -> anyhow::Result<StatusDoc> {
    let answer = Client::of_address(running.clone()).ask("GET", "/status")?;
    serde_json::from_str(&answer).context("the answer is not of this version of truepeer")
}

/// For each listener of whose sessions some may leave.
fn stays(status: &StatusDoc) -> Vec<Check> {
    let all_stay = status.splice.as_ref().and_then(SpliceDoc::obstacle).map(|obstacle| {
        let tried = format!("the truepeer of process {}", status.pid);
        Check::note("splice_running", tried, format!("sessions are relayed: {obstacle}"))
    });
    all_stay.into_iter().chain(status.listeners.iter().filter_map(stays_of)).collect()
}

fn stays_of(listener: &ListenerDoc) -> Option<Check> {
    let left = listener.count("sessions_spliced");
    if left == 0 && listener.not_spliced.is_empty() {
        return None;
    }
    let tried = format!("sessions of {} ({left} have left user space)", listener.name());
    Some(check("splice_stays", tried, "stayed", &listener.not_spliced))
}

fn check(name: &'static str, tried: String, what: &str, why: &BTreeMap<String, u64>) -> Check {
    let mut why: Vec<_> = why.iter().filter(|(_, times)| **times > 0).collect();
    if why.is_empty() {
        return Check::ok(name, tried);
    }
    why.sort_by_key(|(reason, times)| (std::cmp::Reverse(**times), (*reason).clone()));
    let told: Vec<_> =
        why.iter().map(|(reason, times)| format!("{}: {}", Times(**times), reasons::stay(reason))).collect();
    Check::note(name, tried, format!("{what}: {}", told.join("; ")))
}

#[cfg(test)]
mod tests {
    use truepeer_relay::StaysReason as Reason;

    use super::*;

    #[test]
    fn each_reason_stands_in_the_documentation() {
        let page = include_str!("../../../../docs/splice.md");
        let (_, table) = page.split_once("| reason | |").expect("the table of reasons");
        let table = table.split_once("\n\n").expect("its end").0;
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let mut documented: Vec<_> =
            rows.flat_map(|names| names.split(", ")).map(|name| name.trim_matches('`')).collect();
        let mut counted: Vec<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        documented.sort_unstable();
        counted.sort_unstable();
        assert_eq!(documented, counted);
    }

    #[test]
    fn the_most_frequent_reason_comes_first() {
        let why =
            [("sack", 3), ("segment_sizes", 12), ("ended", 0)].map(|(name, n)| (name.to_owned(), n)).into();
        let check = check("splice_stays", "sessions".to_owned(), "stayed", &why);
        assert_eq!(
            check.found.as_deref(),
            Some(
                "stayed: 12 times: segments of one side don't fit through the other's path (segment_sizes); \
                 3 times: one connection has it, the other has not (sack)"
            )
        );
    }
}
