//! The pod's condition `truepeer.dev/attached`: an entry of readinessGates for pods that
//! name it, and for operators.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::node::Claim;
use crate::statuses::{Name, State};

/// Its type, which is also that of the entry in readinessGates.
pub(super) const TYPE: &str = "truepeer.dev/attached";

const ATTACHED: &str = "Attached";
const DETACHING: &str = "Detaching";

/// Without its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) is_true: bool,
    /// A word, for machines.
    pub(super) reason: String,
    pub(super) message: String,
}

impl Condition {
    /// `None`: nothing is to be said about a pod that doesn't ask.
    pub(super) fn of(state: &State) -> Option<Self> {
        let condition = |is_true, reason: &str, message: String| {
            Some(Self { is_true, reason: reason.to_owned(), message })
        };
        match state {
            State::Idle => None,
            State::Waiting(what) => condition(false, "Waiting", (*what).to_owned()),
            State::Attached { description, .. } => condition(true, ATTACHED, description.clone()),
            // The earlier annotations still hold. Events end after an hour, the condition doesn't.
            State::Refused { why, kept: Some(description) }
            | State::Failed { why, kept: Some(description) } => {
                condition(true, ATTACHED, format!("{description}; not followed: {why}"))
            }
            State::Refused { why, kept: None } => condition(false, "Refused", why.clone()),
            State::Failed { why, kept: None } => condition(false, "AttachFailed", why.clone()),
            State::NoRoom { max } => condition(false, "TooManyPods", no_room(*max)),
            State::Detaching { description, why: None } => condition(false, DETACHING, description.clone()),
            State::Detaching { description, why: Some(why) } => {
                condition(false, DETACHING, format!("{description}; not followed: {why}"))
            }
        }
    }

    /// The condition of a pod after its detach.
    pub(super) fn detached() -> Self {
        Self {
            is_true: false,
            reason: "Detached".to_owned(),
            message: "the pod's annotations ask for nothing".to_owned(),
        }
    }

    /// The rules that were attached when an agent wrote this condition.
    pub(super) fn claim(&self) -> Option<Claim> {
        let is_claim = matches!(self.reason.as_str(), ATTACHED | DETACHING);
        is_claim.then(|| Claim { description: self.message.clone(), is_true: self.is_true })
    }
}

pub(super) fn no_room(max: usize) -> String {
    format!("{max} pods are attached on this node, and more are not allowed (--max-pods of the agent)")
}

/// Writes it. A pod of the same name that came after this one is not touched: the API server compares the
/// UID.
pub(super) async fn write(
    pods: &Api<Pod>,
    name: &Name,
    uid: &str,
    before: Option<&Condition>,
    condition: &Condition,
) -> Result<(), kube::Error> {
    let status = if condition.is_true { "True" } else { "False" };
    let mut written =
        json!({"type": TYPE, "status": status, "reason": condition.reason, "message": condition.message});
    if before.is_none_or(|before| before.is_true != condition.is_true) {
        written["lastTransitionTime"] = json!(now());
    }
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [written]}});
    pods.patch_status(&name.name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
}

/// Removes it.
pub(super) async fn remove(pods: &Api<Pod>, name: &Name, uid: &str) -> Result<(), kube::Error> {
    let conditions = json!([{"type": TYPE, "$patch": "delete"}]);
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": conditions}});
    pods.patch_status(&name.name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
}

/// In whole seconds, as the API has times.
fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(description: &str, is_true: bool) -> Option<Claim> {
        Some(Claim { description: description.to_owned(), is_true })
    }

    #[test]
    fn only_an_attached_pod_is_ready() {
        let attached = State::Attached { description: "ports 80".to_owned(), warnings: Vec::new() };
        let condition = Condition::of(&attached).unwrap();
        assert_eq!(condition.claim(), claim("ports 80", true));
        for state in
            [State::Waiting("x"), State::Failed { why: "x".to_owned(), kept: None }, State::NoRoom { max: 1 }]
        {
            let condition = Condition::of(&state).unwrap();
            assert_eq!((condition.is_true, condition.claim()), (false, None));
        }
        assert_eq!(Condition::of(&State::Idle), None);
    }

    #[test]
    fn a_wrong_annotation_keeps_a_pod_ready_that_is_attached() {
        let refused = |kept| Condition::of(&State::Refused { why: "wrong".to_owned(), kept }).unwrap();
        assert!(!refused(None).is_true);
        let kept = refused(Some("ports 80".to_owned()));
        assert_eq!(kept.claim(), claim("ports 80; not followed: wrong", true));
    }

    #[test]
    fn a_detach_that_waits_is_remembered() {
        let detaching = |why| State::Detaching { description: "ports 80".to_owned(), why };
        assert_eq!(Condition::of(&detaching(None)).unwrap().claim(), claim("ports 80", false));
        let forbidden = Condition::of(&detaching(Some("too wide".to_owned()))).unwrap();
        assert_eq!(forbidden.message, "ports 80; not followed: too wide");
        assert_eq!(Condition::detached().claim(), None);
    }
}
