//! A network namespace, and what truepeer does there.

use super::*;
use crate::truepeer::{Attachment, PortStatus, RulesInForce, SenderInForce};

/// A pod's process with its network namespace, and what is attached there.
pub(super) struct Sandbox {
    pub(super) started: u64,
    /// The inode of its network namespace. A later namespace may get the same number.
    pub(super) netns: u64,
    /// When there is a process, and when the network plugin is through.
    pub(super) has_process: Instant,
    pub(super) has_address: Instant,
    attached: Option<Attached>,
}

struct Attached {
    rules: Rules,
    /// It is being detached: open connections last so long.
    drains_until: Option<Instant>,
}

impl Sandbox {
    pub(super) fn new(started: u64, netns: u64, now: Instant) -> Self {
        Self { started, netns, has_process: now, has_address: now, attached: None }
    }

    pub(super) fn place(&self) -> Place {
        Place { pid: 7, started: self.started, netns: self.netns, cgroup: None }
    }

    pub(super) fn is_at(&self, place: &Place) -> bool {
        (self.started, self.netns) == (place.started, place.netns)
    }

    pub(super) fn attach(&mut self, rules: Rules) {
        self.attached = Some(Attached { rules, drains_until: None });
    }

    /// An attach that was killed: some ports are new, and the senders are not.
    pub(super) fn attach_half(&mut self, rules: &Rules) {
        let before = self.attached.take().map(|attached| attached.rules).unwrap_or_default();
        let ports = before.ports.union(&rules.ports).copied().collect();
        self.attach(Rules { ports, ..before });
    }

    /// New connections pass from now on, and open ones are waited for.
    pub(super) fn drain(&mut self, until: Instant) {
        if let Some(attached) = &mut self.attached {
            attached.drains_until.get_or_insert(until);
        }
    }

    /// Open connections have ended.
    pub(super) fn is_drained(&self, now: Instant) -> bool {
        self.attached.as_ref().is_none_or(|attached| attached.drains_until.is_some_and(|end| end <= now))
    }

    pub(super) fn detach(&mut self) {
        self.attached = None;
    }

    pub(super) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// The rules that hold for new connections.
    pub(super) fn serving(&self) -> Option<&Rules> {
        let serving = self.attached.as_ref().filter(|attached| attached.drains_until.is_none());
        serving.map(|attached| &attached.rules)
    }

    /// As truepeer tells it.
    pub(super) fn status(&self) -> Status {
        let Some(Attached { rules, drains_until }) = &self.attached else {
            return Status { netns: Some(self.netns), ..Status::default() };
        };
        let header = rules.header.to_string();
        let sender = |prefix: &ipnet::IpNet| SenderInForce { prefix: *prefix, header: header.clone() };
        let port = |port: &Port| PortStatus {
            ports: port.to_string(),
            protocol: "tcp".to_owned(),
            draining: drains_until.is_some(),
            ..PortStatus::default()
        };
        let in_force = RulesInForce {
            senders: rules.allow.iter().map(sender).collect(),
            header_timeout_ms: 5000,
            header_wait_ms: 1000,
            header_max: 16384,
            unshowable: "show-sender".to_owned(),
            close_after_s: 60,
            ..RulesInForce::default()
        };
        Status {
            attached: true,
            current: true,
            netns: Some(self.netns),
            ports: rules.ports.iter().map(port).collect(),
            attachments: vec![Attachment { id: 0, rules: Some(in_force) }],
            ..Status::default()
        }
    }
}
