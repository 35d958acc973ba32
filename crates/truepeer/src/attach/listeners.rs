//! What listens on the ports, when they are attached.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Result, bail};
use truepeer_bpf::{Cgroups, cgroup_root};
use truepeer_sys::sock_diag::{Listener, SockDiag};

use super::cgroup::all_below;

/// The listeners of this network namespace; `None` if the kernel does not tell.
pub(super) fn of_this_namespace() -> Option<Vec<Listener>> {
    SockDiag::open().and_then(|mut kernel| kernel.listeners()).ok()
}

/// Connections of a socket that was made elsewhere would lose their header and never be finished: refuses them.
pub(super) fn check_cgroups(listeners: &[Listener], ports: &BTreeSet<u16>, cgroups: &Cgroups) -> Result<()> {
    let number = |path: &PathBuf| fs::metadata(path).ok().map(|found| found.ino());
    let inside: BTreeSet<u64> = all_below(&cgroups.all).iter().filter_map(number).collect();
    let wanted = listeners.iter().filter(|listener| ports.contains(&listener.local.port()));
    for (local, cgroup) in wanted.filter_map(|listener| Some((listener.local, listener.cgroup?))) {
        if inside.contains(&cgroup) {
            continue;
        }
        let everywhere = all_below(&cgroup_root()?);
        let place = everywhere.iter().find(|path| number(path) == Some(cgroup));
        let place = place.map_or("a cgroup that is gone".to_owned(), |path| path.display().to_string());
        bail!(
            "{local} was opened by another container of this network namespace, in {place}, which is not below {}; name one above both with --cgroup",
            cgroups.all.display()
        );
    }
    Ok(())
}

/// What the operator probably did not expect of the listeners.
pub(super) fn warnings(listeners: &[Listener], ports: &BTreeSet<u16>) -> Vec<String> {
    ports.iter().filter_map(|port| warning(listeners, *port)).collect()
}

fn warning(listeners: &[Listener], port: u16) -> Option<String> {
    let mut found = listeners.iter().filter(|listener| listener.local.port() == port).peekable();
    if found.peek().is_none() {
        return Some(format!("nothing listens on port {port} here yet"));
    }
    let is_ipv4_only = found.clone().all(|listener| listener.local.is_ipv4());
    let first = found.next().filter(|_| is_ipv4_only)?;
    Some(format!(
        "{} is IPv4 only: IPv6 clients keep the sender's address there; listen on [::]:{port} without IPV6_V6ONLY (nginx: listen [::]:{port} ipv6only=off) to see both",
        first.local
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_warned_about_by_what_listens() {
        let listener =
            |text: &str| Listener { local: text.parse().unwrap(), is_ipv6_only: false, cgroup: None };
        let said = |listeners: &[&str]| {
            let listeners: Vec<_> = listeners.iter().map(|text| listener(text)).collect();
            warnings(&listeners, &[80].into()).join("; ")
        };
        assert_eq!(said(&["0.0.0.0:81"]), "nothing listens on port 80 here yet");
        assert!(said(&["0.0.0.0:80", "127.0.0.1:80"]).starts_with("0.0.0.0:80 is IPv4 only"));
        assert_eq!(said(&["[::]:80"]), "");
        assert_eq!(said(&["0.0.0.0:80", "[::]:80"]), "");
    }
}
