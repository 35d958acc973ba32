//! The pods of a Kubernetes node.

mod conditions;
mod events;
mod limit;
mod pod;
mod retire;
mod status_writer;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::{Client, Config};
use tokio::sync::mpsc;

use crate::node::Change;
use crate::sender_limit::SenderLimit;
use crate::statuses::StatusTable;

pub(crate) use retire::retire;

/// The limits of what pods may ask for.
#[derive(Clone, Default)]
pub(crate) struct PodPolicy {
    pub(crate) sender_limit: SenderLimit,
    /// Nothing: all are detached, and their conditions removed.
    pub(crate) leaves: bool,
}

/// Hears of this node's pods and tells what came of it, in the background.
pub(crate) async fn start(
    node: &str,
    policy: PodPolicy,
    statuses: Arc<StatusTable>,
) -> Result<mpsc::Receiver<Change>> {
    let client = client().await?;
    tracing::info!(node, "watching the pods of this node");
    let (changes, heard) = mpsc::channel(64);
    let seen = Arc::new(status_writer::KnownConditions::default());
    let report = status_writer::Told {
        client: client.clone(),
        node: node.to_owned(),
        leaves: policy.leaves,
        seen: seen.clone(),
        statuses,
    };
    tokio::spawn(watch::run(client, node.to_owned(), policy, seen, changes));
    tokio::spawn(report.run());
    Ok(heard)
}

async fn client() -> Result<Client> {
    let config = Config::infer().await.context(
        "no way to the API server: expected the service account of a pod, or a kubeconfig file in KUBECONFIG",
    )?;
    tracing::info!(server = %config.cluster_url, "the API server");
    Client::try_from(impatient(config)).context("the API server's address or certificates")
}

/// A connection whose other end is gone without a word, as after a failover, must not be waited for: nothing
/// would be heard of pods.
fn impatient(mut config: Config) -> Config {
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true;
    config
}

/// How long the API server may be silent: longer than a watch, which it ends by itself, and than its own
/// limit for other requests.
const SILENCE: Duration = Duration::from_secs(75);
/// How long a watch is, in seconds.
const WATCH: u32 = 60;

/// An error with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    let mut text = error.to_string();
    for cause in causes.map(ToString::to_string) {
        // Some errors repeat their cause.
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
