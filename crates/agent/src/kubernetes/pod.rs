//! A pod, as far as it matters here.

use k8s_openapi::api::core::v1::{Pod, PodCondition};

use crate::annotation;
use crate::node::Desired;
use crate::plan::{Key, Want};
use crate::processes::is_uid;
use crate::sender_limit::SenderLimit;
use crate::statuses::Name;

use super::PodPolicy;
use super::conditions::{self, Condition};

/// A static pod's process has another UID than the object in the API, and the annotation that names it can be
/// written by anybody.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What its annotations ask for, and what its status says.
#[derive(Debug)]
pub(super) struct AnnotatedPod {
    pub(super) uid: Key,
    pub(super) desired: Desired,
    pub(super) condition: Option<Condition>,
}

impl AnnotatedPod {
    /// `None`: it has ended. One that asks for nothing may have something attached all the same.
    pub(super) fn of(pod: &Pod, policy: &PodPolicy) -> Option<Self> {
        let (metadata, status) = (&pod.metadata, pod.status.as_ref());
        let uid = metadata.uid.clone().filter(|uid| is_uid(uid))?;
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return None;
        }
        let conditions = || status.iter().flat_map(|status| status.conditions.iter().flatten());
        let condition = conditions().find(|one| one.type_ == conditions::TYPE).map(of_api);
        let is_serving = conditions().any(|one| one.type_ == "ContainersReady" && one.status == "True");
        let want = if policy.leaves { Want::Nothing } else { want(pod, &policy.sender_limit) };
        let claim = condition.as_ref().and_then(Condition::claim);
        let name = Name { namespace: metadata.namespace.clone(), name: metadata.name.clone()? };
        let has_condition = condition.is_some();
        let desired = Desired { name, want, process: None, claim, has_condition, is_serving };
        Some(Self { uid, desired, condition })
    }
}

fn of_api(condition: &PodCondition) -> Condition {
    Condition {
        is_true: condition.status == "True",
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    }
}

/// It waits for what nobody asks for.
const NO_ANNOTATIONS: &str = "the pod waits for truepeer.dev/attached (readinessGates), and has no \
    annotation truepeer.dev/ports: write the annotations in the template of its Deployment (spec.template.metadata.annotations)";

fn has_gate(pod: &Pod) -> bool {
    let entries = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    entries.into_iter().any(|entry| entry.condition_type == conditions::TYPE)
}

/// Words in the names of runtime classes whose pods have a kernel of their own. The handler itself stands in
/// the RuntimeClass, which the agent may not read.
const SANDBOXED: [&str; 3] = ["gvisor", "runsc", "kata"];

fn sandboxed_class(pod: &Pod) -> Option<&str> {
    let class = pod.spec.as_ref()?.runtime_class_name.as_deref()?;
    SANDBOXED.iter().any(|word| class.contains(word)).then_some(class)
}

fn want(pod: &Pod, sender_limit: &SenderLimit) -> Want {
    let annotations = pod.metadata.annotations.iter().flatten();
    let rules = match annotation::parse(annotations.map(|(name, value)| (name.as_str(), value.as_str()))) {
        Ok(None) if has_gate(pod) => return Want::Forbidden(NO_ANNOTATIONS.to_owned()),
        Ok(None) => return Want::Nothing,
        Ok(Some(rules)) => rules,
        Err(wrong) => return Want::Unclear(wrong.to_string()),
    };
    let uses_host_network = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    if uses_host_network {
        let why = "the pod uses the node's network (hostNetwork), where all servers of the node would be affected: leave hostNetwork out, \
                   or run truepeer attach on the node";
        return Want::Forbidden(why.to_owned());
    }
    if pod.metadata.annotations.iter().flatten().any(|(name, _)| name == MIRROR) {
        return Want::Forbidden("static pods are not supported: use a Deployment or a DaemonSet".to_owned());
    }
    if let Some(class) = sandboxed_class(pod) {
        return Want::Forbidden(format!(
            "the pod's runtime class {class} gives it a kernel of its own, and truepeer would work in the \
             node's: use another runtime class"
        ));
    }
    match sender_limit.exceeded_by(&rules.allow) {
        None => Want::Attach(rules),
        Some(sender) => Want::Forbidden(format!(
            "{}allow: {sender}: expected senders inside {}, which --allow-senders of the agent lists",
            annotation::PREFIX,
            sender_limit.shown()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "4f5c0d3a-1b2c-4d5e-8f90-0123456789ab";

    fn annotated(pod: serde_json::Value, sender_limit: &[&str]) -> Option<AnnotatedPod> {
        let entries: Vec<_> = sender_limit.iter().map(|entry| entry.parse().unwrap()).collect();
        AnnotatedPod::of(
            &serde_json::from_value(pod).unwrap(),
            &PodPolicy { sender_limit: SenderLimit::of(&entries).unwrap(), leaves: false },
        )
    }

    fn pod(
        annotations: serde_json::Value,
        spec: serde_json::Value,
        status: serde_json::Value,
    ) -> serde_json::Value {
        let metadata = serde_json::json!({"name": "web", "namespace": "default", "uid": UID, "annotations": annotations});
        serde_json::json!({"metadata": metadata, "spec": spec, "status": status})
    }

    fn asking() -> serde_json::Value {
        serde_json::json!({"truepeer.dev/ports": "80", "truepeer.dev/allow": "10.0.0.7"})
    }

    #[test]
    fn annotated_pods_are_seen_until_they_end() {
        let containers = serde_json::json!({"containers": []});
        let running = serde_json::json!({"phase": "Pending"});
        let seen = annotated(pod(asking(), containers.clone(), running.clone()), &[]).unwrap();
        assert_eq!((seen.uid.as_str(), seen.desired.name.to_string().as_str()), (UID, "default/web"));
        assert!(matches!(seen.desired.want, Want::Attach(_)), "{seen:?}");
        let plain = annotated(pod(serde_json::json!({}), containers.clone(), running.clone()), &[]).unwrap();
        assert_eq!((plain.desired.want, plain.desired.claim), (Want::Nothing, None));
        for phase in ["Succeeded", "Failed"] {
            assert!(
                annotated(pod(asking(), containers.clone(), serde_json::json!({"phase": phase})), &[])
                    .is_none()
            );
        }
        let mut other = pod(asking(), containers, running);
        other["metadata"]["uid"] = "../1".into();
        assert!(annotated(other, &[]).is_none());
    }

    #[test]
    fn what_is_forbidden_says_why() {
        let status = serde_json::json!({});
        let why = |pod, sender_limit: &[&str]| match annotated(pod, sender_limit).unwrap().desired.want {
            Want::Forbidden(why) => why,
            other => panic!("{other:?}"),
        };
        let on_host = serde_json::json!({"containers": [], "hostNetwork": true});
        assert!(
            why(pod(asking(), on_host, status.clone()), &[])
                .starts_with("the pod uses the node's network (hostNetwork)")
        );
        let containers = serde_json::json!({"containers": []});
        assert_eq!(
            why(pod(asking(), containers.clone(), status.clone()), &["192.0.2.0/24"]),
            "truepeer.dev/allow: 10.0.0.7/32: expected senders inside 192.0.2.0/24, which --allow-senders of the agent lists"
        );
        let mut mirror = asking();
        mirror[MIRROR] = "x".into();
        assert!(why(pod(mirror, containers, status.clone()), &[]).starts_with("static pods"));
        let of_class = |class: &str| serde_json::json!({"containers": [], "runtimeClassName": class});
        for class in ["gvisor", "kata-qemu"] {
            let why = why(pod(asking(), of_class(class), status.clone()), &[]);
            assert!(why.starts_with(&format!("the pod's runtime class {class} gives it a kernel")), "{why}");
        }
        let runc = annotated(pod(asking(), of_class("fast"), status), &[]).unwrap();
        assert!(matches!(runc.desired.want, Want::Attach(_)), "{runc:?}");
    }

    #[test]
    fn a_gate_without_annotations_is_explained() {
        let named =
            serde_json::json!({"containers": [], "readinessGates": [{"conditionType": conditions::TYPE}]});
        let want = |spec| {
            annotated(pod(serde_json::json!({}), spec, serde_json::json!({})), &[]).unwrap().desired.want
        };
        assert_eq!(want(named), Want::Forbidden(NO_ANNOTATIONS.to_owned()));
        let other =
            serde_json::json!({"containers": [], "readinessGates": [{"conditionType": "example.org/other"}]});
        assert_eq!(want(other), Want::Nothing);
    }

    #[test]
    fn an_earlier_agents_word_is_taken_over() {
        let status = serde_json::json!({"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "truepeer.dev/attached", "status": "True", "reason": "Attached", "message": "ports 80; netns 1"}]});
        let seen = annotated(pod(serde_json::json!({}), serde_json::json!({"containers": []}), status), &[])
            .unwrap();
        let claim = seen.desired.claim.unwrap();
        assert_eq!(
            (seen.desired.want, claim.description.as_str(), claim.is_true),
            (Want::Nothing, "ports 80; netns 1", true)
        );
    }
}
