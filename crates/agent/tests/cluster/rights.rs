//! What somebody can do who has taken an agent over, with the token of its pod.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::Test;
use crate::agent::Agent;
use crate::bed::Bed;
use crate::cluster::NAMESPACE;

pub(crate) const TESTS: &[Test] = &[
    (
        "a_taken_over_agent_writes_one_condition_and_nothing_else",
        a_taken_over_agent_writes_one_condition_and_nothing_else,
    ),
    ("a_taken_over_agent_speaks_of_pods_in_its_own_name", a_taken_over_agent_speaks_of_pods_in_its_own_name),
    ("a_token_without_a_node_writes_nothing", a_token_without_a_node_writes_nothing),
];

/// Whether the API server took it; refused, it must be for the policy.
fn writes(bed: &Bed, pod: &str, patch: &Value) -> Result<bool> {
    let patched = bed.cluster.as_agent(async |client| {
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        pods.patch_status(pod, &PatchParams::default(), &Patch::Strategic(patch)).await
    })?;
    judged(patched.map(drop))
}

fn judged(answer: Result<(), kube::Error>) -> Result<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(kube::Error::Api(status))
            if status.code == 422 && status.message.contains("truepeer's agent") =>
        {
            Ok(false)
        }
        Err(error) => bail!("{error}"),
    }
}

fn a_taken_over_agent_writes_one_condition_and_nothing_else(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "LB")])?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    let elsewhere = bed.pod_with(&[], json!({"nodeName": "node-b"}))?;
    let condition = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
    ensure!(writes(bed, &pod.name, &condition("truepeer.dev/attached"))?);
    ensure!(!writes(bed, &elsewhere.name, &condition("truepeer.dev/attached"))?, "another node's pod");
    for attack in [
        json!({"status": {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"status": {"containerStatuses": [{"name": "server", "ready": true, "restartCount": 0, "image": "", "imageID": ""}]}}),
        json!({"metadata": {"labels": {"app": "another"}}}),
        json!({"metadata": {"annotations": {"truepeer.dev/allow": "any"}}}),
        json!({"metadata": {"annotations": {"truepeer.dev/ports": null}}}),
        json!({"metadata": {"finalizers": ["example.org/never"]}}),
        condition("Ready"),
        condition("example.org/other"),
    ] {
        ensure!(!writes(bed, &pod.name, &attack)?, "{attack} was written");
    }
    Ok(())
}

fn event(name: &str, kind: &str, by: &str, node: &str) -> Result<Event> {
    let event = json!({"metadata": {"name": name, "namespace": NAMESPACE},
        "regarding": {"kind": kind, "namespace": NAMESPACE, "name": "any"}, "type": "Normal", "reason": "Attached",
        "action": "Attach", "note": "note", "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": by,
        "reportingInstance": node});
    Ok(serde_json::from_value(event)?)
}

fn a_taken_over_agent_speaks_of_pods_in_its_own_name(bed: &Bed) -> Result<()> {
    let event = |name: &str, kind: &str, by: &str, node: &str| {
        let event = event(name, kind, by, node)?;
        let created = bed.cluster.as_agent(async |client| {
            let events: Api<Event> = Api::namespaced(client, NAMESPACE);
            events.create(&PostParams::default(), &event).await
        })?;
        judged(created.map(drop))
    };
    let node = crate::bed::NODE;
    ensure!(event("rights.1", "Pod", "truepeer.dev/agent", node)?);
    ensure!(!event("rights.2", "Node", "truepeer.dev/agent", node)?, "of a node");
    ensure!(!event("rights.3", "Pod", "kubelet", node)?, "in another's name");
    ensure!(!event("rights.4", "Pod", "truepeer.dev/agent", "node-b")?, "for another node");
    Ok(())
}

/// As `kubectl create token` makes it.
fn a_token_without_a_node_writes_nothing(bed: &Bed) -> Result<()> {
    let pod = bed.pod(&[])?;
    let condition = json!({"status": {"conditions": [{"type": "truepeer.dev/attached", "status": "True"}]}});
    let patched = bed.cluster.as_nobodys_agent(async |client| {
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        pods.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(&condition)).await
    })?;
    ensure!(!judged(patched.map(drop))?, "a condition");
    let event = event("rights.5", "Pod", "truepeer.dev/agent", crate::bed::NODE)?;
    let created = bed.cluster.as_nobodys_agent(async |client| {
        let events: Api<Event> = Api::namespaced(client, NAMESPACE);
        events.create(&PostParams::default(), &event).await
    })?;
    ensure!(!judged(created.map(drop))?, "an event");
    Ok(())
}
