//! Asks container engines for a container's process.

use std::io::ErrorKind;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use truepeer_sys::process::unblock_signals_in;

use truepeer_config::spec::Engine;

/// Names of containers may be shortened, as in the engines' own commands, but not to less than this.
const SHORTEST_ID: usize = 8;

/// Whether a container runs.
pub(super) enum State {
    /// Its first process.
    Running(u32),
    /// The engine that has it.
    Stopped(Engine),
}

/// The first process of a running container.
pub(super) fn process_of(name: &str, engine: Option<Engine>) -> Result<u32> {
    match look_for(name, engine)? {
        State::Running(process) => Ok(process),
        State::Stopped(engine) => {
            bail!("--container {name}: it is not running; {} start {name}", engine.as_str())
        }
    }
}

/// Asks the engines. No such container is an error.
pub(super) fn look_for(name: &str, engine: Option<Engine>) -> Result<State> {
    let asked: &[Engine] = engine.as_ref().map_or(&Engine::ALL, std::slice::from_ref);
    let mut installed = Vec::new();
    let (mut found, mut silent) = (Vec::new(), Vec::new());
    for engine in asked {
        let Some(answer) = ask(*engine, name, &mut silent)? else { continue };
        installed.push(engine.as_str());
        found.extend(answer.map(|process| (*engine, process)));
    }
    ensure!(
        !installed.is_empty(),
        "--container {name}: can't run {}; --pid PID needs none",
        names(asked).join(", ")
    );
    match found[..] {
        [] if !silent.is_empty() => bail!("--container {name}: {}", silent.join("; ")),
        [] => bail!("--container {name}: {} has no container of that name", installed.join(", ")),
        [(engine, 0)] => Ok(State::Stopped(engine)),
        [(_, process)] => Ok(State::Running(process)),
        [(first, _), (second, _), ..] => bail!(
            "--container {name}: {0} and {1} both have one; add --engine {0} or --engine {1}",
            first.as_str(),
            second.as_str()
        ),
    }
}

fn names(engines: &[Engine]) -> Vec<&'static str> {
    engines.iter().map(|engine| program(*engine)).collect()
}

fn program(engine: Engine) -> &'static str {
    match engine {
        Engine::Docker => "docker",
        Engine::Podman => "podman",
        Engine::Containerd => "ctr",
    }
}

/// `None`: the engine is not installed. `Some(None)`: it has no such container. Process 0: the container is
/// not running. An engine that can't be reached is added to `silent`, with its own words.
fn ask(engine: Engine, name: &str, silent: &mut Vec<String>) -> Result<Option<Option<u32>>> {
    match engine {
        Engine::Docker | Engine::Podman => {
            let args = ["container", "inspect", "--format", "{{.State.Pid}}", "--", name];
            let Some(output) = run(engine, &args)? else { return Ok(None) };
            if output.status.success() {
                return Ok(Some(text(&output).trim().parse().ok()));
            }
            // "No such container: web", "no such container web".
            if !String::from_utf8_lossy(&output.stderr).to_lowercase().contains("no such") {
                silent.push(failure(engine, &output));
            }
            Ok(Some(None))
        }
        Engine::Containerd => ask_containerd(name, silent),
    }
}

/// If containerd is installed but does not run, `ctr` would wait 10 s for it.
const CONNECT_TIMEOUT: &str = "--connect-timeout=1s";

/// Containerd keeps its containers in namespaces of names (`k8s.io`, `moby`, `default`).
fn ask_containerd(name: &str, silent: &mut Vec<String>) -> Result<Option<Option<u32>>> {
    let Some(spaces) = run(Engine::Containerd, &[CONNECT_TIMEOUT, "namespaces", "list", "--quiet"])? else {
        return Ok(None);
    };
    if !spaces.status.success() {
        silent.push(failure(Engine::Containerd, &spaces));
    }
    for space in text(&spaces).lines() {
        let Some(tasks) = run(Engine::Containerd, &[CONNECT_TIMEOUT, "--namespace", space, "tasks", "list"])?
        else {
            continue;
        };
        if let Some(process) = task_in(&text(&tasks), name) {
            return Ok(Some(Some(process)));
        }
    }
    Ok(Some(None))
}

/// `TASK PID STATUS`. Stopped containers have no process, so they count as 0.
fn task_in(tasks: &str, name: &str) -> Option<u32> {
    let find = |is_meant: &dyn Fn(&str) -> bool| {
        tasks.lines().skip(1).find_map(|line| {
            let mut fields = line.split_whitespace();
            let (id, process, state) = (fields.next()?, fields.next()?, fields.next()?);
            is_meant(id).then(|| if state == "RUNNING" { process.parse().ok() } else { Some(0) })?
        })
    };
    // A whole name counts before a part of another one.
    find(&|id| id == name).or_else(|| find(&|id| name.len() >= SHORTEST_ID && id.starts_with(name)))
}

fn run(engine: Engine, args: &[&str]) -> Result<Option<Output>> {
    let mut command = Command::new(program(engine));
    // The attach keeper blocks signals. The service manager expects nothing from an engine's client.
    unblock_signals_in(&mut command).env_remove("NOTIFY_SOCKET");
    match command.args(args).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        output => output.map(Some).with_context(|| format!("{} can't be run", program(engine))),
    }
}

fn failure(engine: Engine, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it fails without a word");
    format!("{} can't answer: {}", program(engine), last.trim())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_containerd_are_found_by_a_part_of_their_name() {
        let tasks = "TASK          PID    STATUS\nweb           41     RUNNING\n0123456789ab  42     RUNNING\nold 0 STOPPED\n";
        assert_eq!(task_in(tasks, "web"), Some(41));
        assert_eq!(task_in(tasks, "01234567"), Some(42));
        assert_eq!(task_in(tasks, "0123"), None, "too short to be sure");
        assert_eq!(task_in(tasks, "old"), Some(0));
        assert_eq!(task_in("", "web"), None);
        let tasks = "TASK PID STATUS\nwebserver-old 1 RUNNING\nwebserver 2 RUNNING\n";
        assert_eq!(task_in(tasks, "webserver"), Some(2));
    }
}
