//! `/status`: the program and its listeners as JSON. Commands read it with the same types.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use truepeer_bpf::Status;
use truepeer_session::complaints::RecentComplaint;
use truepeer_session::counters::Counter;

use super::{ListenerView, Running, State, name_of};
use crate::reasons;
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
    /// Recent refusals: whom, and why.
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
    /// The listener that it happened at, as it is named elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) listener: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Protocol>,
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
    /// The doctor's round trip: what this host may send to each address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) from_here: Vec<FromHere>,
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

/// An address of a listener, and the header that this host may send there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromHere {
    /// Where to connect.
    pub to: SocketAddr,
    /// The header, or why no connection is made.
    pub may: Trial,
}

/// A header that this host may send. It names the client
/// [`truepeer_routes::item::IpFamily::example_client`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trial {
    /// A header of version 1.
    V1,
    /// A header of version 2.
    V2,
    /// No header: the sender's rule is `forbid`.
    NoHeader,
    /// More than bytes for the backend: TLS, or requests.
    Spoken,
    /// Nothing: it would be refused, for this reason.
    Refused(String),
}

/// One attachment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachmentDoc {
    /// The network namespace; empty: this one.
    pub(crate) netns: String,
    /// `None`: unknown.
    pub(crate) attached: Option<bool>,
    /// Devices that are up and have an address, and whose packets pass by the programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) uncovered: Vec<String>,
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
        let (state, views) = (running.state(), running.listeners());
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
            listeners: views.iter().map(|view| ListenerDoc::of(running, view)).collect(),
            missing: running.missing(),
            splice: running.splice(),
            attachments: running.attachments(),
            complaints: running.complaints().iter().map(|one| ComplaintDoc::of(one, &views)).collect(),
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
    /// Why none may leave, in words; `None`: sessions may leave.
    pub(crate) fn obstacle(&self) -> Option<String> {
        let told = reasons::stay(self.reason.as_deref()?);
        let found = self.found.as_deref().map_or_else(String::new, |found| format!(": {found}"));
        Some(format!("{told}{found}"))
    }
}

impl ComplaintDoc {
    fn of(complaint: &RecentComplaint, views: &[ListenerView]) -> Self {
        let subject = complaint.subject;
        let view = views.iter().find(|view| view.id == subject.listener);
        Self {
            reason: subject.reason.code().to_owned(),
            listener: view.map(ListenerView::name),
            protocol: view.map(|view| view.protocol),
            about: subject.about,
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
            from_here: running.trials(view),
            open: counters.open(view.id),
            counters: Counter::ALL.iter().map(named).collect(),
            refusals: by_name(counters.refusals_of(view.id)),
            not_spliced: by_name(counters.stays_of(view.id)),
        }
    }
}

impl AttachmentDoc {
    /// `netns`: as configured; empty: this one. `status`: `None` if it is unknown, `Some(None)` if it is not
    /// attached. `uncovered`: devices in use without the programs.
    pub fn of(netns: String, status: Option<Option<Status>>, uncovered: Vec<String>) -> Self {
        let attached = status.as_ref().map(Option::is_some);
        let ports = status.iter().flatten().flat_map(|status| &status.ports).map(PortDoc::of);
        Self { netns, attached, uncovered, ports: ports.collect() }
    }

    /// What becomes of connections by devices that are not covered.
    pub(crate) fn warning(&self) -> String {
        let devices = self.uncovered.join(", ");
        format!("not covered: {devices}; connections that come in there are refused (refused_unjudged)")
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
