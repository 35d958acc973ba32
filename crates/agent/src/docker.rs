//! The containers of Docker or Podman, by their labels.
//!
//! An event says only that something happened to a container: what is so now, the engine is asked. So events
//! that come twice, late or never (while the engine restarted) do no harm.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use bollard::Docker;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{EventsOptionsBuilder, InspectContainerOptions, ListContainersOptions};
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::annotation;
use crate::node::{Change, Desired};
use crate::plan::Want;
use crate::sender_limit::SenderLimit;
use crate::statuses::Name;

const DOCKER: &str = "/run/docker.sock";
const PODMAN: &str = "/run/podman/podman.sock";
/// A request's limit, in seconds.
const PATIENCE: u64 = 30;
/// How soon, and how rarely, an engine that doesn't answer is tried again.
const SOON: Duration = Duration::from_millis(500);
const RARELY: Duration = Duration::from_secs(10);

/// Hears of the engine's containers, in the background.
pub(crate) fn start(socket: Option<&str>, sender_limit: SenderLimit) -> Result<mpsc::Receiver<Change>> {
    let socket = socket_path(socket)?;
    tracing::info!(socket, "watching the containers of the engine");
    let (changes, heard) = mpsc::channel(64);
    tokio::spawn(run(socket, sender_limit, changes));
    Ok(heard)
}

fn socket_path(given: Option<&str>) -> Result<String> {
    match given {
        Some(text) => {
            let path = text.strip_prefix("unix://").unwrap_or(text);
            ensure!(
                path.starts_with('/'),
                "--socket {text}: expected the path of a unix socket on this machine, such as {DOCKER} or {PODMAN}"
            );
            Ok(path.to_owned())
        }
        None if !Path::new(DOCKER).exists() && Path::new(PODMAN).exists() => Ok(PODMAN.to_owned()),
        None => Ok(DOCKER.to_owned()),
    }
}

/// Until the receiver is gone. While the engine is away, what is attached stays.
async fn run(socket: String, sender_limit: SenderLimit, changes: mpsc::Sender<Change>) {
    let mut pause = SOON;
    let mut complained = String::new();
    while !changes.is_closed() {
        let mut engine =
            Engine { socket: &socket, sender_limit: &sender_limit, changes: &changes, has_answered: false };
        let error = match engine.follow().await {
            Ok(()) => "the engine has ended".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if engine.has_answered {
            (pause, complained) = (SOON, String::new());
        }
        if error != complained {
            tracing::warn!(socket, "{error}; what is attached stays");
            complained = error;
        }
        tokio::time::sleep(pause).await;
        pause = RARELY.min(pause * 2);
    }
}

/// One connection to the engine.
struct Engine<'a> {
    socket: &'a str,
    sender_limit: &'a SenderLimit,
    changes: &'a mpsc::Sender<Change>,
    has_answered: bool,
}

impl Engine<'_> {
    /// Until the engine ends.
    async fn follow(&mut self) -> Result<()> {
        let engine = Docker::connect_with_unix(self.socket, PATIENCE, bollard::API_DEFAULT_VERSION)?;
        let engine = engine.negotiate_version().await.context("the engine's version")?;
        // Before the list: an event that is heard twice does no harm, one that is missed does.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let running =
            engine.list_containers(None::<ListContainersOptions>).await.context("the list of containers")?;
        let mut listed = BTreeSet::new();
        for id in running.into_iter().filter_map(|container| container.id) {
            if self.update_container(&engine, &id).await? {
                listed.insert(id);
            }
        }
        self.changes.send(Change::Only(listed)).await?;
        self.has_answered = true;
        let filters = std::collections::HashMap::from([("type", vec!["container"])]);
        let options = EventsOptionsBuilder::default().since(&since.to_string()).filters(&filters).build();
        let mut events = std::pin::pin!(engine.events(Some(options)));
        while let Some(event) = events.next().await {
            let event = event.context("the engine's events")?;
            let is_of_interest = event.action.as_deref().is_some_and(concerns_the_process);
            if let Some(id) = event.actor.and_then(|actor| actor.id)
                && is_of_interest
            {
                self.update_container(&engine, &id).await?;
            }
        }
        Ok(())
    }

    /// Asks the engine about a container, and passes on what is so. Whether it runs and has labels.
    async fn update_container(&self, engine: &Docker, id: &str) -> Result<bool> {
        let desired = match engine.inspect_container(id, None::<InspectContainerOptions>).await {
            Ok(container) => desired(&container, self.sender_limit),
            Err(error) if is_unknown(&error) => None,
            Err(error) => return Err(error).with_context(|| format!("container {id}")),
        };
        let is_desired = desired.is_some();
        let change = match desired {
            Some(desired) => Change::Set(id.to_owned(), desired),
            None => Change::Gone(id.to_owned()),
        };
        self.changes.send(change).await?;
        Ok(is_desired)
    }
}

/// Podman answers 500 for a container that is being removed.
fn is_unknown(error: &bollard::errors::Error) -> bool {
    matches!(error, bollard::errors::Error::DockerResponseServerError { status_code, message }
        if *status_code == 404 || message.contains("no such container"))
}

/// Others are frequent: `exec_start: …`, `health_status: healthy`, `top`.
fn concerns_the_process(action: &str) -> bool {
    let actions =
        ["start", "restart", "die", "died", "stop", "kill", "destroy", "remove", "rename", "cleanup"];
    actions.contains(&action)
}

/// Reads a container's labels. `None`: it has none of ours, or it doesn't run.
fn desired(container: &ContainerInspectResponse, sender_limit: &SenderLimit) -> Option<Desired> {
    let state = container.state.as_ref()?;
    let process = state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0)?;
    state.running.filter(|running| *running)?;
    let labels = container.config.as_ref()?.labels.as_ref()?;
    let network =
        container.host_config.as_ref().and_then(|host| host.network_mode.as_deref()).unwrap_or_default();
    let want = match annotation::parse(labels.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
        Ok(None) => return None,
        Err(wrong) => Want::Unclear(wrong.to_string()),
        Ok(Some(_)) if network == "host" => Want::Forbidden(
            "the container uses the host's network, where all servers of the host would be affected: run truepeer attach on the host".to_owned(),
        ),
        Ok(Some(rules)) => match sender_limit.exceeded_by(&rules.allow) {
            None => Want::Attach(rules),
            Some(sender) => Want::Forbidden(format!(
                "{}allow: {sender}: expected senders inside {}, which --allow-senders lists",
                annotation::PREFIX,
                sender_limit.shown()
            )),
        },
    };
    let name = container.name.as_deref().unwrap_or_default().trim_start_matches('/').to_owned();
    let name = Name { namespace: None, name };
    let process = Some(process);
    Some(Desired { name, want, process, claim: None, has_condition: false, is_serving: true })
}

/// Says in the log what became of labels: containers have no place for it.
pub(crate) async fn tell(statuses: std::sync::Arc<crate::statuses::StatusTable>) {
    use crate::statuses::State;
    let mut said = std::collections::BTreeMap::new();
    loop {
        let changed = statuses.changed();
        let lines = statuses.rows();
        said.retain(|key, _| lines.contains_key(key));
        for (key, line) in lines {
            let text = match &line.state {
                State::Refused { why, .. } => why.clone(),
                State::NoRoom { max } => {
                    format!("{max} containers are attached, and more are not allowed (--max-containers)")
                }
                _ => String::new(),
            };
            if said.insert(key, text.clone()).is_none_or(|before| before != text) && !text.is_empty() {
                tracing::warn!(name = %line.name, "{text}");
            }
        }
        changed.await;
    }
}

/// An engine that isn't there at the start is a mistake in the command line, rather than one that restarts.
pub(crate) fn check(socket: Option<&str>) -> Result<()> {
    let path = socket_path(socket)?;
    if !Path::new(&path).exists() {
        bail!("{path}: there is no such socket; name the engine's with --socket PATH");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wanted(labels: serde_json::Value, network: &str, pid: i64, sender_limit: &[&str]) -> Option<Want> {
        let container = json!({"Name": "/web", "State": {"Running": pid != 0, "Pid": pid},
            "Config": {"Labels": labels}, "HostConfig": {"NetworkMode": network}});
        let entries: Vec<_> = sender_limit.iter().map(|entry| entry.parse().unwrap()).collect();
        let desired =
            desired(&serde_json::from_value(container).unwrap(), &SenderLimit::of(&entries).unwrap())?;
        assert_eq!((desired.name.to_string().as_str(), desired.process), ("web", Some(7)));
        Some(desired.want)
    }

    #[test]
    fn labels_of_running_containers_are_read() {
        let labels = json!({"truepeer.dev/ports": "80", "truepeer.dev/allow": "10.0.0.7"});
        assert!(matches!(wanted(labels.clone(), "bridge", 7, &[]), Some(Want::Attach(_))));
        assert_eq!(wanted(labels.clone(), "bridge", 0, &[]), None);
        assert_eq!(wanted(json!({"com.example": "x"}), "bridge", 7, &[]), None);
        assert!(matches!(wanted(labels.clone(), "host", 7, &[]), Some(Want::Forbidden(_))));
        assert!(matches!(wanted(labels, "bridge", 7, &["192.0.2.0/24"]), Some(Want::Forbidden(_))));
        assert!(matches!(
            wanted(json!({"truepeer.dev/ports": "80"}), "bridge", 7, &[]),
            Some(Want::Unclear(_))
        ));
    }

    #[test]
    fn sockets_are_paths() {
        assert_eq!(socket_path(Some("unix:///run/x.sock")).unwrap(), "/run/x.sock");
        assert!(
            socket_path(Some("tcp://10.0.0.1:2375"))
                .unwrap_err()
                .to_string()
                .contains("expected the path of a unix socket")
        );
    }

    #[test]
    fn frequent_events_are_no_reason_to_ask() {
        assert!(concerns_the_process("start") && concerns_the_process("die"));
        assert!(
            !concerns_the_process("exec_start: sh -c true")
                && !concerns_the_process("health_status: healthy")
        );
    }
}
