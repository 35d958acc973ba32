//! A node with pods: the part of kubelet and of the container runtime.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::peers;
use crate::wait::until;

/// The node's name.
pub(crate) const NODE: &str = "node-a";

/// The node, its API server, and a load balancer in a network namespace of its own.
pub(crate) struct Bed {
    pub(crate) cluster: Cluster,
    cgroup: PathBuf,
    balancer: Killed,
    count: AtomicU8,
}

/// A process that ends with its owner.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bed {
    pub(crate) fn start() -> Result<Self> {
        let cluster = Cluster::start()?;
        let cgroup = cgroup_root()?.join(format!("truepeer-agent-test-{}", std::process::id()));
        fs::create_dir_all(cgroup.join("kubepods")).with_context(|| cgroup.display().to_string())?;
        let balancer = namespace(None)?;
        Ok(Self { cluster, cgroup, balancer, count: AtomicU8::new(0) })
    }

    /// A pod of this node, in the API and as an empty cgroup.
    pub(crate) fn pod(&self, annotations: &[(&str, &str)]) -> Result<Pod<'_>> {
        self.pod_with(annotations, json!({}))
    }

    /// `spec`: more of it.
    pub(crate) fn pod_with(&self, annotations: &[(&str, &str)], spec: Value) -> Result<Pod<'_>> {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("pod-{number}");
        let mut full = json!({"nodeName": NODE, "containers": [{"name": "server", "image": "none"}]});
        for (key, value) in spec.as_object().into_iter().flatten() {
            full[key] = value.clone();
        }
        // The load balancer's address in the pod's network.
        let annotations: serde_json::Map<String, Value> = annotations
            .iter()
            .map(|(name, value)| {
                (format!("truepeer.dev/{name}"), value.replace("LB", &balancer(number)).into())
            })
            .collect();
        let pod = self
            .cluster
            .create_pod(json!({"metadata": {"name": name, "annotations": annotations}, "spec": full}))?;
        let uid = pod.metadata.uid.context("no UID")?;
        let cgroup = self.cgroup.join("kubepods").join(format!("pod{uid}"));
        Ok(Pod { bed: self, name, number, cgroup, sandbox: None, servers: Vec::new(), containers: 0 })
    }

    /// What a process in the load balancer's place is answered.
    fn answer(&self, address: &str, has_header: bool) -> Result<String> {
        peers::answer(self.balancer.0.id(), address, has_header)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        remove_cgroup(&self.cgroup);
    }
}

/// The load balancer's address in a pod's network.
fn balancer(number: u8) -> String {
    format!("10.88.{number}.1")
}

/// One pod. Its processes end with it.
pub(crate) struct Pod<'a> {
    bed: &'a Bed,
    pub(crate) name: String,
    number: u8,
    cgroup: PathBuf,
    sandbox: Option<Killed>,
    servers: Vec<Killed>,
    containers: u32,
}

impl Pod<'_> {
    /// The pause process with the pod's network, as the container runtime starts it. Instead of one that is
    /// there.
    pub(crate) fn start_sandbox(&mut self) -> Result<u32> {
        self.servers.clear();
        self.sandbox = None;
        let sandbox = namespace(Some(&self.container()?))?;
        let (pid, balancer_pid) = (sandbox.0.id(), self.bed.balancer.0.id());
        self.sandbox = Some(sandbox);
        let (number, device) = (self.number, format!("p{}x{}", self.number, self.containers));
        let inside = |line: String| run(pid, &line);
        run(balancer_pid, &format!("ip link add {device} type veth peer name eth0 netns {pid}"))?;
        run(balancer_pid, &format!("ip addr add {}/24 dev {device}", balancer(number)))?;
        run(balancer_pid, &format!("ip link set {device} up"))?;
        inside("ip link set lo up".to_owned())?;
        inside(format!("ip addr add 10.88.{number}.2/24 dev eth0"))?;
        inside("ip link set eth0 up".to_owned())?;
        Ok(pid)
    }

    /// Another network, and the pod's address there.
    pub(crate) fn add_device(&self) -> Result<String> {
        let (pid, balancer_pid, number) = (self.pid()?, self.bed.balancer.0.id(), self.number);
        run(balancer_pid, &format!("ip link add q{number} type veth peer name net1 netns {pid}"))?;
        run(balancer_pid, &format!("ip addr add 10.89.{number}.1/24 dev q{number}"))?;
        run(balancer_pid, &format!("ip link set q{number} up"))?;
        run(pid, &format!("ip addr add 10.89.{number}.2/24 dev net1"))?;
        run(pid, "ip link set net1 up")?;
        Ok(format!("10.89.{number}.2"))
    }

    /// A container with a server, in the pod's network namespace.
    pub(crate) fn start_server(&mut self, port: u16) -> Result<()> {
        let cgroup = self.container()?;
        let server = in_cgroup(&cgroup, &peers::server(self.pid()?, port))?;
        self.servers.push(Killed(server));
        let answers = |has_header| self.ask(port, has_header);
        // Whether truepeer is attached or not.
        until("the server", || {
            Ok([answers(true)?, answers(false)?].iter().any(|answer| answer.ends_with("hello")).then_some(()))
        })
    }

    pub(crate) fn end_servers(&mut self) {
        self.servers.clear();
    }

    pub(crate) fn end(&mut self) {
        self.servers.clear();
        self.sandbox = None;
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self.sandbox.as_ref().context("no sandbox")?.0.id())
    }

    /// What the load balancer is answered: the client that the server sees, and the first word that it reads.
    pub(crate) fn ask(&self, port: u16, has_header: bool) -> Result<String> {
        self.ask_at(&format!("10.88.{}.2", self.number), port, has_header)
    }

    /// At another address of the pod.
    pub(crate) fn ask_at(&self, address: &str, port: u16, has_header: bool) -> Result<String> {
        self.bed.answer(&format!("{address}:{port}"), has_header)
    }

    /// The server sees the client of the header.
    pub(crate) fn expect_attached(&self, port: u16) -> Result<()> {
        let answer = self.ask(port, true)?;
        ensure!(answer == format!("{} hello", peers::CLIENT), "with a header: {answer:?}");
        Ok(())
    }

    /// The server reads the header as data.
    pub(crate) fn expect_raw(&self, port: u16) -> Result<()> {
        let answer = self.ask(port, true)?;
        ensure!(answer == format!("{} PROXY", balancer(self.number)), "with a header: {answer:?}");
        Ok(())
    }

    fn container(&mut self) -> Result<PathBuf> {
        self.containers += 1;
        let path = self.cgroup.join(format!("c{}", self.containers));
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// When the condition last became true or false.
    pub(crate) fn turned(&self) -> Result<String> {
        let pod = self.bed.cluster.pod(&self.name)?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|one| one.type_ == "truepeer.dev/attached");
        let time = condition.and_then(|condition| condition.last_transition_time).context("no time")?;
        Ok(time.0.to_string())
    }

    /// Status, reason and message of the condition.
    pub(crate) fn condition(&self) -> Result<(String, String, String)> {
        let pod = self.bed.cluster.pod(&self.name)?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions
            .into_iter()
            .find(|one| one.type_ == "truepeer.dev/attached")
            .context("no condition yet")?;
        Ok((condition.status, condition.reason.unwrap_or_default(), condition.message.unwrap_or_default()))
    }

    /// Waits for a reason, and returns the message.
    pub(crate) fn wait_for(&self, reason: &str) -> Result<String> {
        let found = until(&format!("{}: {reason}", self.name), || {
            let (status, found, message) = self.condition()?;
            ensure!(found == reason, "{found}: {message}");
            Ok(Some((status, message)))
        });
        let (status, message) = found?;
        ensure!((status == "True") == (reason == "Attached"), "{reason}, but {status}");
        Ok(message)
    }

    /// Reasons and notes of its events.
    pub(crate) fn events(&self) -> Result<Vec<(String, String)>> {
        self.bed.cluster.events(&self.name)
    }

    /// Waits for an event, and returns its note.
    pub(crate) fn wait_for_event(&self, reason: &str) -> Result<String> {
        until(&format!("{}: the event {reason}", self.name), || {
            Ok(self.events()?.into_iter().rev().find(|(found, _)| found == reason).map(|(_, note)| note))
        })
    }

    /// As kubelet does.
    pub(crate) fn say_containers_are_ready(&self) -> Result<()> {
        self.bed.cluster.add_condition(&self.name, "ContainersReady")
    }

    pub(crate) fn annotate(&self, annotations: Value) -> Result<()> {
        self.bed.cluster.annotate(&self.name, annotations)
    }

    pub(crate) fn delete(mut self) -> Result<()> {
        self.end();
        self.bed.cluster.delete_pod(&self.name)
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        self.end();
        let _ = self.bed.cluster.delete_pod(&self.name);
    }
}

/// A process in a new network namespace, and in a cgroup.
fn namespace(cgroup: Option<&Path>) -> Result<Killed> {
    let mut sleeping = Command::new("unshare");
    sleeping.args(["--net", "sleep", "infinity"]);
    let child = Killed(match cgroup {
        Some(cgroup) => in_cgroup(cgroup, &sleeping)?,
        None => sleeping.stdin(Stdio::null()).spawn()?,
    });
    let netns = |pid: u32| Ok::<u64, std::io::Error>(fs::metadata(format!("/proc/{pid}/ns/net"))?.ino());
    let here = netns(std::process::id())?;
    until("a network namespace", || Ok((netns(child.0.id())? != here).then_some(())))?;
    Ok(child)
}

fn in_cgroup(cgroup: &Path, command: &Command) -> Result<Child> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
        .arg(cgroup)
        .arg(command.get_program())
        .args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(shell.stdin(Stdio::null()).spawn()?)
}

/// Runs a command line in the network namespace of a process.
pub(crate) fn run(pid: u32, line: &str) -> Result<()> {
    let output =
        Command::new("nsenter").arg(format!("--net=/proc/{pid}/ns/net")).args(line.split(' ')).output()?;
    ensure!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Where cgroup v2 is mounted.
fn cgroup_root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some("cgroup2"))
        .context("cgroup v2 is not mounted")?;
    Ok(PathBuf::from(mount.split(' ').nth(1).unwrap_or_default()))
}

/// Children first.
fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    let _ = fs::remove_dir(path);
}
