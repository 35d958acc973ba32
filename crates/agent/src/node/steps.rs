//! A step: a process of `truepeer`, and what came of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::plan::{Key, Step};
use crate::processes::{Place, Proc, cgroup_directory};
use crate::rules::{Port, Rules};
use crate::truepeer::{Status, Truepeer};

/// All that a step needs.
pub(super) struct Work {
    pub(super) key: Key,
    pub(super) place: Place,
    pub(super) truepeer: Truepeer,
    pub(super) proc: Proc,
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) permits: Arc<Semaphore>,
    /// How long open connections are waited for; without it, for ever.
    pub(super) patience: Option<Duration>,
}

/// The end of a step.
pub(super) struct Done {
    pub(super) key: Key,
    pub(super) number: u64,
    pub(super) place: Place,
    pub(super) took: Duration,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    Attached { rules: Rules, warnings: Vec<String> },
    Adopted(Rules),
    NotAdopted(String),
    Detached,
    Failed { step: &'static str, why: String },
}

impl Work {
    pub(super) async fn run(self, step: Step, number: u64) -> Done {
        let failed = |step, error: anyhow::Error| Outcome::Failed { step, why: format!("{error:#}") };
        let mut begin = Instant::now();
        let outcome = match step {
            Step::Attach(rules) => {
                // Closed never.
                let _permit = self.permits.acquire().await;
                begin = Instant::now();
                match self.attach(&rules).await {
                    Ok(warnings) => Outcome::Attached { rules, warnings },
                    Err(error) => failed("attach", error),
                }
            }
            Step::Verify(rules) => {
                let _permit = self.permits.acquire().await;
                match self.truepeer.status(&self.place).await {
                    Ok(status) if serves(&status, &rules) => Outcome::Adopted(rules),
                    Ok(_) => Outcome::NotAdopted("the kernel has other ports".to_owned()),
                    Err(error) => Outcome::NotAdopted(format!("{error:#}")),
                }
            }
            // Waits for connections to end: doesn't hold others up.
            Step::Detach | Step::Forget => match self.detach().await {
                Ok(()) => Outcome::Detached,
                Err(error) => failed("detach", error),
            },
        };
        Done { key: self.key, number, place: self.place, took: begin.elapsed(), outcome }
    }

    async fn detach(&self) -> Result<()> {
        let waiting = self.truepeer.detach(&self.place);
        let Some(patience) = self.patience else { return waiting.await };
        match timeout(patience, waiting).await {
            Ok(done) => done,
            Err(_) => self.truepeer.detach_now(&self.place).await,
        }
    }

    async fn attach(&self, rules: &Rules) -> Result<Vec<String>> {
        let cgroup = self.place.cgroup.as_ref().map(|name| {
            cgroup_directory(&self.cgroups, name).with_context(|| {
                format!("no cgroup {name} is below {}: mount the host's /sys/fs/cgroup", self.shown_cgroups())
            })
        });
        let warnings = self.truepeer.attach(&self.place, cgroup.transpose()?.as_deref(), rules).await?;
        // Its number could have become another process's before truepeer looked.
        ensure!(
            self.proc.is_still(&self.place),
            "process {} ended while truepeer was attached to it",
            self.place.pid
        );
        Ok(warnings)
    }

    fn shown_cgroups(&self) -> String {
        if self.cgroups.is_empty() {
            return "any mount of cgroup v2, there is none".to_owned();
        }
        self.cgroups.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }
}

/// Whether exactly these ports are attached and none of them is about to be detached.
fn serves(status: &Status, rules: &Rules) -> bool {
    let mut found: Vec<(u16, bool)> = status
        .ports
        .iter()
        .filter(|port| !port.draining)
        .map(|port| (port.port, port.protocol == "udp"))
        .collect();
    let mut wanted: Vec<(u16, bool)> = rules
        .ports
        .iter()
        .map(|port| match port {
            Port::Tcp(port) => (*port, false),
            Port::Udp { from, .. } => (*from, true),
        })
        .collect();
    found.sort_unstable();
    wanted.sort_unstable();
    status.attached && found == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truepeer::PortStatus;

    #[test]
    fn the_kernels_ports_are_compared() {
        let rules = Rules {
            ports: [Port::Tcp(80), Port::Udp { from: 53, backend: 5353 }].into(),
            ..Rules::default()
        };
        let port = |port, protocol: &str, draining| PortStatus {
            port,
            protocol: protocol.to_owned(),
            draining,
            ..PortStatus::default()
        };
        let status = |ports| Status { attached: true, ports, ..Status::default() };
        assert!(serves(&status(vec![port(80, "tcp", false), port(53, "udp", false)]), &rules));
        assert!(!serves(&status(vec![port(80, "tcp", true), port(53, "udp", false)]), &rules));
        assert!(!serves(&status(vec![port(80, "tcp", false)]), &rules));
        assert!(!serves(&Status::default(), &rules));
    }
}
