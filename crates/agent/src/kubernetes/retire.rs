//! Before the DaemonSet is deleted: its agents start again with `--leave`, and become ready when nothing of them is left on their node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::options::Retire;

const LEAVE: &str = "--leave";
const INTERVAL: Duration = Duration::from_secs(1);

/// Patches the DaemonSet and waits for all nodes.
pub(crate) async fn retire(options: &Retire) -> Result<()> {
    let Retire { namespace, daemonset, timeout } = options;
    let sets: Api<DaemonSet> = Api::namespaced(super::client().await?, namespace);
    let place = format!("DaemonSet {namespace}/{daemonset}");
    let set = sets.get(daemonset).await.with_context(|| place.clone())?;
    let patch = Patch::Strategic(patch(&set).with_context(|| place.clone())?);
    let patched =
        sets.patch(daemonset, &PatchParams::default(), &patch).await.with_context(|| place.clone())?;
    let generation = patched.metadata.generation.unwrap_or_default();
    tracing::info!("{place}: agents leave");
    let end = Instant::now() + *timeout;
    loop {
        let set = sets.get(daemonset).await.with_context(|| place.clone())?;
        match progress(&set, generation) {
            Progress::Done(nodes) => {
                tracing::info!("{place}: nothing is left on {nodes} nodes");
                return Ok(());
            }
            Progress::Waiting(what) if Instant::now() >= end => {
                bail!("{place}: after {} s, {what}; see the logs of its pods", timeout.as_secs());
            }
            Progress::Waiting(_) => tokio::time::sleep(INTERVAL).await,
        }
    }
}

/// All nodes at a time, since nothing is served meanwhile anyway.
fn patch(set: &DaemonSet) -> Result<Value> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let container = pod.and_then(|pod| pod.containers.first()).context("it has no container")?;
    let mut arguments = container.args.clone().unwrap_or_default();
    if !arguments.iter().any(|argument| argument == LEAVE) {
        arguments.push(LEAVE.to_owned());
    }
    let containers = json!([{"name": container.name, "args": arguments}]);
    let strategy =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}});
    Ok(json!({"spec": {"updateStrategy": strategy, "template": {"spec": {"containers": containers}}}}))
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Done(i32),
    Waiting(String),
}

fn progress(set: &DaemonSet, generation: i64) -> Progress {
    let Some(status) = &set.status else {
        return Progress::Waiting("the DaemonSet has no status".to_owned());
    };
    if status.observed_generation.unwrap_or_default() < generation {
        return Progress::Waiting("the controller has not seen the change".to_owned());
    }
    let nodes = status.desired_number_scheduled;
    let (updated, ready) = (status.updated_number_scheduled.unwrap_or_default(), status.number_ready);
    if updated == nodes && ready == nodes {
        return Progress::Done(nodes);
    }
    Progress::Waiting(format!(
        "of {nodes} nodes, {updated} have the agent that leaves, and {ready} are ready"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(status: Value) -> DaemonSet {
        let containers = json!([{"name": "agent", "args": ["kubernetes"]}, {"name": "side"}]);
        let template = json!({"metadata": {}, "spec": {"containers": containers}});
        serde_json::from_value(json!({"spec": {"selector": {}, "template": template}, "status": status}))
            .unwrap()
    }

    #[test]
    fn the_agents_container_gets_the_option_once() {
        let patched = patch(&set(json!({}))).unwrap();
        let containers = &patched["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers, &json!([{"name": "agent", "args": ["kubernetes", "--leave"]}]));
        let mut again = set(json!({}));
        let spec = again.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
        spec.containers[0].args = Some(vec!["kubernetes".to_owned(), "--leave".to_owned()]);
        assert_eq!(patch(&again).unwrap(), patched);
    }

    #[test]
    fn all_nodes_are_waited_for() {
        let status = |seen, updated, ready| {
            json!({"observedGeneration": seen, "desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberMisscheduled": 0,
                   "updatedNumberScheduled": updated, "numberReady": ready})
        };
        assert_eq!(progress(&set(status(3, 2, 2)), 3), Progress::Done(2));
        assert!(matches!(progress(&set(status(2, 2, 2)), 3), Progress::Waiting(_)));
        let waiting =
            Progress::Waiting("of 2 nodes, 1 have the agent that leaves, and 2 are ready".to_owned());
        assert_eq!(progress(&set(status(3, 1, 2)), 3), waiting);
    }
}
