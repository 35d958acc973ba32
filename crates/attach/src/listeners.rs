//! What listens on the ports, when they are attached.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use truepeer_bpf::{Cgroups, cgroup_root, cgroups_below, port_list};
use truepeer_sys::sock_diag::{Listener, SockDiag};

/// The listeners of this network namespace; `None` if the kernel does not tell.
pub(super) fn of_this_namespace() -> Option<Vec<Listener>> {
    SockDiag::open().and_then(|mut kernel| kernel.listeners()).ok()
}

/// Refuses to attach to a container if a listener of a port was opened outside its cgroup. No hook would see
/// that listener's connections, so each would lose its header and be refused.
pub(super) fn check_cgroups(listeners: &[Listener], ports: &BTreeSet<u16>, cgroups: &Cgroups) -> Result<()> {
    let Some((local, place)) = opened_outside(listeners, ports, &cgroups.all)?.into_iter().next() else {
        return Ok(());
    };
    bail!(
        "{local} was opened by another container of this network namespace, in {place}, which is not below {}; name one above both with --cgroup",
        cgroups.all.display()
    );
}

/// Warns of listeners outside the cgroup that --cgroup or --unit names: their connections keep the sender's
/// address.
pub(super) fn outside(
    listeners: &[Listener],
    ports: &BTreeSet<u16>,
    cgroups: &Cgroups,
) -> Result<Option<String>> {
    if cgroups.shown == cgroups.all {
        return Ok(None); // none is named, so none is outside
    }
    let outside = opened_outside(listeners, ports, &cgroups.shown)?;
    let Some((local, place)) = outside.first() else { return Ok(None) };
    let more = if outside.len() > 1 { format!(" (and {} others)", outside.len() - 1) } else { String::new() };
    Ok(Some(format!(
        "{local}{more} was opened in {place}, which is not below {}: its connections keep the sender's address (outside_cgroup); leave --cgroup and --unit out, or name the cgroup that opened it",
        cgroups.shown.display()
    )))
}

/// The listeners of these ports that were opened outside a cgroup, each with the cgroup that did.
fn opened_outside(
    listeners: &[Listener],
    ports: &BTreeSet<u16>,
    cgroup: &Path,
) -> Result<Vec<(SocketAddr, String)>> {
    let number = |path: &PathBuf| fs::metadata(path).ok().map(|found| found.ino());
    let inside: BTreeSet<u64> = cgroups_below(cgroup).iter().filter_map(number).collect();
    let wanted = listeners.iter().filter(|listener| ports.contains(&listener.local.port()));
    let known = wanted.filter_map(|listener| Some((listener.local, listener.cgroup?)));
    let outside: Vec<_> = known.filter(|(_, cgroup)| !inside.contains(cgroup)).collect();
    if outside.is_empty() {
        return Ok(Vec::new());
    }
    let everywhere = cgroups_below(&cgroup_root()?);
    let place = |cgroup| {
        let place = everywhere.iter().find(|path| number(path) == Some(cgroup));
        place.map_or("a cgroup that is gone".to_owned(), |path| path.display().to_string())
    };
    Ok(outside.into_iter().map(|(local, cgroup)| (local, place(cgroup))).collect())
}

/// Warnings about the listeners of these ports, at most one of each kind.
pub(super) fn warnings(listeners: &[Listener], ports: &BTreeSet<u16>, is_refused: bool) -> Vec<String> {
    let of = |port: u16| listeners.iter().filter(move |listener| listener.local.port() == port);
    let unheard: Vec<u16> = ports.iter().copied().filter(|port| of(*port).next().is_none()).collect();
    // Also beside an IPv6 socket: a connection over IPv4 comes to this one, whatever client its header names.
    let is_concerned =
        |listener: &&Listener| ports.contains(&listener.local.port()) && listener.local.is_ipv4();
    let ipv4: BTreeSet<SocketAddr> =
        listeners.iter().filter(is_concerned).map(|listener| listener.local).collect();
    let nothing = (!unheard.is_empty())
        .then(|| format!("nothing listens on port {} here yet", port_list(unheard, "").join(", ")));
    let ipv4_only = ipv4.first().map(|first| {
        let others: Vec<_> = ipv4.iter().skip(1).collect();
        let more = match others[..] {
            [] => String::new(),
            [other] => format!(" and {other}"),
            _ => format!(" and others of port {}", port_list(others.iter().map(|local| local.port()), "").join(", ")),
        };
        let (verb, port) = (if others.is_empty() { "is" } else { "are" }, first.port());
        let then = if is_refused { "are refused there (--unshowable refuse)" } else { "are shown as the sender there, which the server then logs and bans; --unshowable refuse refuses them" };
        format!(
            "{first}{more} {verb} IPv4 only: IPv6 clients whose header comes over IPv4 {then}; listen on [::]:{port} without IPV6_V6ONLY, and on no IPv4 address (nginx: listen [::]:{port} ipv6only=off), to see both"
        )
    });
    nothing.into_iter().chain(ipv4_only).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_named_cgroup_no_listener_is_outside_it() {
        // As a socket whose cgroup has been removed.
        let local = "0.0.0.0:80".parse().unwrap();
        let listener = Listener { local, is_ipv6_only: false, cgroup: Some(u64::MAX) };
        let root = std::env::temp_dir();
        let cgroups = Cgroups { all: root.clone(), shown: root };
        assert_eq!(outside(&[listener], &[80].into(), &cgroups).unwrap(), None);
    }

    #[test]
    fn ports_are_warned_about_by_what_listens() {
        let listener =
            |text: &str| Listener { local: text.parse().unwrap(), is_ipv6_only: false, cgroup: None };
        let said = |listeners: &[&str]| {
            let listeners: Vec<_> = listeners.iter().map(|text| listener(text)).collect();
            warnings(&listeners, &[80].into(), false).join("; ")
        };
        assert_eq!(said(&["0.0.0.0:81"]), "nothing listens on port 80 here yet");
        assert!(
            said(&["0.0.0.0:80", "127.0.0.1:80"]).starts_with("0.0.0.0:80 and 127.0.0.1:80 are IPv4 only")
        );
        assert_eq!(said(&["[::]:80"]), "");
        // As Postfix and Dovecot listen.
        assert!(said(&["0.0.0.0:80", "[::]:80"]).starts_with("0.0.0.0:80 is IPv4 only"));
        let lot = warnings(&[], &(40_000..=41_000).collect(), false);
        assert_eq!(lot, ["nothing listens on port 40000-41000 here yet"]);
        let two = [listener("0.0.0.0:80"), listener("0.0.0.0:81")];
        let both = warnings(&two, &[80, 81].into(), true).concat();
        assert!(
            both.starts_with("0.0.0.0:80 and 0.0.0.0:81 are IPv4 only") && both.contains("are refused there")
        );
    }
}
