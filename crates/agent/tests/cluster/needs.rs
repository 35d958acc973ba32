//! The capabilities: enough, and each necessary.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::Test;
use crate::agent::Agent;
use crate::bed::Bed;
use crate::confined;

pub(crate) const TESTS: &[Test] = &[
    ("three_capabilities_are_enough", three_capabilities_are_enough),
    ("each_capability_is_necessary", each_capability_is_necessary),
    ("the_strict_seccomp_profile_is_enough", the_strict_seccomp_profile_is_enough),
];

/// As in the DaemonSet. CAP_SYS_ADMIN, which entering a network namespace takes, includes CAP_BPF and
/// CAP_PERFMON.
pub(crate) const NEEDED: [&str; 3] = ["net_admin", "sys_admin", "sys_ptrace"];

const WEB: [(&str, &str); 2] = [("ports", "80"), ("allow", "LB")];

/// As root with these capabilities alone.
pub(crate) fn launcher(capabilities: &[&str]) -> Vec<String> {
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let mut line = vec![
        "setpriv".to_owned(),
        format!("--bounding-set=-all{set}"),
        "--inh-caps=-all".to_owned(),
        "--no-new-privs".to_owned(),
    ];
    line.extend(confined::profile());
    line
}

fn start<'a>(bed: &Bed, capabilities: impl Iterator<Item = &'a str>) -> Result<Agent> {
    Agent::start_by(bed, &launcher(&capabilities.collect::<Vec<_>>()), &[])
}

fn three_capabilities_are_enough(bed: &Bed) -> Result<()> {
    let _agent = start(bed, NEEDED.into_iter())?;
    let mut pod = bed.pod(&[("ports", "80,53/udp"), ("allow", "LB")])?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.expect_attached(80)
}

/// Of deploy/kubernetes/seccomp-agent.json, for the agent and all that it starts.
fn the_strict_seccomp_profile_is_enough(bed: &Bed) -> Result<()> {
    let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let under = format!("{repository}/scripts/containers/under-seccomp.py");
    let profile = format!("{repository}/deploy/kubernetes/seccomp-agent.json");
    let agent = Agent::start_by(bed, &[under, profile], &[])?;
    let mut pod = bed.pod(&[("ports", "80,53/udp"), ("allow", "LB")])?;
    pod.start_sandbox()?;
    pod.wait_for("Attached")?;
    pod.start_server(80)?;
    pod.expect_attached(80)?;
    ensure!(agent.metric("truepeer_agent_counters_read")? == 1, "{}", agent.log());
    pod.annotate(json!({"truepeer.dev/ports": null, "truepeer.dev/allow": null}))?;
    pod.wait_for("Detached")?;
    pod.expect_raw(80)?;
    ensure!(!agent.log().contains("not permitted"), "{}", agent.log());
    Ok(())
}

fn each_capability_is_necessary(bed: &Bed) -> Result<()> {
    for without in NEEDED {
        let mut pod = bed.pod(&WEB)?;
        pod.start_sandbox()?;
        let agent = start(bed, NEEDED.into_iter().filter(|name| *name != without));
        match agent {
            // It says what it lacks, and ends.
            Err(error) => {
                ensure!(format!("{error:#}").contains("CAP_SYS_PTRACE"), "without {without}: {error:#}")
            }
            Ok(agent) => {
                let why = pod.wait_for("AttachFailed").with_context(|| format!("without {without}"))?;
                ensure!(!why.is_empty(), "{}", agent.log());
            }
        }
    }
    Ok(())
}
