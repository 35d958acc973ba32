//! What is there on this host: the configuration file, the truepeer that runs by it, attachments, and sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use truepeer_attach::Attached;
use truepeer_config::plan::{AdminConfig, CheckedProcess, EntryConfig, ListenerConfig, ProcessConfig};
use truepeer_config::spec::{AdminAddr, Protocol};
use truepeer_routes::item::IpTransport;

use super::listening::{self, Socket};
use super::owners::{self, Owner};
use super::report::{Check, Report};
use crate::admin::client::Client;
use crate::admin::status::{ComplaintDoc, ListenerDoc, StatusDoc};

/// Where to look.
#[derive(Debug)]
pub struct SceneOptions {
    /// The configuration file.
    pub file: PathBuf,
    /// It was named: it has to be there.
    pub is_named: bool,
    /// What it says, or what is wrong with it. `None`: it is not there.
    pub read: Option<Result<ReadFile, String>>,
    /// The running truepeer; `None`: the file's.
    pub running: Option<AdminAddr>,
    /// Adds missing rules and routes for the duration of the test, and bans its client for a moment.
    pub with_routes: bool,
    /// How long a server may take to answer.
    pub timeout: Duration,
    /// Write JSON.
    pub json: bool,
}

/// A configuration file without errors.
#[derive(Debug)]
pub struct ReadFile {
    /// What it means.
    pub process: ProcessConfig,
    /// The same with all files read and names resolved.
    pub checked: CheckedProcess,
    /// Sentences in its keys.
    pub warnings: Vec<String>,
}

pub(super) struct Scene<'a> {
    pub(super) loaded: Option<&'a ReadFile>,
    pub(super) running: Option<StatusDoc>,
    /// Where that answers.
    pub(super) admin: Option<Client>,
    pub(super) attached: Option<Attached>,
    pub(super) timeout: Duration,
    /// `--try`.
    pub(super) bans: bool,
}

/// A port with its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AtPort {
    /// Its number.
    pub port: u16,
    /// Of UDP.
    pub is_udp: bool,
}

impl std::fmt::Display for AtPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.port, if self.is_udp { "udp" } else { "tcp" })
    }
}

impl AtPort {
    pub(super) fn transport(self) -> IpTransport {
        if self.is_udp { IpTransport::Udp } else { IpTransport::Tcp }
    }

    /// The command that lists who is connected to it.
    pub(super) fn sockets_command(self) -> String {
        format!("ss -{}np 'sport = :{}'", if self.is_udp { "u" } else { "t" }, self.port)
    }

    /// The sockets that take what comes to it, with their processes.
    pub(super) fn sockets(self) -> Vec<(SocketAddr, Option<Owner>)> {
        let sockets: Vec<Socket> = listening::sockets_of(self.transport())
            .into_iter()
            .filter(|socket| socket.address.port() == self.port)
            .collect();
        let inodes: Vec<u64> = sockets.iter().map(|socket| socket.inode).collect();
        let owners = owners::owners(&inodes);
        let mut named: Vec<_> =
            sockets.iter().map(|socket| (socket.address, owners.get(&socket.inode).cloned())).collect();
        named.sort();
        named.dedup();
        named
    }

    /// Who is connected to it, or was a moment ago (TIME_WAIT), the most frequent first.
    pub(super) fn peers(self) -> Vec<(IpAddr, usize)> {
        let mut peers: BTreeMap<IpAddr, usize> = BTreeMap::new();
        if !self.is_udp {
            listening::peers_of(self.port).into_iter().for_each(|peer| *peers.entry(peer).or_default() += 1);
        }
        let mut peers: Vec<_> = peers.into_iter().collect();
        peers.sort_by_key(|(ip, count)| (std::cmp::Reverse(*count), *ip));
        peers
    }
}

impl<'a> Scene<'a> {
    /// Looks, and reports what is wrong with the file and with the process.
    pub(super) fn look(options: &'a SceneOptions, report: &mut Report) -> Self {
        let loaded = file(options, report);
        let address = address(options, loaded);
        let admin = address.clone().map(Client::of_address);
        let (running, failure) = match address {
            Some(address) => match ask(&address) {
                Ok(status) => (Some(status), None),
                Err(error) => (None, Some((address, format!("{error:#}")))),
            },
            None => (None, None),
        };
        match (&running, failure) {
            (Some(status), _) => process(status, report),
            (None, Some((address, failure))) if loaded.is_some() || options.running.is_some() => {
                report.add(idle(&address, failure, options));
            }
            _ => {}
        }
        let attached = match truepeer_attach::attached_here() {
            Ok(attached) => attached,
            Err(error) => {
                report.add(
                    Check::skip("attached", "what is attached here", format!("{error:#}"))
                        .mend("sudo truepeer doctor"),
                );
                None
            }
        };
        Self { loaded, running, admin, attached, timeout: options.timeout, bans: options.with_routes }
    }

    /// The ports of the backends behind a listener of the file at this port.
    pub(super) fn backend_ports(&self, at: AtPort) -> Vec<u16> {
        let entries = self.loaded.into_iter().flat_map(|loaded| &loaded.process.entries);
        let listeners = entries.filter_map(EntryConfig::relay).flat_map(|config| &config.listeners);
        let listeners = listeners.filter(|listener| listener.bind.port() == at.port);
        listeners.flat_map(ListenerConfig::backend_ports).collect()
    }

    /// The listeners of the running truepeer at this port, and the sites that share one.
    pub(super) fn listeners(&self, at: AtPort) -> Vec<&ListenerDoc> {
        let is_here = |address: &SocketAddr| address.port() == at.port;
        let is_udp = |listener: &ListenerDoc| listener.protocol == Protocol::Udp;
        let all = self.running.iter().flat_map(|status| &status.listeners);
        all.filter(|listener| is_udp(listener) == at.is_udp && listener.addresses.iter().any(is_here))
            .collect()
    }

    /// Who was refused there in the last minutes, and why.
    pub(super) fn complaints(&self, listeners: &[&ListenerDoc]) -> Vec<&ComplaintDoc> {
        let is_of = |complaint: &&ComplaintDoc| {
            listeners.iter().any(|listener| {
                complaint.protocol == Some(listener.protocol)
                    && complaint.listener.as_deref() == Some(&*listener.name())
            })
        };
        self.running.iter().flat_map(|status| &status.complaints).filter(is_of).collect()
    }
}

fn file<'a>(options: &'a SceneOptions, report: &mut Report) -> Option<&'a ReadFile> {
    let name = options.file.display();
    let tried = format!("the file {name}");
    match &options.read {
        None if options.is_named => report.add(Check::fail("file", tried, "there is no such file")),
        None => {}
        Some(Ok(read)) => {
            let entries = read.process.entries.len();
            let plural = if entries == 1 { "entry" } else { "entries" };
            report.add(Check::ok("file", tried.clone()).found(format!("{entries} {plural}")));
            for warning in &read.warnings {
                report.add(Check::note("file_warning", tried.clone(), warning.clone()));
            }
            return Some(read);
        }
        Some(Err(rejected)) => {
            let first = rejected.lines().next().unwrap_or_default();
            let first = first.strip_prefix(&format!("{name}:")).unwrap_or(first).trim();
            report.add(Check::fail("file", tried, first).mend(format!("truepeer check -c {name}")));
        }
    }
    None
}

fn address(options: &SceneOptions, loaded: Option<&ReadFile>) -> Option<AdminAddr> {
    // A socket for /whois alone tells no status.
    let tells = |listen: &&AdminAddr| !matches!(listen, AdminAddr::Whois(_));
    let of_file = || loaded.and_then(|loaded| loaded.process.admin.listen.iter().find(tells).cloned());
    // The file may be broken, and the process that runs by what it was before is still of interest.
    let usual = || AdminConfig::of_file(Vec::new()).listen.pop();
    options.running.clone().or_else(of_file).or_else(usual)
}

fn ask(address: &AdminAddr) -> anyhow::Result<StatusDoc> {
    let answer = Client::of_address(address.clone()).ask("GET", "/status")?;
    Ok(serde_json::from_str(&answer)?)
}

fn process(status: &StatusDoc, report: &mut Report) {
    let tried = format!("truepeer, process {}", status.pid);
    let reason = status.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let found = format!("{}{reason}", status.state);
    report.add(match status.state.as_str() {
        "broken" => Check::fail("process", tried, found).mend("truepeer status"),
        "serving" => Check::ok("process", tried).found(found),
        _ => Check::note("process", tried, found),
    });
    for missing in &status.missing {
        report.add(
            Check::fail("listener", format!("the listener {missing}"), "it is not open")
                .mend("truepeer reload"),
        );
    }
}

/// The file is there, and nobody answers.
fn idle(address: &AdminAddr, failure: String, options: &SceneOptions) -> Check {
    let has_unit = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"]
        .iter()
        .any(|place| Path::new(place).join("truepeer.service").exists());
    let start = if has_unit && options.file == Path::new(truepeer_config::spec::defaults::CONFIG) {
        "systemctl start truepeer".to_owned()
    } else {
        format!("truepeer serve -c {}", options.file.display())
    };
    let check = Check::note("process", format!("the truepeer at {address}"), failure);
    if options.running.is_some() { check } else { check.mend(start) }
}
