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
use crate::wait::{until, within};

pub(crate) const TESTS: &[Test] = &[
    (
        "an_uninstall_changes_nothing_where_an_agent_is_not_ready",
        an_uninstall_changes_nothing_where_an_agent_is_not_ready,
    ),
    ("an_uninstall_leaves_out_nodes_that_are_not_ready", an_uninstall_leaves_out_nodes_that_are_not_ready),
    ("after_an_uninstall_that_fails_agents_attach_again", after_an_uninstall_that_fails_agents_attach_again),
    (
        "an_uninstall_waits_for_agents_that_are_not_created_yet",
        an_uninstall_waits_for_agents_that_are_not_created_yet,
    ),
    (
        "after_an_uninstall_that_is_told_to_end_agents_attach_again",
        after_an_uninstall_that_is_told_to_end_agents_attach_again,
    ),
    (
        "an_uninstall_survives_an_api_server_that_does_not_answer",
        an_uninstall_survives_an_api_server_that_does_not_answer,
    ),
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

    fn remove(&self, node: &str) {
        let name = format!("{SET}-{node}");
        let _ = self.bed.cluster.as_admin(async |client| {
            let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
            pods.delete(&name, &DeleteParams::default().grace_period(0)).await
        });
    }

    /// An agent's pod, instead of the one that is there.
    fn put(&self, node: &str, arguments: &[&str], is_ready: bool) -> Result<()> {
        self.remove(node);
        let name = format!("{SET}-{node}");
        let owner = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": SET, "uid": self.uid}]);
        let pod = json!({"metadata": {"name": name, "ownerReferences": owner},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "none", "args": arguments}]}});
        let pod: Pod = serde_json::from_value(pod)?;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": word(is_ready)}]}});
        self.bed.cluster.as_admin(async |client| {
            let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
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
        let log = std::fs::File::create(self.log())?;
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?)
    }

    fn log(&self) -> std::path::PathBuf {
        self.bed.cluster.directory().join("retire.log")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Whether it succeeded, and what it said.
    fn ended(&self, mut child: Child) -> Result<(bool, String)> {
        let status = child.wait()?;
        Ok((status.success(), self.said()))
    }

    fn wait_for_option(&self) -> Result<()> {
        until("the option", || Ok((self.told()?.0 == json!(["kubernetes", "--leave"])).then_some(())))
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

fn an_uninstall_changes_nothing_where_an_agent_is_not_ready(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, false)])?;
    let before = agents.told()?;
    let (is_done, said) = agents.ended(agents.retire("5")?)?;
    ensure!(!is_done && said.contains("nothing was changed") && said.contains("node lost-b"), "{said}");
    ensure!(agents.told()? == before, "{:?}", agents.told());
    Ok(())
}

fn an_uninstall_leaves_out_nodes_that_are_not_ready(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", false, false)])?;
    let retiring = agents.retire("20")?;
    agents.wait_for_option()?;
    agents.put("lost-a", &["kubernetes", "--leave"], true)?;
    let (is_done, said) = agents.ended(retiring)?;
    ensure!(is_done && said.contains("node lost-b is not ready"), "{said}");
    ensure!(said.contains("nothing is left on 1 nodes"), "{said}");
    Ok(())
}

fn after_an_uninstall_that_fails_agents_attach_again(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, true)])?;
    let before = agents.told()?;
    let retiring = agents.retire("4")?;
    agents.wait_for_option()?;
    agents.put("lost-a", &["kubernetes", "--leave"], true)?;
    until("the way back", || Ok((agents.told()?.0 == before.0).then_some(())))?;
    // In turn, a node that is not ready could hold up all others.
    ensure!(agents.told()?.1["maxUnavailable"] == "100%", "{:?}", agents.told());
    agents.put("lost-a", &["kubernetes"], true)?;
    let (is_done, said) = agents.ended(retiring)?;
    ensure!(
        !is_done && said.contains("attached on node lost-b") && said.contains("all is as before"),
        "{said}"
    );
    ensure!(agents.told()? == before, "{:?}", agents.told());
    Ok(())
}

/// Between the end of a node's agent and the next one, there is none.
fn an_uninstall_waits_for_agents_that_are_not_created_yet(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, true)])?;
    let mut retiring = agents.retire("60")?;
    agents.wait_for_option()?;
    ["lost-a", "lost-b"].iter().for_each(|node| agents.remove(node));
    // It looks once a second.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    ensure!(retiring.try_wait()?.is_none(), "{}", agents.said());
    for node in ["lost-a", "lost-b"] {
        agents.put(node, &["kubernetes", "--leave"], true)?;
    }
    let (is_done, said) = agents.ended(retiring)?;
    ensure!(is_done && said.contains("nothing is left on 2 nodes"), "{said}");
    Ok(())
}

/// The node on which the job runs is drained.
fn after_an_uninstall_that_is_told_to_end_agents_attach_again(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, true)])?;
    let before = agents.told()?;
    let retiring = agents.retire("60")?;
    agents.wait_for_option()?;
    let pid = retiring.id().to_string();
    ensure!(Command::new("kill").args(["-TERM", &pid]).status()?.success(), "kill");
    let (is_done, said) = agents.ended(retiring)?;
    ensure!(!is_done && said.contains("told to end") && said.contains("all is as before"), "{said}");
    ensure!(agents.told()? == before, "{:?}", agents.told());
    Ok(())
}

/// A moment without it must not leave agents that go on leaving.
fn an_uninstall_survives_an_api_server_that_does_not_answer(bed: &Bed) -> Result<()> {
    let agents = Agents::start(bed, [("lost-a", true, true), ("lost-b", true, true)])?;
    let retiring = agents.retire("90")?;
    agents.wait_for_option()?;
    bed.cluster.signal_api_server("STOP")?;
    let is_told = within(std::time::Duration::from_secs(60), "a word about it", || {
        Ok(agents.said().contains("no answer; trying again").then_some(()))
    });
    bed.cluster.signal_api_server("CONT")?;
    is_told?;
    for node in ["lost-a", "lost-b"] {
        agents.put(node, &["kubernetes", "--leave"], true)?;
    }
    let (is_done, said) = agents.ended(retiring)?;
    ensure!(is_done && said.contains("nothing is left on 2 nodes"), "{said}");
    Ok(())
}
