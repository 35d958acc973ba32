//! Before the DaemonSet is deleted: its agents start again with `--leave`, and become ready when nothing of
//! them is left on their node.
//!
//! ```text
//! look: an agent that is not ready on a ready node? ──yes──▶ nothing is changed
//!   │ no
//! agents leave ──all on ready nodes have left──▶ done, and says which nodes were not ready
//!   │ too long
//! agents attach again, on all nodes at a time ──▶ failed, and all is as before
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::options::Retire;

const LEAVE: &str = "--leave";
const INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) async fn retire(options: &Retire) -> Result<()> {
    let set = Set::find(super::client().await?, options).await?;
    let before = set.nodes().await?;
    let unable = before.without(|agent| agent.is_ready);
    if !unable.is_empty() {
        bail!(
            "{}: nothing was changed, because the agent is not ready on {}: mend it there, \
             or uninstall with uninstall.detach=false, which leaves attachments until their pods end",
            set.place,
            names(&unable)
        );
    }
    before.warn_of_lost(&set.place);
    set.write(&leaving(&set.found)?).await?;
    tracing::info!("{}: agents leave", set.place);
    match set.wait_until_left(options.timeout).await {
        Ok(count) => {
            tracing::info!("{}: nothing is left on {count} nodes", set.place);
            Ok(())
        }
        Err(error) => {
            set.go_back(options.timeout).await.context("agents could not be told to attach again")?;
            Err(error.context(format!("{}: agents attach again; all is as before", set.place)))
        }
    }
}

/// The DaemonSet, as it was found.
struct Set {
    client: Client,
    namespace: String,
    found: DaemonSet,
    place: String,
}

impl Set {
    async fn find(client: Client, options: &Retire) -> Result<Self> {
        let Retire { namespace, daemonset, .. } = options;
        let place = format!("DaemonSet {namespace}/{daemonset}");
        let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
        let found = sets.get(daemonset).await.with_context(|| place.clone())?;
        Ok(Self { client, namespace: namespace.clone(), found, place })
    }

    async fn write(&self, patch: &Value) -> Result<()> {
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = self.found.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Strategic(patch);
        sets.patch(name, &PatchParams::default(), &patch).await.with_context(|| self.place.clone())?;
        Ok(())
    }

    async fn nodes(&self) -> Result<Nodes> {
        let all = ListParams::default();
        let nodes = Api::<Node>::all(self.client.clone()).list(&all).await.context("listing nodes")?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace).list(&all).await;
        let uid = self.found.metadata.uid.as_deref().unwrap_or_default();
        Ok(Nodes::of(&nodes.items, &pods.context("listing pods")?.items, uid))
    }

    /// The strategy of before comes last: a node that is not ready could take the only place that it has for
    /// nodes without an agent, and the agents of all others would go on leaving.
    async fn go_back(&self, limit: Duration) -> Result<()> {
        self.write(&attaching(&self.found)?).await?;
        let end = Instant::now() + limit;
        while Instant::now() < end && !self.nodes().await?.without(|agent| agent.is_back).is_empty() {
            tokio::time::sleep(INTERVAL).await;
        }
        self.write(&as_before(&self.found)?).await
    }

    /// How many nodes.
    async fn wait_until_left(&self, limit: Duration) -> Result<usize> {
        let end = Instant::now() + limit;
        let mut lost = BTreeSet::new();
        loop {
            let nodes = self.nodes().await?;
            let left = nodes.without(|agent| agent.is_leaving && agent.is_ready);
            if left.is_empty() {
                return Ok(nodes.agents.len());
            }
            if Instant::now() >= end {
                bail!("after {} s, something is still attached on {}", limit.as_secs(), names(&left));
            }
            if nodes.lost.difference(&lost).next().is_some() {
                nodes.warn_of_lost(&self.place);
                lost.clone_from(&nodes.lost);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// All nodes at a time, since nothing is served meanwhile anyway.
fn leaving(set: &DaemonSet) -> Result<Value> {
    let (container, mut arguments) = container(set)?;
    if !arguments.iter().any(|argument| argument == LEAVE) {
        arguments.push(LEAVE.to_owned());
    }
    Ok(patch(&container, &arguments, &all_at_a_time()))
}

/// Never leaving: an earlier attempt may have been cut off.
fn attaching(set: &DaemonSet) -> Result<Value> {
    let (container, mut arguments) = container(set)?;
    arguments.retain(|argument| argument != LEAVE);
    Ok(patch(&container, &arguments, &all_at_a_time()))
}

fn as_before(set: &DaemonSet) -> Result<Value> {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let mut patch = attaching(set)?;
    patch["spec"]["updateStrategy"] = serde_json::to_value(strategy)?;
    Ok(patch)
}

fn all_at_a_time() -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}})
}

fn container(set: &DaemonSet) -> Result<(String, Vec<String>)> {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let container = pod.and_then(|pod| pod.containers.first()).context("the DaemonSet has no container")?;
    Ok((container.name.clone(), container.args.clone().unwrap_or_default()))
}

fn patch(container: &str, arguments: &[String], strategy: &Value) -> Value {
    let containers = json!([{"name": container, "args": arguments}]);
    json!({"spec": {"updateStrategy": strategy, "template": {"spec": {"containers": containers}}}})
}

fn names(nodes: &[&str]) -> String {
    nodes.iter().map(|node| format!("node {node}")).collect::<Vec<_>>().join(", ")
}

/// An agent of a node.
#[derive(Debug, Default, PartialEq, Eq)]
struct Agent {
    is_ready: bool,
    is_leaving: bool,
    /// Told to attach again.
    is_back: bool,
}

/// The nodes that have an agent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Nodes {
    /// Of nodes that are ready.
    agents: BTreeMap<String, Agent>,
    /// Not ready: nobody can be told anything there.
    lost: BTreeSet<String>,
}

impl Nodes {
    /// `owner`: the DaemonSet's UID.
    fn of(nodes: &[Node], pods: &[Pod], owner: &str) -> Self {
        let ready: BTreeSet<&str> = nodes
            .iter()
            .filter(|node| is_ready(node))
            .filter_map(|node| node.metadata.name.as_deref())
            .collect();
        let mut all = Self::default();
        for pod in pods {
            let owners = pod.metadata.owner_references.iter().flatten();
            let Some(spec) = pod.spec.as_ref().filter(|_| owners.into_iter().any(|one| one.uid == owner))
            else {
                continue;
            };
            let Some(node) = spec.node_name.clone() else { continue };
            if !ready.contains(node.as_str()) {
                all.lost.insert(node);
                continue;
            }
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let is_ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
            let arguments = spec.containers.iter().flat_map(|container| container.args.iter().flatten());
            let is_leaving = arguments.into_iter().any(|argument| argument == LEAVE);
            // Another one may be ending beside it: it has to be gone, too.
            let agent =
                all.agents.entry(node).or_insert(Agent { is_ready: true, is_leaving: true, is_back: true });
            agent.is_ready &= is_ready;
            agent.is_leaving &= is_leaving;
            agent.is_back &= !is_leaving;
        }
        all
    }

    fn without(&self, is_done: impl Fn(&Agent) -> bool) -> Vec<&str> {
        let rest = self.agents.iter().filter(|(_, agent)| !is_done(agent));
        rest.map(|(node, _)| node.as_str()).collect()
    }

    fn warn_of_lost(&self, place: &str) {
        for node in &self.lost {
            tracing::warn!(
                "{place}: node {node} is not ready: what is attached there stays until its pods end"
            );
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str) -> Node {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {"conditions": conditions}}))
            .unwrap()
    }

    fn pod(node: &str, owner: &str, arguments: &[&str], ready: &str) -> Pod {
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": owner}]);
        serde_json::from_value(json!({"metadata": {"ownerReferences": owner},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "args": arguments}]},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn nodes_that_are_not_ready_are_told_apart() {
        let nodes = [node("a", "True"), node("b", "Unknown"), node("c", "True")];
        let pods = [
            pod("a", "set", &["kubernetes", LEAVE], "True"),
            pod("b", "set", &["kubernetes"], "False"),
            pod("c", "set", &["kubernetes", LEAVE], "False"),
            pod("c", "other", &["kubernetes"], "False"),
        ];
        let all = Nodes::of(&nodes, &pods, "set");
        assert_eq!(all.lost, ["b".to_owned()].into());
        assert_eq!(all.without(|agent| agent.is_leaving && agent.is_ready), ["c"]);
        assert_eq!(all.without(|agent| agent.is_leaving), Vec::<&str>::new());
    }

    #[test]
    fn the_way_back_is_as_it_was_found() {
        let containers =
            json!([{"name": "agent", "args": ["kubernetes", LEAVE, "--max-pods=9"]}, {"name": "side"}]);
        let strategy =
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}});
        let template = json!({"metadata": {}, "spec": {"containers": containers}});
        let spec = json!({"selector": {}, "template": template, "updateStrategy": strategy});
        let found: DaemonSet = serde_json::from_value(json!({"spec": spec})).unwrap();
        let left = leaving(&found).unwrap();
        assert_eq!(left["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], "100%");
        let back = as_before(&found).unwrap();
        let containers = &back["spec"]["template"]["spec"]["containers"];
        assert_eq!(containers, &json!([{"name": "agent", "args": ["kubernetes", "--max-pods=9"]}]));
        assert_eq!(back["spec"]["updateStrategy"], strategy);
    }
}
