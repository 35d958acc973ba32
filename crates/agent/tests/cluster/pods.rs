//! What the annotations of a pod do.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::Test;
use crate::agent::Agent;
use crate::bed::{Bed, Pod, run};
use crate::peers::CLIENT;
use crate::wait::{until, within};

pub(crate) const TESTS: &[Test] = &[
    ("an_annotated_pod_sees_its_clients", an_annotated_pod_sees_its_clients),
    ("a_pod_is_attached_before_its_server_begins", a_pod_is_attached_before_its_server_begins),
    ("changed_annotations_are_followed", changed_annotations_are_followed),
    (
        "a_wrong_annotation_is_explained_and_leaves_what_is_attached",
        a_wrong_annotation_is_explained_and_leaves_what_is_attached,
    ),
    ("a_port_without_a_server_is_told_later", a_port_without_a_server_is_told_later),
    ("the_likeliest_mistakes_are_named", the_likeliest_mistakes_are_named),
    ("a_sender_that_is_not_listed_is_named", a_sender_that_is_not_listed_is_named),
    ("the_hosts_network_is_refused", the_hosts_network_is_refused),
    ("a_kernel_of_its_own_is_refused", a_kernel_of_its_own_is_refused),
    ("the_operators_cap_holds", the_operators_cap_holds),
    ("only_so_many_pods_are_attached", only_so_many_pods_are_attached),
    ("a_pod_without_an_address_is_waited_for", a_pod_without_an_address_is_waited_for),
    ("a_device_that_comes_after_the_attach_is_served", a_device_that_comes_after_the_attach_is_served),
    ("refusals_are_told", refusals_are_told),
    ("a_redirected_port_is_told", a_redirected_port_is_told),
    ("counters_have_the_names_of_pods", counters_have_the_names_of_pods),
];

const WEB: [(&str, &str); 2] = [("ports", "80"), ("allow", "LB")];

fn an_annotated_pod_sees_its_clients(bed: &Bed) -> Result<()> {
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.start_server(80)?;
    pod.expect_raw(80)?;
    let agent = Agent::start(bed, &[])?;
    let message = pod.wait_for("Attached")?;
    ensure!(message.starts_with("ports 80; allow 10.88."), "{message}");
    pod.expect_attached(80)?;
    // A sender that is listed needs a header.
    let plain = pod.ask(80, false)?;
    ensure!(plain == "connection reset", "{plain}");
    ensure!(pod.wait_for_event("Attached")? == message);
    ensure!(agent.page("/healthz")?.0 == 200);
    Ok(())
}

fn a_pod_is_attached_before_its_server_begins(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    ensure!(pod.wait_for("Waiting")?.starts_with("no process"));
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.expect_attached(80)
}

fn changed_annotations_are_followed(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[])?;
    pod.start_sandbox()?;
    pod.start_server(80)?;
    pod.start_server(81)?;
    pod.expect_raw(80)?;
    ensure!(pod.condition().is_err(), "a pod without annotations has the condition");
    let allow = "10.88.0.0/16";
    pod.annotate(json!({"truepeer.dev/ports": "80", "truepeer.dev/allow": allow}))?;
    pod.wait_for("Attached")?;
    pod.expect_attached(80)?;
    pod.expect_raw(81)?;

    let turned = pod.turned()?;
    std::thread::sleep(std::time::Duration::from_millis(1100));
    pod.annotate(json!({"truepeer.dev/ports": "81"}))?;
    until("port 81", || Ok(pod.wait_for("Attached")?.starts_with("ports 81;").then_some(())))?;
    pod.expect_attached(81)?;
    pod.expect_raw(80)?;
    ensure!(pod.turned()? == turned, "the pod was not ready for a moment");
    ensure!(pod.events()?.iter().all(|(_, note)| !note.contains("warning")), "{:?}", pod.events());

    pod.annotate(json!({"truepeer.dev/header": "optional"}))?;
    until("optional", || Ok(pod.wait_for("Attached")?.contains("header optional").then_some(())))?;
    let plain = pod.ask(81, false)?;
    ensure!(plain.ends_with(" hello") && !plain.starts_with(CLIENT), "{plain}");

    pod.annotate(
        json!({"truepeer.dev/ports": null, "truepeer.dev/allow": null, "truepeer.dev/header": null}),
    )?;
    pod.wait_for("Detached")?;
    pod.expect_raw(81)?;
    pod.wait_for_event("Detached")?;
    Ok(())
}

fn a_wrong_annotation_is_explained_and_leaves_what_is_attached(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "--pid=1"), ("allow", "LB")])?;
    pod.start_sandbox()?;
    pod.start_server(80)?;
    let note = pod.wait_for_event("Refused")?;
    ensure!(note.starts_with("truepeer.dev/ports: \"--pid=1\": expected ports, as numbers"), "{note}");
    ensure!(note.ends_with("for example truepeer.dev/ports: \"80,443,53/udp\""), "{note}");
    ensure!(pod.wait_for("Refused")? == note);
    pod.annotate(json!({"truepeer.dev/ports": "80"}))?;
    let attached = pod.wait_for("Attached")?;
    let steps = agent.steps("attach", "ok")?;

    pod.annotate(json!({"truepeer.dev/allow": "/etc/passwd"}))?;
    let note = until("the second refusal", || {
        let note = pod.wait_for_event("Refused")?;
        Ok(note.contains("/etc/passwd").then_some(note))
    })?;
    ensure!(note.contains("(what was attached before stays: ports 80;"), "{note}");
    let message = pod.wait_for("Attached")?;
    ensure!(
        message.starts_with(&format!("{attached}; not followed: truepeer.dev/allow: \"/etc/passwd\"")),
        "{message}"
    );
    pod.expect_attached(80)?;
    ensure!(agent.steps("attach", "ok")? == steps);
    Ok(())
}

/// A server may start after the attach; one that never does has another port, as a rule.
fn a_port_without_a_server_is_told_later(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let (mut slow, mut wrong) = (bed.pod(&WEB)?, bed.pod(&[("ports", "8080"), ("allow", "LB")])?);
    for pod in [&mut slow, &mut wrong] {
        pod.start_sandbox()?;
        let note = pod.wait_for_event("Attached")?;
        ensure!(!note.contains("warning"), "{note}");
        pod.start_server(80)?;
        pod.say_containers_are_ready()?;
    }
    let note = within(std::time::Duration::from_secs(60), "the event", || {
        Ok(wrong.events()?.into_iter().find(|(reason, _)| reason == "NothingListens"))
    })?;
    ensure!(note.1.starts_with("nothing listens on port 8080 of the pod"), "{note:?}");
    ensure!(slow.events()?.iter().all(|(reason, _)| reason != "NothingListens"), "{:?}", slow.events());
    Ok(())
}

fn the_likeliest_mistakes_are_named(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[])?;
    pod.start_sandbox()?;
    pod.annotate(json!({"truepeer.io/ports": "80", "truepeer.io/allow": "any"}))?;
    let note = pod.wait_for_event("Refused")?;
    ensure!(
        note.starts_with("truepeer.io/allow: there is no such annotation; did you mean truepeer.dev/allow?"),
        "{note}"
    );
    // Annotations of the Deployment instead of its template.
    let gated = bed.pod_with(&[], json!({"readinessGates": [{"conditionType": "truepeer.dev/attached"}]}))?;
    let note = gated.wait_for_event("Refused")?;
    ensure!(note.contains("spec.template.metadata.annotations"), "{note}");
    Ok(())
}

fn the_hosts_network_is_refused(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let pod = bed.pod_with(&WEB, json!({"hostNetwork": true}))?;
    ensure!(pod.wait_for("Refused")?.starts_with("the pod uses the node's network (hostNetwork)"));
    pod.wait_for_event("Refused")?;
    Ok(())
}

/// As by gVisor and Kata: programs of the node's kernel would take headers off, and its sockets show nobody.
fn a_kernel_of_its_own_is_refused(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"},
        "handler": "runsc"});
    bed.cluster.create(class)?;
    let mut pod = bed.pod_with(&WEB, json!({"runtimeClassName": "gvisor"}))?;
    pod.start_sandbox()?;
    ensure!(pod.wait_for("Refused")?.starts_with("the pod's runtime class gvisor"));
    pod.wait_for_event("Refused")?;
    pod.start_server(80)?;
    pod.expect_raw(80)
}

/// The likeliest one: another balancer, or a node in its place.
fn a_sender_that_is_not_listed_is_named(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "192.0.2.7")])?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    // Those before truepeer begins to follow are only counted.
    let note = until("the event UnlistedSender", || {
        pod.expect_raw(80)?;
        Ok(pod.events()?.into_iter().find(|(reason, _)| reason == "UnlistedSender").map(|(_, note)| note))
    })?;
    ensure!(note.contains("from 10.88.") && note.contains("list it in truepeer.dev/allow"), "{note}");
    Ok(())
}

fn the_operators_cap_holds(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &["--allow-senders", "10.88.0.0/16"])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "any")])?;
    pod.start_sandbox()?;
    pod.start_server(80)?;
    let why = pod.wait_for("Refused")?;
    ensure!(
        why == "truepeer.dev/allow: 0.0.0.0/0: expected senders inside 10.88.0.0/16, which --allow-senders of the agent lists",
        "{why}"
    );
    pod.expect_raw(80)?;
    pod.annotate(json!({"truepeer.dev/allow": "10.88.0.0/17"}))?;
    pod.wait_for("Attached")?;
    // What was attached must not stay: it is the operator who forbids.
    pod.annotate(json!({"truepeer.dev/allow": "10.0.0.0/8"}))?;
    pod.wait_for("Refused")?;
    until("a word about the detach", || {
        let events = pod.events()?.into_iter();
        let mut told = events.filter(|(reason, _)| ["Detaching", "Refused"].contains(&reason.as_str()));
        Ok(told.any(|(_, note)| note.contains("truepeer.dev/allow: 10.0.0.0/8: expected")).then_some(()))
    })?;
    pod.expect_raw(80)
}

fn only_so_many_pods_are_attached(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &["--max-pods", "1"])?;
    let mut first = bed.pod(&WEB)?;
    first.start_sandbox()?;
    first.wait_for("Attached")?;
    let mut second = bed.pod(&WEB)?;
    second.start_sandbox()?;
    ensure!(second.wait_for("TooManyPods")?.starts_with("1 pods are attached on this node"));
    first.delete()?;
    second.wait_for("Attached")?;
    Ok(())
}

fn a_pod_without_an_address_is_waited_for(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    let pid = pod.start_sandbox()?;
    // Before the agent's first look, or after: an address that is taken away changes nothing in the kernel.
    pod.wait_for("Attached")?;
    let mut other = bed.pod(&[])?;
    let other_pid = other.start_sandbox()?;
    run(other_pid, "ip addr flush dev eth0")?;
    run(pid, "ip addr flush dev eth0")?;
    other.annotate(json!({"truepeer.dev/ports": "80", "truepeer.dev/allow": "10.88.0.0/16"}))?;
    ensure!(until("the address", || {
        let message = other.wait_for("Waiting")?;
        Ok(message.starts_with("no address").then_some(true))
    })?);
    run(other_pid, "ip addr add 10.88.200.2/24 dev eth0")?;
    other.wait_for("Attached")?;
    ensure!(agent.steps("attach", "ok")? == 2);
    Ok(())
}

/// As by a plugin for several networks.
fn a_device_that_comes_after_the_attach_is_served(bed: &Bed) -> Result<()> {
    let _agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&[("ports", "80"), ("allow", "10.88.0.0/15")])?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    let address = pod.add_device()?;
    until("the client at the other address", || {
        Ok((pod.ask_at(&address, 80, true)? == format!("{CLIENT} hello")).then_some(()))
    })?;
    pod.expect_attached(80)
}

/// Asks until an event says that it was refused: those before truepeer begins to follow are only counted.
fn refused(pod: &Pod<'_>, has_header: bool, why: &str) -> Result<String> {
    until("the event Refusing", || {
        pod.ask(80, has_header)?;
        Ok(pod
            .events()?
            .into_iter()
            .find(|(reason, note)| reason == "Refusing" && note.contains(why))
            .map(|(_, note)| note))
    })
}

fn refusals_are_told(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    let note = refused(&pod, false, "refused_no_header")?;
    ensure!(note.contains("port 80/tcp, from 10.88.") && note.contains("(refused_no_header)"), "{note}");
    ensure!(agent.log().contains("refused_no_header"), "{}", agent.log());
    // Each reason once, however many senders forget the header.
    let count = || {
        Ok::<_, anyhow::Error>(
            bed.cluster.events(&pod.name)?.iter().filter(|(reason, _)| reason == "Refusing").count(),
        )
    };
    for _ in 0..10 {
        pod.ask(80, false)?;
    }
    std::thread::sleep(std::time::Duration::from_secs(2));
    ensure!(count()? == 1, "{}", count()?);
    Ok(())
}

/// As by Istio: connections to the port reach another socket.
fn a_redirected_port_is_told(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    let pid = pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.start_server(15006)?;
    run(pid, "nft add table ip istio")?;
    run(pid, "nft add chain ip istio in { type nat hook prerouting priority -100 ; }")?;
    run(pid, "nft add rule ip istio in tcp dport 80 redirect to :15006")?;
    let note = refused(&pod, true, "redirected").with_context(|| agent.log())?;
    ensure!(note.contains("redirected") && note.contains("excludeInboundPorts"), "{note}");
    Ok(())
}

fn counters_have_the_names_of_pods(bed: &Bed) -> Result<()> {
    let agent = Agent::start(bed, &[])?;
    let mut pod = bed.pod(&WEB)?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.expect_attached(80)?;
    let labels = format!("namespace=\"default\",pod=\"{}\"", pod.name);
    ensure!(agent.metric(&format!("truepeer_attach_attached{{{labels}}}"))? == 1);
    ensure!(agent.metric("truepeer_agent_attachments{state=\"attached\"}")? == 1);
    let event = |name: &str| {
        agent.metric(&format!(
            "truepeer_attach_events_total{{{labels},port=\"80\",protocol=\"tcp\",event=\"{name}\"}}"
        ))
    };
    until("counters", || Ok((event("header_v1")? >= 1).then_some(())))?;
    let before = event("refused_no_header")?;
    pod.ask(80, false)?;
    until("a refusal", || Ok((event("refused_no_header")? == before + 1).then_some(())))?;
    ensure!(agent.metric(&format!("truepeer_attach_memory_bytes{{{labels}}}"))? > 0);
    Ok(())
}
