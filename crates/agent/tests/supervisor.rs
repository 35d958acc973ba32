//! The two processes of `truepeer-agent kubernetes`, without an API server: it can't be reached, which ends
//! no agent.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// In place of the program truepeer: one of its processes stays, as the one that follows refusals.
const TRUEPEER: &str = r#"#!/bin/sh
case "$*" in
  *--follow*) exec sleep 600 ;;
  --version) echo "truepeer 0.1.0" ;;
  *) echo '{"namespaces": []}' ;;
esac
"#;
const KUBECONFIG: &str = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "none",
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "none", "user": {}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}]}"#;

fn main() -> ExitCode {
    type Test = (&'static str, fn() -> Result<()>);
    let tests: [Test; 5] = [
        ("an_agent_that_is_killed_is_started_again_without_its_steps", killed_again_and_again),
        ("an_agent_ends_when_it_is_told", ends_when_told),
        ("an_agent_ends_with_its_supervisor", ends_with_its_supervisor),
        ("an_agent_starts_and_ends_under_the_strict_seccomp_profile", under_seccomp),
        ("an_agent_that_fails_ends_its_supervisor_with_its_status", fails),
    ];
    let trials = tests.map(|(name, test)| Trial::ignorable_test(name, move || run(test)));
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn run(test: fn() -> Result<()>) -> Result<Completion, Failed> {
    let is_root =
        fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0\t"));
    if !is_root {
        return Ok(Completion::ignored_with("root is needed"));
    }
    test().map(|()| Completion::Completed).map_err(|error| Failed::from(format!("{error:#}")))
}

/// The supervisor, and what it says. All end with it.
struct Agent {
    supervisor: Child,
    directory: PathBuf,
    /// Of the probes' socket, too.
    name: String,
}

impl Agent {
    fn start(name: &str, more: &[&str]) -> Result<Self> {
        Self::start_by(name, &[], more)
    }

    /// `launcher`: a program that executes the agent, and its options.
    fn start_by(name: &str, launcher: &[&str], more: &[&str]) -> Result<Self> {
        let name = format!("truepeer-supervisor-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(&name);
        fs::create_dir_all(&directory)?;
        let truepeer = directory.join("truepeer");
        fs::write(&truepeer, TRUEPEER)?;
        fs::set_permissions(&truepeer, fs::Permissions::from_mode(0o755))?;
        fs::write(directory.join("config"), KUBECONFIG)?;
        let log = File::create(directory.join("log"))?;
        let program = env!("CARGO_BIN_EXE_truepeer-agent");
        let mut line = launcher.iter().copied().chain([program]);
        let mut command = Command::new(line.next().unwrap_or(program));
        command.args(line);
        command.args(["kubernetes", "--node", "none", "--listen", "none", "--probes", &format!("@{name}")]);
        command.arg("--truepeer").arg(&truepeer).args(more).env("KUBECONFIG", directory.join("config"));
        let supervisor = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        Ok(Self { supervisor, directory, name })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// The agent proper, with the process that it starts.
    fn worker(&self) -> Result<u32> {
        let pid = self.supervisor.id();
        let found = until("the agent proper", || {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
            let worker = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
            Ok(worker.filter(|worker| of_group(*worker).is_ok_and(|count| count > 1)))
        });
        found.with_context(|| self.log())
    }

    fn is_alive(&self) -> Result<bool> {
        let mut probe = Command::new(env!("CARGO_BIN_EXE_truepeer-agent"));
        Ok(probe.args(["probe", "live", "--probes", &format!("@{}", self.name)]).output()?.status.success())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if let Ok(Some(answer)) = ask() {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("waited in vain for {what}")
}

/// How many processes an agent and its steps are.
fn of_group(leader: u32) -> Result<usize> {
    let found = Command::new("pgrep").args(["-g", &leader.to_string()]).output()?;
    Ok(String::from_utf8_lossy(&found.stdout).lines().count())
}

fn signal(name: &str, pid: u32) -> Result<()> {
    ensure!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status()?.success(), "kill");
    Ok(())
}

fn killed_again_and_again() -> Result<()> {
    let agent = Agent::start("killed", &[])?;
    for _ in 0..3 {
        let worker = agent.worker()?;
        signal("KILL", worker)?;
        until("another one", || Ok((agent.worker()? != worker && agent.is_alive()?).then_some(())))
            .with_context(|| agent.log())?;
        until("the end of its steps", || Ok((of_group(worker)? == 0).then_some(())))?;
    }
    ensure!(agent.log().matches("killed by signal 9").count() == 3, "{}", agent.log());
    Ok(())
}

fn ends_when_told() -> Result<()> {
    let mut agent = Agent::start("told", &[])?;
    let worker = agent.worker()?;
    until("an agent that answers", || Ok(agent.is_alive()?.then_some(())))?;
    signal("TERM", agent.supervisor.id())?;
    let status = agent.supervisor.wait()?;
    ensure!(status.success() && agent.log().contains("what is attached stays"), "{status}: {}", agent.log());
    until("its end", || Ok((!PathBuf::from(format!("/proc/{worker}")).exists()).then_some(())))
}

fn ends_with_its_supervisor() -> Result<()> {
    let mut agent = Agent::start("orphan", &[])?;
    let worker = agent.worker()?;
    agent.supervisor.kill()?;
    agent.supervisor.wait()?;
    until("the end of the agent and its steps", || Ok((of_group(worker)? == 0).then_some(())))
}

/// As a container runtime applies deploy/kubernetes/seccomp-agent.json.
fn under_seccomp() -> Result<()> {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let under = format!("{repository}/scripts/containers/under-seccomp.py");
    let profile = format!("{repository}/deploy/kubernetes/seccomp-agent.json");
    let refused = Command::new(&under).args([&profile, "/usr/bin/unshare", "--mount", "true"]).output()?;
    ensure!(String::from_utf8_lossy(&refused.stderr).contains("Operation not permitted"), "{refused:?}");

    let mut agent = Agent::start_by("seccomp", &[&under, &profile], &[])?;
    agent.worker()?;
    until("an agent that answers", || Ok(agent.is_alive()?.then_some(()))).with_context(|| agent.log())?;
    until("a try to reach the API server", || Ok(agent.log().contains("watching pods").then_some(())))?;
    signal("TERM", agent.supervisor.id())?;
    let status = agent.supervisor.wait()?;
    ensure!(status.success() && !agent.log().contains("not permitted"), "{status}: {}", agent.log());
    Ok(())
}

fn fails() -> Result<()> {
    let mut agent = Agent::start("fails", &["--allow-senders", "/no/such/file"])?;
    let status = agent.supervisor.wait()?;
    ensure!(status.code() == Some(1) && agent.log().contains("/no/such/file"), "{status}: {}", agent.log());
    Ok(())
}
