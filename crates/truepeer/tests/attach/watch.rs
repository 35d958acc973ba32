//! Containers that are started again: `--watch`, and the hook of the container's runtime.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{
    Bed, Behaviour, NetNs, Program, Running, Test, Topology, datagrams, ip_here, tests, with_child_signal,
};

use crate::cgroups::Cgroup;
use crate::kit::{attachments, command, header, who};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_container_that_starts_again_is_attached_again,
        a_watch_warns_about_headers_from_addresses_that_are_not_allowed,
        a_hook_attaches_before_the_program_starts,
        a_hook_refuses_wrong_annotations_with_the_reason,
        containers_of_a_pod_keep_their_clients,
    ];
    all.into_iter().map(|test| test.of_group("watch")).collect()
}

/// A container's network namespace, cgroup and first process.
pub(crate) struct Container {
    line: Topology,
    pub(crate) server: Running,
    cgroup: Cgroup,
}

impl Container {
    pub(crate) fn start(bed: &Bed, name: &str) -> Result<Self> {
        let line = Topology::line(&["lb", "host"])?;
        let cgroup = Cgroup::make(name)?;
        let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.0.display());
        let server = Behaviour::Who.start_program(bed, &["0.0.0.0:80"], |program| {
            program.launched_by("/bin/sh", &["-c", &shell, "sh"]).in_netns(&line.host("host").netns)
        })?;
        Ok(Self { line, server, cgroup })
    }

    pub(crate) fn names_the_client(&self) -> Result<()> {
        let seen =
            who(self.line.host("lb"), self.line.host("host").at(false, 80), &header("203.0.113.1:1001")?)?;
        ensure!(seen == "203.0.113.1:1001", "{seen}");
        Ok(())
    }

    pub(crate) fn end(self) -> Result<()> {
        self.server.signal(Signal::KILL)?;
        self.server.wait_end()?;
        drop(self.cgroup);
        Ok(())
    }
}

fn a_container_that_starts_again_is_attached_again(bed: &Bed) -> Result<()> {
    let state = bed.write("state", "0\n")?;
    let says = |process: i32| std::fs::write(&state, format!("{process}\n"));
    let script = format!("#!/bin/sh\nread process < {}\necho $process\n", state.display());
    let engine = bed.write("engine/docker", script)?;
    std::fs::set_permissions(&engine, PermissionsExt::from_mode(0o755))?;
    let path = engine.parent().context("its directory")?.to_string_lossy().into_owned();
    let manager = UnixDatagram::bind(bed.dir().join("notify"))?;
    manager.set_read_timeout(Some(Duration::from_secs(60)))?;
    let heard = || -> Result<String> {
        let mut buffer = [0; 1000];
        let len = manager.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
    };

    let args = ["--container", "web", "--port", "80", "--allow", "any", "--watch"];
    let watch =
        command(bed, &args)?.env("PATH", &path).env("NOTIFY_SOCKET", bed.dir().join("notify")).start(bed)?;
    watch.wait_for_log("web is not running; waiting for its start")?;
    let first = Container::start(bed, "first")?;
    says(first.server.pid())?;
    ensure!(heard()?.contains("READY=1"));
    first.names_the_client()?;
    says(0)?;
    first.end()?;
    watch.wait_for_log("web has ended")?;
    ensure!(heard()?.contains("STATUS=web has ended"));
    let second = Container::start(bed, "second")?;
    says(second.server.pid())?;
    ensure!(heard()?.contains("READY=1"));
    second.names_the_client()?;
    says(0)?;
    second.end()?;
    ensure!(heard()?.contains("STATUS=web has ended"));

    // Not even its lo is up, and a device comes later.
    let netns = NetNs::create()?;
    let cgroup = Cgroup::make("third")?;
    let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.0.display());
    let third = Program::new("sleep")
        .arg("1000")
        .launched_by("/bin/sh", &["-c", &shell, "sh"])
        .in_netns(&netns)
        .start(bed)?;
    says(third.pid())?;
    ensure!(heard()?.contains("READY=1"));
    netns.run(|| ip_here(&["link add plug0 type veth peer name plug1"]))??;
    watch.wait_for_log("plug0")?;
    watch.signal(Signal::TERM)?;
    ensure!(watch.wait_end()?.success(), "{}", watch.log());
    // It stays.
    let status = command(bed, &["status", "--pid", &third.pid().to_string()])?.run(bed)?;
    ensure!(status.contains("port 80/tcp: attached"), "{status}");
    Ok(())
}

/// As after a restart that a conntrack entry has survived.
fn a_watch_warns_about_headers_from_addresses_that_are_not_allowed(bed: &Bed) -> Result<()> {
    let container = Container::start(bed, "conntrack")?;
    let script = format!("#!/bin/sh\necho {}\n", container.server.pid());
    let engine = bed.write("engine/docker", script)?;
    std::fs::set_permissions(&engine, PermissionsExt::from_mode(0o755))?;
    let path = engine.parent().context("its directory")?.to_string_lossy().into_owned();
    let args = ["--container", "web", "--port", "50-60/udp", "--allow", "10.9.9.9", "--watch"];
    let start = || command(bed, &args)?.env("PATH", &path).start(bed);
    let watch = start()?;
    watch.wait_for_log("attached to")?;
    let (lb, host) = (container.line.host("lb"), container.line.host("host"));
    let sender = lb.run(|| datagrams::socket("0.0.0.0:0"))??;
    sender.send_to(&datagrams::v2("203.0.113.7:5000", "192.0.2.1:53")?, host.at(false, 53))?;
    watch.wait_for_log("warning: web: 1 datagrams began with a header")?;
    watch.wait_for_log("conntrack -D -p udp")?;
    watch.signal(Signal::TERM)?;
    ensure!(watch.wait_end()?.success(), "{}", watch.log());
    // What was counted before another watch is no news for it.
    let watch = start()?;
    watch.wait_for_log("attached to")?;
    sender.send_to(&datagrams::v2("203.0.113.7:5000", "192.0.2.1:53")?, host.at(false, 53))?;
    watch.wait_for_log("warning: web: 1 datagrams began with a header")?;
    container.end()
}

fn hook(bed: &Bed, state: &str) -> Result<(bool, String)> {
    command(bed, &[])?; // mounts the BPF file system
    let mut command = Command::new(env!("CARGO_BIN_EXE_truepeer"));
    command
        .args(["oci-hook", "--pins"])
        .arg(bed.dir().join("bpf/truepeer"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = with_child_signal(|| command.spawn())?;
    running.stdin.take().context("stdin")?.write_all(state.as_bytes())?;
    let output = running.wait_with_output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// As crun and runc call it: the namespaces and the cgroup exist, and nothing of the container runs.
fn a_hook_attaches_before_the_program_starts(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let host = line.host("host");
    let cgroup = Cgroup::make("hook")?;
    let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.0.display());
    let runtime = Program::new("sleep")
        .arg("1000")
        .launched_by("/bin/sh", &["-c", &shell, "sh"])
        .in_netns(&host.netns)
        .start(bed)?;
    let pid = runtime.pid();
    let (is_ready, said) = hook(
        bed,
        &format!("{{\"ociVersion\": \"1.0.2\", \"pid\": {pid}, \"annotations\": {{\"a\": \"b\"}}}}"),
    )?;
    ensure!(
        is_ready && attachments(bed).unwrap_or_default().is_empty(),
        "a container without annotations starts untouched: {said}"
    );
    let annotations = r#"{"truepeer.dev/ports": "80,81", "truepeer.dev/allow": "any", "truepeer.dev/header": "require,10.9.9.9=optional"}"#;
    let bundle =
        bed.write("bundle/config.json", format!("{{\"process\": {{}}, \"annotations\": {annotations}}}"))?;
    let bundle = bundle.parent().context("its directory")?.to_string_lossy().into_owned();
    for state in [
        format!("{{\"pid\": {pid}, \"bundle\": \"/nowhere\", \"annotations\": {annotations}}}"),
        format!("{{\"pid\": {pid}, \"bundle\": \"{bundle}\"}}"),
    ] {
        let (success, said) = hook(bed, &state)?;
        ensure!(success, "{said}");
        let _server = Behaviour::Who.start_program(bed, &["0.0.0.0:80"], |program| {
            program.launched_by("/bin/sh", &["-c", &shell, "sh"]).in_netns(&host.netns)
        })?;
        let seen = who(line.host("lb"), host.at(false, 80), &header("203.0.113.1:1001")?)?;
        ensure!(seen == "203.0.113.1:1001", "{seen}");
    }
    Ok(())
}

fn a_hook_refuses_wrong_annotations_with_the_reason(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let runtime = Program::new("sleep").arg("1000").in_netns(&line.host("host").netns).start(bed)?;
    for (annotations, expected) in [
        (r#""truepeer.dev/ports": "80x", "truepeer.dev/allow": "any""#, "'80x' for '--port"),
        (r#""truepeer.dev/ports": "80", "truepeer.dev/allow": "ani""#, "ani"),
        (r#""truepeer.dev/ports": "80""#, "annotation truepeer.dev/allow is missing"),
        (
            r#""truepeer.dev/ports": "80", "truepeer.dev/allow": "any", "truepeer.dev/header": "forbid""#,
            "expected require or optional",
        ),
    ] {
        let (success, said) =
            hook(bed, &format!("{{\"pid\": {}, \"annotations\": {{{annotations}}}}}", runtime.pid()))?;
        ensure!(!success && said.contains(expected), "{annotations}: {said}");
    }
    for (state, expected) in [
        ("no json", "expected the container's state"),
        (r#"{"annotations": {"truepeer.dev/ports": "80", "truepeer.dev/allow": "any"}}"#, "names no process"),
    ] {
        let (success, said) = hook(bed, state)?;
        ensure!(!success && said.contains(expected), "{state}: {said}");
    }
    ensure!(attachments(bed).unwrap_or_default().is_empty());
    Ok(())
}

/// CRI-O and podman call the hook for each container of a pod, which have one network namespace and a cgroup
/// each.
fn containers_of_a_pod_keep_their_clients(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let pod = Cgroup::make("pod")?;
    let (one, other) = (pod.below("one")?, pod.below("other")?);
    let is_named = |port: u16| -> Result<()> {
        let seen = who(lb, host.at(false, port), &header("203.0.113.1:1001")?)?;
        ensure!(seen == "203.0.113.1:1001", "port {port}: {seen}");
        Ok(())
    };
    let mut servers = Vec::new();
    for (cgroup, port) in [(&one, 80), (&other, 81)] {
        let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.0.display());
        let runtime = Program::new("sleep")
            .arg("1000")
            .launched_by("/bin/sh", &["-c", &shell, "sh"])
            .in_netns(&host.netns)
            .start(bed)?;
        let state = format!(
            "{{\"pid\": {}, \"annotations\": {{\"truepeer.dev/ports\": \"80,81\", \"truepeer.dev/allow\": \"any\"}}}}",
            runtime.pid()
        );
        let (success, said) = hook(bed, &state)?;
        ensure!(success, "{said}");
        let server = Behaviour::Who.start_program(bed, &[format!("0.0.0.0:{port}")], |program| {
            program.launched_by("/bin/sh", &["-c", &shell, "sh"]).in_netns(&host.netns)
        })?;
        servers.push((server, runtime));
        is_named(port)?;
    }
    is_named(80)
}
