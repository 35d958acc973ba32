//! AppArmor, where scripts/apparmor.sh has loaded its profiles and set the variable: every agent here then
//! runs as in its container, under deploy/kubernetes/apparmor-agent, and the pods' servers under a profile
//! like the one that runtimes give to containers.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::needs;

const VARIABLE: &str = "TRUEPEER_TEST_APPARMOR";
const AGENT: &str = "truepeer-agent";

/// Where the container has the pins.
pub(crate) const PINS: &str = "/run/truepeer";

pub(crate) fn is_on() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// The command before a pod's server: it sets the profile that containerd gives containers.
pub(crate) fn container() -> &'static [&'static str] {
    if is_on() { &["setpriv", "--apparmor-profile=cri-containerd.apparmor.d"] } else { &[] }
}

/// The command before an agent or a probe: it leaves them the agent's capabilities, under its profile.
pub(crate) fn launcher() -> Vec<String> {
    if is_on() { needs::launcher(&needs::NEEDED) } else { Vec::new() }
}

/// An option of setpriv.
pub(crate) fn profile() -> Option<String> {
    is_on().then(|| format!("--apparmor-profile={AGENT}"))
}

/// Standard output and error of an agent. A pipe, as the runtime has it: the profile lets it write no other
/// file.
pub(crate) fn output(log: File) -> Result<(Stdio, Stdio, Option<Child>)> {
    if !is_on() {
        return Ok((log.try_clone()?.into(), log.into(), None));
    }
    let mut copying = Command::new("cat").stdin(Stdio::piped()).stdout(log).spawn()?;
    let pipe = std::os::fd::OwnedFd::from(copying.stdin.take().context("no pipe")?);
    Ok((pipe.try_clone()?.into(), pipe.into(), Some(copying)))
}

/// It runs under the profile, and so does what it starts.
pub(crate) fn check(pid: u32) -> Result<()> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children: Vec<u32> = children.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(!children.is_empty(), "{pid} has started nothing");
    for pid in children.into_iter().chain([pid]) {
        let label = fs::read_to_string(format!("/proc/{pid}/attr/current"))?;
        ensure!(label.trim_end() == format!("{AGENT} (enforce)"), "{pid}: {label}");
    }
    Ok(())
}
