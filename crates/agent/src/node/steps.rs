//! A step: a process of `truepeer`, and what came of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::plan::{Key, Step};
use crate::processes::{Place, Proc, cgroup_directory};
use crate::rules::Rules;
use crate::truepeer::Truepeer;

use super::outcome::{Done, Outcome};

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

impl Work {
    pub(super) async fn run(self, step: Step, number: u64) -> Done {
        let failed = |step, error: anyhow::Error| Outcome::Failed { step, why: format!("{error:#}") };
        let mut begin = Instant::now();
        let mut addresses = None;
        let outcome = match step {
            Step::Attach(rules) => {
                // Closed never.
                let _permit = self.permits.acquire().await;
                begin = Instant::now();
                addresses = self.proc.addresses(&self.place);
                match self.attach(&rules).await {
                    Ok(warnings) => Outcome::Attached { rules, warnings },
                    // It has ended, and another one is looked for: nothing is wrong.
                    Err(_) if !self.proc.is_still(&self.place) => Outcome::Ended,
                    Err(error) => failed("attach", error),
                }
            }
            Step::Look(rules) => {
                let _permit = self.permits.acquire().await;
                addresses = self.proc.addresses(&self.place);
                let told = self.truepeer.status(&self.place).await;
                Outcome::of_look(told, rules, self.place.netns, addresses.as_ref())
            }
            // Waits for connections to end: doesn't hold others up.
            Step::Detach | Step::Forget => match self.detach().await {
                Ok(()) => Outcome::Detached,
                Err(error) => failed("detach", error),
            },
        };
        Done { key: self.key, number, place: self.place, addresses, took: begin.elapsed(), outcome }
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
        // It has no effect for UDP.
        let cgroup = self.place.cgroup.as_ref().filter(|_| rules.has_tcp()).map(|name| {
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
