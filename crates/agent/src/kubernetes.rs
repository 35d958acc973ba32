//! The pods of a Kubernetes node.

mod conditions;
mod events;
mod limit;
mod pod;
mod told;
mod watch;

use std::sync::Arc;

use anyhow::{Context, Result};
use kube::{Client, Config};
use tokio::sync::mpsc;

use crate::board::Board;
use crate::cap::Cap;
use crate::node::Change;

/// Hears of this node's pods and tells what came of it, in the background.
pub(crate) async fn start(node: &str, cap: Cap, board: Arc<Board>) -> Result<mpsc::Receiver<Change>> {
    let config = Config::infer().await.context(
        "no way to the API server: expected the service account of a pod, or a kubeconfig file in KUBECONFIG",
    )?;
    tracing::info!(server = %config.cluster_url, node, "watching the pods of this node");
    let client = Client::try_from(config).context("the API server's address or certificates")?;
    let (changes, heard) = mpsc::channel(64);
    let seen = Arc::new(told::Seen::default());
    tokio::spawn(watch::run(client.clone(), node.to_owned(), cap, seen.clone(), changes));
    tokio::spawn(told::run(client, node.to_owned(), seen, board));
    Ok(heard)
}
