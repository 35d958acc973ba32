//! Ends and restarts: of the agent, of containers, of sandboxes, of pods.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use serde_json::json;

use crate::Test;
use crate::agent::{Agent, truepeer};
use crate::bed::Bed;
use crate::wait::until;

pub(crate) const TESTS: &[Test] = &[
    ("an_agent_that_starts_again_adopts_without_a_gap", an_agent_that_starts_again_adopts_without_a_gap),
    ("changes_while_no_agent_runs_are_followed", changes_while_no_agent_runs_are_followed),
    (
        "rules_that_the_kernel_does_not_have_are_not_adopted",
        rules_that_the_kernel_does_not_have_are_not_adopted,
    ),
    ("rules_that_no_annotation_asks_for_are_not_adopted", rules_that_no_annotation_asks_for_are_not_adopted),
    ("a_typo_does_not_outlive_the_operators_cap", a_typo_does_not_outlive_the_operators_cap),
    ("what_no_condition_tells_is_detached", what_no_condition_tells_is_detached),
    ("a_container_that_starts_again_stays_attached", a_container_that_starts_again_stays_attached),
    ("a_sandbox_that_starts_again_is_attached_again", a_sandbox_that_starts_again_is_attached_again),
    ("a_sandbox_is_not_taken_for_the_one_before", a_sandbox_is_not_taken_for_the_one_before),
    ("an_agent_that_leaves_leaves_nothing", an_agent_that_leaves_leaves_nothing),
    (
        "pods_leave_their_services_before_the_agent_leaves_them",
        pods_leave_their_services_before_the_agent_leaves_them,
    ),
    ("a_deleted_pod_is_forgotten", a_deleted_pod_is_forgotten),
];

const WEB: [(&str, &str); 2] = [("ports", "80"), ("allow", "LB")];

fn an_agent_that_starts_again_adopts_without_a_gap(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    let turned = pod.turned()?;
    // The times of conditions are whole seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let is_over = AtomicBool::new(false);
    let (count, last) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                pod.expect_attached(80)?;
                count += 1;
            }
            anyhow::Ok(count)
        });
        let restart = || {
            agent.kill();
            let second = Agent::start(bed, &[])?;
            until("the adoption", || Ok((second.steps("adopt", "ok")? == 1).then_some(())))?;
            second.terminate()?;
            let third = Agent::start(bed, &[])?;
            until("the adoption", || Ok((third.steps("adopt", "ok")? == 1).then_some(())))?;
            anyhow::Ok(third)
        };
        let last = restart();
        is_over.store(true, Ordering::Relaxed);
        (asking.join().map_err(|_| anyhow::anyhow!("a panic")).flatten(), last)
    });
    let (count, last) = (count?, last?);
    ensure!(count > 20, "{count} connections");
    ensure!(last.steps("attach", "ok")? == 0, "{}", last.log());
    pod.wait_for("Attached")?;
    ensure!(pod.turned()? == turned, "the pod was not ready for a moment");
    Ok(())
}

fn changes_while_no_agent_runs_are_followed(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let (mut removed, mut changed) = (bed.pod(&WEB)?, bed.pod(&WEB)?);
    for pod in [&mut removed, &mut changed] {
        pod.start_sandbox()?;
        pod.wait_for("Attached")?;
        pod.start_server(80)?;
    }
    changed.start_server(81)?;
    agent.terminate()?;
    removed.annotate(json!({"truepeer.dev/ports": null, "truepeer.dev/allow": null}))?;
    changed.annotate(json!({"truepeer.dev/ports": "81"}))?;
    removed.expect_attached(80)?;
    let _agent = Agent::start(bed, &[])?;
    removed.wait_for("Detached")?;
    removed.expect_raw(80)?;
    until("port 81", || Ok(changed.wait_for("Attached")?.starts_with("ports 81;").then_some(())))?;
    changed.expect_attached(81)?;
    changed.expect_raw(80)
}

/// Gives the agent its right back, whatever became of the test.
struct WithoutConditions<'a>(&'a Bed);

impl<'a> WithoutConditions<'a> {
    fn begin(bed: &'a Bed) -> Result<Self> {
        bed.cluster.let_write_conditions(false)?;
        Ok(Self(bed))
    }
}

impl Drop for WithoutConditions<'_> {
    fn drop(&mut self) {
        let _ = self.0.cluster.let_write_conditions(true);
    }
}

fn rules_that_the_kernel_does_not_have_are_not_adopted(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "192.0.2.7")])?;
    pod.start_sandbox()?;
    pod.start_server(80)?;
    let message = pod.wait_for("Attached")?;
    ensure!(message.contains("allow 192.0.2.7/32"), "{message}");
    pod.expect_raw(80)?;
    let without = WithoutConditions::begin(bed)?;
    pod.annotate(json!({"truepeer.dev/allow": "any"}))?;
    until("the wider rules", || Ok(pod.expect_attached(80).is_ok().then_some(())))?;
    ensure!(pod.wait_for("Attached")? == message, "the condition was written");
    agent.kill();
    pod.annotate(json!({"truepeer.dev/allow": "192.0.2.7"}))?;
    drop(without);
    let agent = Agent::start(bed, &[])?;
    until("the annotation's rules", || Ok(pod.expect_raw(80).is_ok().then_some(())))?;
    ensure!(agent.log().contains("the kernel has other senders"), "{}", agent.log());
    Ok(())
}

/// Somebody on the node asks the balancer for a secret that it does not have.
fn rules_that_no_annotation_asks_for_are_not_adopted(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "10.88.0.0/16")])?;
    let pid = pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.expect_attached(80)?;
    agent.kill();
    let secret = bed.cluster.directory().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n")?;
    let by_hand = Command::new(truepeer()?)
        .args(["attach", "--replace", "--port=80", "--allow=10.88.0.0/16", &format!("--pid={pid}")])
        .arg(format!("--pins={}", crate::mounts::PINS))
        .arg(format!("--require-tlv=0xE5=@{}", secret.display()))
        .output()?;
    ensure!(by_hand.status.success(), "{}", String::from_utf8_lossy(&by_hand.stderr));
    ensure!(pod.expect_attached(80).is_err(), "the header needs no secret");
    let agent = Agent::start(bed, &[])?;
    until("the annotation's rules", || Ok(pod.expect_attached(80).is_ok().then_some(())))?;
    ensure!(agent.log().contains("rules that no annotation asks for"), "{}", agent.log());
    Ok(())
}

/// The typo must not be a way to keep what the operator forbids.
fn a_typo_does_not_outlive_the_operators_cap(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "any")])?;
    pod.start_sandbox()?;
    pod.start_server(80)?;
    pod.wait_for("Attached")?;
    agent.terminate()?;
    pod.annotate(json!({"truepeer.dev/header": "optionl"}))?;
    let agent = Agent::start(bed, &["--allow-senders", "10.88.0.0/16"])?;
    pod.wait_for("Refused")?;
    pod.expect_raw(80)?;
    ensure!(agent.log().contains("detached"), "{}", agent.log());
    Ok(())
}

fn what_no_condition_tells_is_detached(bed: &Bed) -> Result<()> {
    let _without = WithoutConditions::begin(bed)?;
    let agent = Agent::start(bed, &[])?;
    let (mut while_up, mut while_down) = (bed.pod(&WEB)?, bed.pod(&WEB)?);
    for pod in [&mut while_up, &mut while_down] {
        pod.start_sandbox()?;
        pod.start_server(80)?;
        until("an attachment", || Ok(pod.expect_attached(80).is_ok().then_some(())))?;
        ensure!(pod.condition().is_err(), "the condition was written");
    }
    let none = json!({"truepeer.dev/ports": null, "truepeer.dev/allow": null});
    while_up.annotate(none.clone())?;
    until("the detach", || Ok(while_up.expect_raw(80).is_ok().then_some(())))?;
    agent.kill();
    while_down.annotate(none)?;
    while_down.expect_attached(80)?;
    let _agent = Agent::start(bed, &[])?;
    until("the detach", || Ok(while_down.expect_raw(80).is_ok().then_some(())))
}

fn a_container_that_starts_again_stays_attached(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    for _ in 0..3 {
        pod.start_server(80)?;
        pod.expect_attached(80)?;
        pod.end_servers();
    }
    ensure!(agent.steps("attach", "ok")? == 1);
    Ok(())
}

fn a_sandbox_that_starts_again_is_attached_again(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.end();
    // The pod becomes not ready meanwhile.
    ensure!(pod.wait_for("Waiting")?.starts_with("no process"));
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.expect_attached(80)?;
    ensure!(agent.steps("attach", "ok")? == 2);
    Ok(())
}

/// Faster than the agent looks. The kernel then gives the number of the old network namespace to the new one,
/// as a rule.
fn a_sandbox_is_not_taken_for_the_one_before(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    for round in 2..5 {
        pod.start_sandbox()?;
        until("another attachment", || Ok((agent.steps("attach", "ok")? == round).then_some(())))?;
        pod.wait_for("Attached")?;
        pod.start_server(80)?;
        pod.expect_attached(80)?;
    }
    Ok(())
}

fn a_deleted_pod_is_forgotten(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    ensure!(agent.metric("truepeer_agent_attachments{state=\"attached\"}")? == 1);
    pod.delete()?;
    until("the end", || {
        Ok((agent.metric("truepeer_agent_attachments{state=\"attached\"}")? == 0).then_some(()))
    })?;
    Ok(())
}

fn an_agent_that_leaves_leaves_nothing(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let (mut pod, mut ended) = (bed.pod(&WEB)?, bed.pod(&WEB)?);
    for pod in [&mut pod, &mut ended] {
        pod.start_sandbox()?;
        pod.wait_for("Attached")?;
    }
    pod.start_server(80)?;
    // It has a condition without an attachment.
    let wrong = bed.pod(&[("ports", "http"), ("allow", "LB")])?;
    wrong.wait_for("Refused")?;
    agent.terminate()?;
    ended.end();
    // Ready when it has left.
    let leaving = Agent::start(bed, &["--leave"])?;
    pod.expect_raw(80)?;
    for pod in [&pod, &ended, &wrong] {
        ensure!(pod.condition().is_err(), "{:?}\n{}", pod.condition(), leaving.log());
    }
    // The next agent attaches again.
    leaving.terminate()?;
    let _agent = Agent::start(bed, &[])?;
    pod.wait_for("Attached")?;
    pod.expect_attached(80)
}

/// kube-proxy needs a moment, in which connections with a header still come.
fn pods_leave_their_services_before_the_agent_leaves_them(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    agent.terminate()?;
    let asking = || {
        while pod.condition()?.0 == "True" {
            pod.expect_attached(80)?;
        }
        (0..20).try_for_each(|_| pod.expect_attached(80))
    };
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(asking);
        let _leaving = Agent::start(bed, &["--leave"])?;
        asking.join().map_err(|_| anyhow::anyhow!("a panic")).flatten()
    });
    asked?;
    pod.expect_raw(80)
}
