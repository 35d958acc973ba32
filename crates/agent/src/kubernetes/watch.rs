//! Hears of the node's pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::mpsc;

use crate::node::Change;
use crate::plan::Key;

use super::pod::AnnotatedPod;
use super::status_writer::KnownConditions;
use super::{PodPolicy, WATCH, whole};

/// The same complaint at most so often.
const COMPLAINTS: Duration = Duration::from_secs(60);

/// Watches until the receiver is gone. An API server that can't be reached is tried again, ever more rarely.
pub(super) async fn run(
    client: Client,
    node: String,
    policy: PodPolicy,
    seen: Arc<KnownConditions>,
    changes: mpsc::Sender<Change>,
) {
    let pods: Api<Pod> = Api::all(client);
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}")).timeout(WATCH);
    let mut stream = watcher(pods, config).default_backoff().boxed();
    let mut listed: BTreeSet<Key> = BTreeSet::new();
    let mut complained: Option<Instant> = None;
    while let Some(event) = stream.next().await {
        let change = match event {
            Ok(watcher::Event::Init) => {
                listed.clear();
                None
            }
            Ok(watcher::Event::InitApply(pod)) => {
                let change = of(&pod, &policy, &seen);
                if let Some(Change::Set(key, _)) = &change {
                    listed.insert(key.clone());
                }
                change
            }
            Ok(watcher::Event::InitDone) => {
                seen.keep(&listed);
                Some(Change::Only(std::mem::take(&mut listed)))
            }
            Ok(watcher::Event::Apply(pod)) => of(&pod, &policy, &seen),
            Ok(watcher::Event::Delete(pod)) => pod.metadata.uid.map(|uid| {
                seen.remove(&uid);
                Change::Gone(uid)
            }),
            Err(error) => {
                let now = Instant::now();
                if complained.is_none_or(|last| now.duration_since(last) >= COMPLAINTS) {
                    complained = Some(now);
                    tracing::warn!("watching pods: {}; what is attached stays", whole(&error));
                }
                None
            }
        };
        if let Some(change) = change
            && changes.send(change).await.is_err()
        {
            return;
        }
    }
}

fn of(pod: &Pod, policy: &PodPolicy, seen: &KnownConditions) -> Option<Change> {
    match AnnotatedPod::of(pod, policy) {
        Some(annotated) => {
            seen.note(&annotated);
            Some(Change::Set(annotated.uid, annotated.desired))
        }
        None => {
            let uid = pod.metadata.uid.clone()?;
            seen.remove(&uid);
            Some(Change::Gone(uid))
        }
    }
}
