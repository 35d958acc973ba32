//! The pods of a Kubernetes node.

mod conditions;
mod events;
mod limit;
mod pod;
mod retire;
mod told;
mod watch;

use std::sync::Arc;

use anyhow::{Context, Result};
use kube::{Client, Config};
use tokio::sync::mpsc;

use crate::board::Board;
use crate::cap::Cap;
use crate::node::Change;

pub(crate) use retire::retire;

/// What pods may ask for.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    pub(crate) cap: Cap,
    /// Nothing: all are detached, and their conditions removed.
    pub(crate) leaves: bool,
}

/// Hears of this node's pods and tells what came of it, in the background.
pub(crate) async fn start(node: &str, terms: Terms, board: Arc<Board>) -> Result<mpsc::Receiver<Change>> {
    let client = client().await?;
    tracing::info!(node, "watching the pods of this node");
    let (changes, heard) = mpsc::channel(64);
    let seen = Arc::new(told::Seen::default());
    let voice = told::Told {
        client: client.clone(),
        node: node.to_owned(),
        leaves: terms.leaves,
        seen: seen.clone(),
        board,
    };
    tokio::spawn(watch::run(client, node.to_owned(), terms, seen, changes));
    tokio::spawn(voice.run());
    Ok(heard)
}

async fn client() -> Result<Client> {
    let config = Config::infer().await.context(
        "no way to the API server: expected the service account of a pod, or a kubeconfig file in KUBECONFIG",
    )?;
    tracing::info!(server = %config.cluster_url, "the API server");
    Client::try_from(config).context("the API server's address or certificates")
}
