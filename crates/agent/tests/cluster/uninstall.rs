//! `truepeer-agent retire`, with the test in the place of the DaemonSet's controller and of the nodes.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Test;
use crate::bed::Bed;
use crate::cluster::NAMESPACE;
use crate::wait::until;

pub(crate) const TESTS: &[Test] = &[
    (
        "an_uninstall_changes_nothing_where_an_agent_is_not_ready",
        an_uninstall_changes_nothing_where_an_agent_is_not_ready,
    ),
    ("an_uninstall_leaves_out_nodes_that_are_not_ready", an_uninstall_leaves_out_nodes_that_are_not_ready),
    ("after_an_uninstall_that_fails_agents_attach_again", after_an_uninstall_that_fails_agents_attach_again),
];

const SET: &str = "uninstalled";

/// A DaemonSet on two nodes; all of it ends with the test.
struct Agents<'a> {
    bed: &'a Bed,
    uid: String,
}

impl<'a> Agents<'a> {
    /// Whether the nodes are ready, and the agents on them.
    fn start(bed: &'a Bed, nodes: [(&str, bool, bool); 2]) -> Result<Self> {
        let pod = json!({"metadata": {"labels": {"app": SET}},
            "spec": {"containers": [{"name": "agent", "image": "none", "args": ["kubernetes"]}]}});
        let set = json!({"metadata": {"name": SET}, "spec": {"selector": {"matchLabels": {"app": SET}}, "template": pod,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": "10%"}}}});
        let set: DaemonSet = serde_json::from_value(set)?;
        let made = bed.cluster.as_admin(async |client| {
            Api::<DaemonSet>::namespaced(client, NAMESPACE).create(&PostParams::default(), &set).await
        })?;
        let agents = Self { bed, uid: made.metadata.uid.context("no UID")? };
        for (name, is_ready, has_ready_agent) in nodes {
            let status = json!({"conditions": [{"type": "Ready", "status": word(is_ready)}]});
            let node: Node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            bed.cluster.as_admin(async |client| {
                let nodes: Api<Node> = Api::all(client);
                nodes.create(&PostParams::default(), &node).await?;
                let patch = Patch::Merge(json!({"status": status}));
                nodes.patch_status(name, &PatchParams::default(), &patch).await
            })?;
            agents.put(name, &["kubernetes"], has_ready_agent)?;
        }
        Ok(agents)
    }

    /// An agent's pod, instead of the one that is there.
    fn put(&self, node: &str, arguments: &[&str], is_ready: bool) -> Result<()> {
        let name = format!("{SET}-{node}");
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": SET, "uid": self.uid}]);
        let pod = json!({"metadata": {"name": name, "ownerReferences": owner},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "none", "args": arguments}]}});
        let pod: Pod = serde_json::from_value(pod)?;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": word(is_ready)}]}});
        self.bed.cluster.as_admin(async |client| {
            let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
            pods.create(&PostParams::default(), &pod).await?;
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await
        })?;
        Ok(())
    }

    /// The arguments and the strategy.
    fn told(&self) -> Result<(Value, Value)> {
        let set = self
            .bed
            .cluster
            .as_admin(async |client| Api::<DaemonSet>::namespaced(client, NAMESPACE).get(SET).await)?;
        let set = serde_json::to_value(set.spec)?;
        let strategy = set["updateStrategy"]["rollingUpdate"].clone();
        Ok((set["template"]["spec"]["containers"][0]["args"].clone(), strategy))
    }

    fn retire(&self, seconds: &str) -> Result<Child> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_truepeer-agent"));
        command.args(["retire", "--namespace", NAMESPACE, "--daemonset", SET, "--timeout", seconds]);
        command.env("KUBECONFIG", self.bed.cluster.directory().join("admin.conf"));
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?)
    }
}

impl Drop for Agents<'_> {
    fn drop(&mut self) {
        let _ = self.bed.cluster.as_admin(async |client: Client| {
            let now = DeleteParams::default().grace_period(0);
            for node in ["lost-a", "lost-b"] {
                let _ = Api::<Pod>::namespaced(client.clone(), NAMESPACE)
                    .delete(&format!("{SET}-{node}"), &now)
                    .await;
                let _ = Api::<Node>::all(client.clone()).delete(node, &now).await;
            }
            Api::<DaemonSet>::namespaced(client, NAMESPACE).delete(SET, &now).await
        });
    }
}

fn word(is_true: bool) -> &'static str {
    if is_true { "True" } else { "False" }
}

/// Whether it succeeded, and what it said.
fn ended(child: Child) -> Result<(bool, String)> {
    let output = child.wait_with_output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn an_uninstall_changes_nothing_where_an_agent_is_not_ready(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, false)])?;
    let before = agents.told()?;
    let (is_done, said) = ended(agents.retire("5")?)?;
    ensure!(!is_done && said.contains("nothing was changed") && said.contains("node lost-b"), "{said}");
    ensure!(agents.told()? == before, "{:?}", agents.told());
    Ok(())
}

fn an_uninstall_leaves_out_nodes_that_are_not_ready(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", false, false)])?;
    let retiring = agents.retire("20")?;
    until("the option", || Ok((agents.told()?.0 == json!(["kubernetes", "--leave"])).then_some(())))?;
    agents.put("lost-a", &["kubernetes", "--leave"], true)?;
    let (is_done, said) = ended(retiring)?;
    ensure!(is_done && said.contains("node lost-b is not ready"), "{said}");
    ensure!(said.contains("nothing is left on 1 nodes"), "{said}");
    Ok(())
}

fn after_an_uninstall_that_fails_agents_attach_again(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, true)])?;
    let before = agents.told()?;
    let retiring = agents.retire("4")?;
    until("the option", || Ok((agents.told()?.0 == json!(["kubernetes", "--leave"])).then_some(())))?;
    agents.put("lost-a", &["kubernetes", "--leave"], true)?;
    until("the way back", || Ok((agents.told()?.0 == before.0).then_some(())))?;
    // In turn, a node that is not ready could hold up all others.
    ensure!(agents.told()?.1["maxUnavailable"] == "100%", "{:?}", agents.told());
    agents.put("lost-a", &["kubernetes"], true)?;
    let (is_done, said) = ended(retiring)?;
    ensure!(
        !is_done && said.contains("attached on node lost-b") && said.contains("all is as before"),
        "{said}"
    );
    ensure!(agents.told()? == before, "{:?}", agents.told());
    Ok(())
}
