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

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::options::Retire;

const LEAVE: &str = "--leave";
const INTERVAL: Duration = Duration::from_secs(1);
/// Of one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the way back, once this job is told to end: less than the kubelet waits.
const TOLD: Duration = Duration::from_secs(15);

/// See the module. `told`: to end, as a job is whose node is drained.
pub(crate) async fn retire(options: &Retire, told: impl Future<Output = ()>) -> Result<()> {
    let set = Set::find(super::client().await?, options).await?;
    let before = set.nodes(&BTreeSet::new()).await?;
    let unable = before.without(|agent| agent.is_ready);
    if !unable.is_empty() {
        bail!(
            "{}: nothing was changed, because the agent is not ready on {}: mend it there, \
             or uninstall with uninstall.detach=false, which leaves attachments until their pods end",
            set.place,
            names(&unable)
        );
    }
    let lacking = before.lacking(&set.found);
    if lacking > 0 {
        bail!(
            "{}: nothing was changed, because {lacking} of its nodes have no agent yet: try again",
            set.place
        );
    }
    before.warn_of_lost(&set.place);
    let asked: BTreeSet<String> = before.agents.into_keys().collect();
    let (left, limit) = tokio::select! {
        left = set.leave(&asked, options.timeout) => (left, options.timeout),
        () = told => (Err(anyhow!("this job was told to end")), TOLD.min(options.timeout)),
    };
    match left {
        Ok(count) => {
            tracing::info!("{}: nothing is left on {count} nodes", set.place);
            Ok(())
        }
        // Also if the API server did not answer: it may have told the agents.
        Err(error) => {
            set.go_back(&asked, limit).await.context("agents could not be told to attach again")?;
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

    /// An API server may be away for a while, or slow: tries until then.
    async fn write(&self, patch: &Value, end: Instant) -> Result<()> {
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = self.found.metadata.name.as_deref().unwrap_or_default();
        let (patch, usual) = (Patch::Strategic(patch), PatchParams::default());
        let ask = async || {
            sets.patch(name, &usual, &patch).await?;
            Ok(())
        };
        again(end, ask).await.with_context(|| self.place.clone())
    }

    /// `asked`: nodes that have had an agent.
    async fn nodes(&self, asked: &BTreeSet<String>) -> Result<Nodes> {
        let all = ListParams::default();
        let nodes = Api::<Node>::all(self.client.clone()).list(&all).await.context("listing nodes")?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.namespace).list(&all).await;
        let uid = self.found.metadata.uid.as_deref().unwrap_or_default();
        Ok(Nodes::of(&nodes.items, &pods.context("listing pods")?.items, uid, asked))
    }

    /// How many nodes.
    async fn leave(&self, asked: &BTreeSet<String>, limit: Duration) -> Result<usize> {
        let end = Instant::now() + limit;
        self.write(&leaving(&self.found)?, end).await?;
        tracing::info!("{}: agents leave", self.place);
        self.wait_until_left(asked, limit, end).await
    }

    /// The strategy of before comes last: a node that is not ready could take the only place that it has for
    /// nodes without an agent, and the agents of all others would go on leaving.
    async fn go_back(&self, asked: &BTreeSet<String>, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        self.write(&attaching(&self.found)?, end).await?;
        while Instant::now() < end {
            let nodes = again(end, async || self.nodes(asked).await).await;
            if nodes.is_ok_and(|nodes| nodes.without(|agent| agent.is_back).is_empty()) {
                break;
            }
            sleep(INTERVAL).await;
        }
        self.write(&as_before(&self.found)?, Instant::now() + PATIENCE).await
    }

    async fn wait_until_left(
        &self,
        asked: &BTreeSet<String>,
        limit: Duration,
        end: Instant,
    ) -> Result<usize> {
        let mut lost = BTreeSet::new();
        loop {
            let nodes = again(end, async || self.nodes(asked).await).await?;
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
            sleep(INTERVAL).await;
        }
    }
}

/// Until it is answered, or the time is over.
async fn again<T>(end: Instant, ask: impl AsyncFn() -> Result<T>) -> Result<T> {
    loop {
        let answer = timeout(PATIENCE, ask()).await.unwrap_or_else(|_| Err(anyhow!("no answer")));
        match answer {
            Err(error) if Instant::now() < end => {
                tracing::warn!("the API server: {error:#}; trying again");
                sleep(INTERVAL).await;
            }
            answer => return answer,
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
    /// `owner`: the DaemonSet's UID. `asked`: where no agent is, none has left: the one before has ended, and
    /// the next one is not created yet.
    fn of(nodes: &[Node], pods: &[Pod], owner: &str, asked: &BTreeSet<String>) -> Self {
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
        for node in asked.iter().filter(|node| ready.contains(node.as_str())) {
            all.agents.entry(node.clone()).or_default();
        }
        all
    }

    /// How many more there must be.
    fn lacking(&self, set: &DaemonSet) -> usize {
        let wanted = set.status.as_ref().map_or(0, |status| status.desired_number_scheduled);
        usize::try_from(wanted).unwrap_or_default().saturating_sub(self.agents.len() + self.lost.len())
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
        let all = Nodes::of(&nodes, &pods, "set", &BTreeSet::new());
        assert_eq!(all.lost, ["b".to_owned()].into());
        assert_eq!(all.without(|agent| agent.is_leaving && agent.is_ready), ["c"]);
        assert_eq!(all.without(|agent| agent.is_leaving), Vec::<&str>::new());
    }

    #[test]
    fn a_node_whose_agent_is_not_created_yet_is_missed() {
        let status = json!({"desiredNumberScheduled": 2, "currentNumberScheduled": 1, "numberMisscheduled": 0,
            "numberReady": 1});
        let set: DaemonSet = serde_json::from_value(json!({"status": status})).unwrap();
        let nodes = [node("a", "True"), node("b", "Unknown")];
        let of = |pods: &[Pod]| Nodes::of(&nodes, pods, "set", &BTreeSet::new()).lacking(&set);
        let first = pod("a", "set", &["kubernetes"], "True");
        assert_eq!(of(std::slice::from_ref(&first)), 1);
        assert_eq!(of(&[first, pod("b", "set", &["kubernetes"], "False")]), 0);
    }

    #[test]
    fn a_node_between_two_agents_has_not_left() {
        let nodes = [node("a", "True"), node("b", "True"), node("c", "Unknown")];
        let pods = [pod("a", "set", &["kubernetes", LEAVE], "True")];
        let asked = ["a", "b", "c", "removed"].map(str::to_owned).into();
        let all = Nodes::of(&nodes, &pods, "set", &asked);
        assert_eq!(all.without(|agent| agent.is_leaving && agent.is_ready), ["b"]);
        assert_eq!(all.without(|agent| agent.is_back), ["a", "b"]);
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
