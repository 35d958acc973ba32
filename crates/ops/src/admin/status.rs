//! `/status`: the program and its listeners as JSON. Commands read it with the same types.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use truepeer_bpf::Status;
use truepeer_session::complaints::RecentComplaint;
use truepeer_session::counters::Counter;

use super::{ListenerView, Running, State, name_of};
use truepeer_config::plan::passed::{self, PassedNames};
use truepeer_config::spec::Protocol;

/// The program at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusDoc {
    pub(crate) version: String,
    /// The process.
    pub pid: u32,
    /// The program's file has been replaced or removed since the start. A program that doesn't report it is
    /// older than this one.
    #[serde(default = "yes")]
    pub is_replaced: bool,
    /// See [`State::name`].
    pub(crate) state: String,
    /// Why it is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The sockets that the service manager has passed, by name.
    #[serde(default, skip_serializing_if = "PassedNames::is_empty")]
    pub passed: PassedNames,
    pub(crate) listeners: Vec<ListenerDoc>,
    /// Listeners that should be open and are not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<String>,
    /// Whether sessions may leave user space; `None`: no listener's are to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) splice: Option<SpliceDoc>,
    pub(crate) attachments: Vec<AttachmentDoc>,
    /// Who was refused in the last minutes, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) complaints: Vec<ComplaintDoc>,
}

/// Whether sessions may leave user space (`--splice`).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SpliceDoc {
    /// Why none does, as `sessions_not_spliced` counts it; `None`: they may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// Complaints about one address for one reason, as the log has them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ComplaintDoc {
    pub(crate) reason: String,
    /// `None`: several addresses.
    pub(crate) about: Option<IpAddr>,
    pub(crate) count: u64,
    /// How long ago it was logged.
    pub(crate) seconds: u64,
}

/// One listener.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ListenerDoc {
    pub(crate) entry: String,
    pub(crate) protocol: Protocol,
    pub(crate) addresses: Vec<SocketAddr>,
    /// The site's name, if several share the listener. Connections are counted by the listener, requests by
    /// the site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) site: Option<String>,
    /// Whether it takes new connections.
    pub(crate) listening: bool,
    /// Sessions or flows that are open.
    pub(crate) open: usize,
    /// Since the start, by name.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Refused connections, datagrams and requests since the start, by reason.
    pub(crate) refusals: BTreeMap<String, u64>,
    /// Sessions that were to leave user space and stay, by reason (`--splice auto`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) not_spliced: BTreeMap<String, u64>,
}

/// One attachment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachmentDoc {
    /// The network namespace; empty: this one.
    pub(crate) netns: String,
    /// `None`: unknown.
    pub(crate) attached: Option<bool>,
    pub(crate) ports: Vec<PortDoc>,
}

/// A port of an attachment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PortDoc {
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) draining: bool,
    pub(crate) open: usize,
    pub(crate) counters: BTreeMap<String, u64>,
}

impl StatusDoc {
    pub(crate) fn of(running: &dyn Running) -> Self {
        let state = running.state();
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            is_replaced: is_replaced(),
            state: state.name().to_owned(),
            reason: match state {
                State::Broken(reason) => Some(reason),
                _ => None,
            },
            passed: passed::names().clone(),
            listeners: running.listeners().iter().map(|view| ListenerDoc::of(running, view)).collect(),
            missing: running.missing(),
            splice: running.splice(),
            attachments: running.attachments(),
            complaints: running.complaints().iter().map(ComplaintDoc::of).collect(),
        }
    }
}

/// The process reports it itself: others may not read /proc/PID/exe of a process that has changed its user.
fn is_replaced() -> bool {
    let file = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    file.as_os_str().as_encoded_bytes().ends_with(b" (deleted)")
}

fn yes() -> bool {
    true
}

impl SpliceDoc {
    /// `no_privileges (missing: CAP_BPF)`; `None`: sessions may leave.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let reason = self.reason.as_deref()?;
        Some(self.found.as_deref().map_or_else(|| reason.to_owned(), |found| format!("{reason} ({found})")))
    }
}

impl ComplaintDoc {
    fn of(complaint: &RecentComplaint) -> Self {
        Self {
            reason: complaint.reason.to_owned(),
            about: complaint.about,
            count: complaint.count,
            seconds: complaint.ago.as_secs(),
        }
    }
}

impl ListenerDoc {
    /// Its addresses, and the site's name.
    pub(crate) fn name(&self) -> String {
        name_of(&self.addresses, self.site.as_deref())
    }

    /// The value of a counter.
    pub(crate) fn count(&self, counter: &str) -> u64 {
        self.counters.get(counter).copied().unwrap_or_default()
    }

    /// Connections accepted, and flows opened.
    pub(crate) fn taken(&self) -> u64 {
        self.count("connections_accepted") + self.count("flows_opened")
    }

    fn of(running: &dyn Running, view: &ListenerView) -> Self {
        let counters = running.counters();
        let named = |counter: &Counter| (counter.name().to_owned(), counters.of(view.id, *counter));
        let by_name = |counts: BTreeMap<&str, u64>| {
            counts.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect()
        };
        Self {
            entry: view.entry.to_owned(),
            protocol: view.protocol,
            addresses: view.addresses.clone(),
            site: view.site.clone(),
            listening: view.is_open,
            open: counters.open(view.id),
            counters: Counter::ALL.iter().map(named).collect(),
            refusals: by_name(counters.refusals_of(view.id)),
            not_spliced: by_name(counters.stays_of(view.id)),
        }
    }
}

impl AttachmentDoc {
    /// `netns`: as configured; empty: this one. `status`: `None` if it is unknown, `Some(None)` if it is not
    /// attached.
    pub fn of(netns: String, status: Option<Option<Status>>) -> Self {
        let attached = status.as_ref().map(Option::is_some);
        let ports = status.iter().flatten().flat_map(|status| &status.ports).map(PortDoc::of);
        Self { netns, attached, ports: ports.collect() }
    }
}

impl PortDoc {
    fn of(port: &truepeer_bpf::PortStatus) -> Self {
        let (protocol, open) = match port.traffic {
            truepeer_bpf::Traffic::Tcp(flows) => (Protocol::Tcp, flows.total()),
            truepeer_bpf::Traffic::Udp(_, flows) => (Protocol::Udp, flows),
        };
        let counters = port.counters.iter().map(|(counter, value)| (counter.name.to_owned(), *value));
        Self { port: port.port, protocol, draining: port.draining, open, counters: counters.collect() }
    }
}
