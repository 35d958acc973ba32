//! Events on pods: `kubectl describe pod` shows them.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PostParams};

use crate::statuses::{HEADER_UNLISTED, NO_SERVER, Name, State};

use super::conditions::no_room;

/// The API's limit of a note is 1 KiB.
const MAX_NOTE: usize = 1000;
/// And of a name.
const MAX_NAME: usize = 253;

const DETACHING: &str =
    "new connections reach the server with their header; waiting for the open ones to end";

/// What is said once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) text: String,
}

impl Note {
    /// `reason`: [`NO_SERVER`], or a counter of truepeer.
    pub(super) fn of_traffic(reason: &str, text: &str) -> Self {
        let reason = match reason {
            NO_SERVER => NO_SERVER,
            HEADER_UNLISTED => "UnlistedSender",
            _ => "Refusing",
        };
        Self { is_warning: true, reason, text: shortened(text) }
    }

    /// `before`: the state until now.
    pub(super) fn of(state: &State, before: Option<&State>) -> Option<Self> {
        let note = |is_warning, reason, text: &str| Some(Self { is_warning, reason, text: shortened(text) });
        match state {
            State::Waiting(_) => None,
            State::Idle => match before {
                Some(State::Detaching { .. }) => note(false, "Detached", "the header is no longer removed"),
                _ => None,
            },
            State::Attached { description, warnings } => {
                let all: Vec<&str> =
                    [description.as_str()].into_iter().chain(warnings.iter().map(String::as_str)).collect();
                note(!warnings.is_empty(), "Attached", &all.join("; warning: "))
            }
            State::Refused { why, kept: None } => note(true, "Refused", why),
            State::Refused { why, kept: Some(kept) } => {
                note(true, "Refused", &format!("{why} (what was attached before stays: {kept})"))
            }
            State::Failed { why, kept: None } => note(true, "AttachFailed", why),
            State::Failed { why, kept: Some(kept) } => {
                note(true, "AttachFailed", &format!("{why} (what was attached before stays: {kept})"))
            }
            State::NoRoom { max } => note(true, "TooManyPods", &no_room(*max)),
            State::Detaching { why: None, .. } => note(false, "Detaching", DETACHING),
            State::Detaching { why: Some(why), .. } => {
                note(true, "Detaching", &format!("{why}: {DETACHING}"))
            }
        }
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= MAX_NOTE {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(MAX_NOTE);
    format!("{}…", &text[..end])
}

/// Unique by its time, as kubelet's own. A pod's name may be as long as an event's.
fn event_name(pod: &str, now: Timestamp) -> String {
    let time = format!(".{:x}", now.as_nanosecond());
    let begin = &pod[..pod.floor_char_boundary(MAX_NAME.saturating_sub(time.len()))];
    format!("{}{time}", begin.trim_end_matches(['-', '.']))
}

/// Publishes one.
pub(super) async fn publish(
    client: Client,
    node: &str,
    name: &Name,
    uid: &str,
    note: &Note,
) -> Result<(), kube::Error> {
    let namespace = name.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let now = Timestamp::now();
    let event = Event {
        metadata: ObjectMeta {
            name: Some(event_name(&name.name, now)),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }),
        type_: Some(if note.is_warning { "Warning" } else { "Normal" }.to_owned()),
        reason: Some(note.reason.to_owned()),
        action: Some("Attach".to_owned()),
        note: Some(note.text.clone()),
        event_time: Some(MicroTime(now)),
        reporting_controller: Some("truepeer.dev/agent".to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    };
    Api::namespaced(client, &namespace).create(&PostParams::default(), &event).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_pod_with_a_long_name_has_a_name() {
        let now = Timestamp::from_nanosecond(0x18a1_b2c3_d4e5_f607).unwrap();
        assert_eq!(event_name("web-1", now), "web-1.18a1b2c3d4e5f607");
        let long = event_name(&format!("{}-{}", "a".repeat(235), "b".repeat(17)), now);
        assert_eq!(long, format!("{}.18a1b2c3d4e5f607", "a".repeat(235)));
        assert!(long.len() <= MAX_NAME);
    }

    #[test]
    fn notes_say_what_happened() {
        let attached = State::Attached {
            description: "ports 80".to_owned(),
            warnings: vec!["nothing listens".to_owned()],
        };
        let note = Note::of(&attached, None).unwrap();
        assert_eq!(
            (note.is_warning, note.reason, note.text.as_str()),
            (true, "Attached", "ports 80; warning: nothing listens")
        );
        assert_eq!(Note::of(&State::Idle, None), None);
        let detaching = |why| State::Detaching { description: String::new(), why };
        assert_eq!(Note::of(&State::Idle, Some(&detaching(None))).unwrap().reason, "Detached");
        let narrowed = Note::of(&detaching(Some("too wide".to_owned())), Some(&attached)).unwrap();
        assert!(
            narrowed.is_warning && narrowed.text.starts_with("too wide: new connections"),
            "{narrowed:?}"
        );
        let long = Note::of(&State::Failed { why: "é".repeat(2000), kept: None }, None).unwrap();
        assert!(long.text.len() <= 1024);
    }
}
