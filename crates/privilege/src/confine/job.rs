//! The needs of one process, by its configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;
use truepeer_policy::Source;

use super::needs::{
    BUFFERS, CLIENT_LOW_PORT, Grade, LISTEN_TRANSPARENT, LOW_PORT, MARK, Moment, Need, PIPES, ROUTES,
    SHARE_PORT, SPLICE_BPF, SPLICE_NET, SPLICE_PERFMON, SPLICE_TABLES, TRANSPARENT, kernel,
};
use truepeer_config::plan::{Config, EntryConfig, ListenerConfig, ProcessConfig};
use truepeer_config::spec::RoutesMode;
use truepeer_config::spec::{AdminAddr, Protocol};
use truepeer_routes::sysctl;

/// Of sessions that leave user space.
const SPLICE: [&Need; 4] = [&SPLICE_BPF, &SPLICE_TABLES, &SPLICE_PERFMON, &SPLICE_NET];

/// What a process does after its start.
#[derive(Debug, Default)]
pub(super) struct Job {
    needs: Vec<&'static Need>,
    /// It may add and remove rules.
    pub(super) routes: bool,
    /// Its keeper does that, shares ports and grows buffers.
    pub(super) has_keeper: bool,
    /// Its repair keeper puts sockets under repair.
    pub(super) has_repair_keeper: bool,
    /// It uses the tables of spliced sessions.
    pub(super) splices: bool,
    /// It uses the tables of flows that leave user space.
    pub(super) offloads: bool,
    /// It has attachments.
    pub(super) attaches: bool,
    /// The directories of its admin sockets.
    pub(super) admin: Vec<PathBuf>,
    /// The directories of the files that a reload reads.
    pub(super) reads: Vec<PathBuf>,
    /// Where it keeps certificates that an authority issues.
    pub(super) state: Option<PathBuf>,
}

impl Job {
    /// `grows`: a reload may add listeners.
    pub(super) fn of(process: &ProcessConfig, files: &[PathBuf], grows: bool) -> Self {
        let mut job = Self::default();
        job.needs.extend(grows.then_some(&LOW_PORT));
        for entry in &process.entries {
            match entry {
                EntryConfig::Proxy(config) | EntryConfig::Https(config) => job.add(config),
                EntryConfig::Attach(_) => job.attaches = true,
            }
        }
        job.admin = process.admin.listen.iter().filter_map(AdminAddr::path).map(directory).collect();
        job.reads = files.iter().flat_map(|file| places(file)).collect();
        job.state = (!process.acme_names().is_empty()).then(|| process.acme.state.clone());
        job.reads.sort();
        job.reads.dedup();
        job
    }

    fn add(&mut self, config: &Config) {
        let manages = config.routes.mode != RoutesMode::Manual;
        for listener in &config.listeners {
            let needs = of_listener(listener, manages);
            self.routes |= needs.contains(&&ROUTES);
            self.needs.extend(needs);
        }
    }

    /// Notes whether the tables could be opened. Without them it needs no privilege for them.
    pub(super) fn has_splice_tables(&mut self, has: bool) {
        self.splices = has;
        if !has {
            self.needs.retain(|need| !SPLICE.contains(need));
        }
    }

    /// Whether a keeper could do something for it. For a shared port alone there is none, because it only
    /// helps. With `--splice`, nobody but the keeper listens: a socket that the repair keeper has had
    /// could be bound beside another program's listener.
    pub(super) fn can_use_keeper(&self) -> bool {
        self.routes || self.splices || self.needs.contains(&&BUFFERS)
    }

    /// Whether this process itself adds and removes rules.
    pub(super) fn changes_routes(&self) -> bool {
        self.routes && !self.has_keeper
    }

    /// The first need that fails with `kept`, and without the keeper if there is none, and did not with
    /// `held`.
    pub(super) fn lost(&self, held: CapabilitySet, kept: CapabilitySet) -> Option<&'static Need> {
        let is_lost = |need: &&&Need| {
            need.grade == Grade::Required
                && need.is_in(held, kernel())
                && !need.is_in(kept, kernel())
                && !self.is_kept_elsewhere(need)
        };
        self.needs.iter().find(is_lost).copied()
    }

    fn is_kept_elsewhere(&self, need: &Need) -> bool {
        self.has_keeper && [&ROUTES, &BUFFERS].contains(&need)
            || self.has_repair_keeper && *need == SPLICE_NET
    }

    /// The capabilities that it needs after the start, of those in `held`: of each need the first that is
    /// enough.
    pub(super) fn keeps(&self, held: CapabilitySet) -> CapabilitySet {
        let later = |need: &&&Need| {
            need.when.iter().any(|moment| *moment != Moment::Start) && !self.is_kept_elsewhere(need)
        };
        let first = |need: &&Need| need.enough_on(kernel()).find(|capability| capability.is_in(held));
        self.needs
            .iter()
            .filter(later)
            .filter_map(first)
            .fold(CapabilitySet::empty(), |set, one| set | one.set())
    }
}

/// The capabilities of a keeper, of those in `held`: rules and routes, buffers, and a client's port that
/// another program listens on.
pub(super) fn of_keeper(held: CapabilitySet) -> CapabilitySet {
    enough_in(held, &[&ROUTES, &BUFFERS, &SHARE_PORT, &CLIENT_LOW_PORT])
}

/// The repair keeper's capabilities. A reset may come from a listener's low port.
pub(super) fn of_repair_keeper(held: CapabilitySet) -> CapabilitySet {
    enough_in(held, &[&SPLICE_NET, &CLIENT_LOW_PORT])
}

/// The pins keeper's capabilities: before Linux 6.6, for the filters of devices, and before 6.0, for bpf(2).
pub(super) fn of_pins_keeper(held: CapabilitySet, has_tcx: bool) -> CapabilitySet {
    if has_tcx { CapabilitySet::empty() } else { enough_in(held, &[&SPLICE_NET, &SPLICE_TABLES]) }
}

fn enough_in(held: CapabilitySet, needs: &[&Need]) -> CapabilitySet {
    let enough = needs.iter().filter_map(|need| need.enough_on(kernel()).find(|one| one.is_in(held)));
    enough.fold(CapabilitySet::empty(), |set, one| set | one.set())
}

fn of_listener(listener: &ListenerConfig, manages: bool) -> Vec<&'static Need> {
    let mut needs = Vec::new();
    let uses_clients = listener.source() != Source::Any;
    needs.extend(uses_clients.then_some([&TRANSPARENT, &CLIENT_LOW_PORT]).into_iter().flatten());
    needs.extend(listener.transparent.then_some(&LISTEN_TRANSPARENT));
    let replies = manages && (uses_clients || listener.transparent);
    needs.extend(replies.then_some(&ROUTES));
    needs.extend((replies || listener.mark != 0).then_some(&MARK));
    needs.extend(is_low(listener.bind).then_some(&LOW_PORT));
    needs.extend(listener.may_splice().then_some(SPLICE).into_iter().flatten());
    match listener.protocol {
        Protocol::Udp => needs.push(&BUFFERS),
        Protocol::Tcp if listener.http.is_none() => needs.push(&PIPES),
        Protocol::Tcp => {}
    }
    needs
}

fn is_low(address: SocketAddr) -> bool {
    let first = sysctl::read_named("net.ipv4.ip_unprivileged_port_start").unwrap_or(1024);
    address.port() != 0 && i64::from(address.port()) < first
}

/// The paths to permit for a file that may be replaced: its directory, and that of the file that it leads to.
/// In a directory with much else, such as /etc, only the file itself.
fn places(file: &Path) -> Vec<PathBuf> {
    let is_common = |dir: &Path| {
        ["/", "/etc", "/root", "/home", "/run", "/tmp", "/var"].iter().any(|one| dir == Path::new(one))
    };
    let place = |file: &Path| {
        let dir = directory(file);
        if std::fs::canonicalize(&dir).is_ok_and(|dir| is_common(&dir)) { file.to_owned() } else { dir }
    };
    let mut places = vec![place(file)];
    places.extend(std::fs::canonicalize(file).ok().map(|file| place(&file)));
    places
}

pub(super) fn directory(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
