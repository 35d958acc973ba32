//! The privileges that `attach` needs, and the message to print when they are missing.

use std::io;

use anyhow::{Error, Result, bail};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

const NEEDED: &str = "attach needs root, or CAP_BPF and CAP_NET_ADMIN";
const INSTEAD: &str = "truepeer run needs neither";

/// Returns the missing capabilities. CAP_SYS_ADMIN is an alternative to CAP_BPF: before Linux 5.8 it covered all
/// of BPF.
pub(crate) fn missing() -> Vec<&'static str> {
    let held = rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let wanted = [
        ("CAP_BPF", CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
    ];
    wanted.into_iter().filter(|(_, any)| !held.intersects(*any)).map(|(name, _)| name).collect()
}

/// Checks the privileges before anything is set up.
pub(super) fn check() -> Result<()> {
    let missing = missing();
    if !missing.is_empty() {
        bail!("{}", what_to_do(&missing));
    }
    Ok(())
}

/// Adds the likely cause to the kernel's "operation not permitted".
pub(super) fn explain(error: Error) -> Error {
    explain_to(&missing(), error)
}

/// With all capabilities held, EACCES comes from the verifier and needs another explanation.
fn explain_to(missing: &[&str], error: Error) -> Error {
    let is_refusal = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) if missing.is_empty() => error.raw_os_error() == Some(Errno::PERM.raw_os_error()),
        Some(error) => error.kind() == io::ErrorKind::PermissionDenied,
        None => false,
    };
    if error.chain().any(is_refusal) { error.context(what_to_do(missing)) } else { error }
}

fn what_to_do(missing: &[&str]) -> String {
    if missing.is_empty() {
        // Capabilities of a user namespace don't count here: BPF needs those of the initial user namespace.
        return format!("{NEEDED}; in a container: those of the initial user namespace ({INSTEAD})");
    }
    format!("{NEEDED} (missing: {}): type sudo before it; {INSTEAD}", missing.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_are_explained() {
        let said = |missing: &[&str], errno: Errno| {
            let error = Error::new(io::Error::from(errno)).context("mkdir");
            format!("{:#}", explain_to(missing, error))
        };
        for errno in [Errno::PERM, Errno::ACCESS] {
            assert!(said(&["CAP_BPF"], errno).starts_with(NEEDED));
            assert!(said(&["CAP_BPF"], errno).contains("truepeer run"));
        }
        assert!(said(&[], Errno::PERM).contains("in a container"));
        assert!(said(&[], Errno::ACCESS).starts_with("mkdir"));
        assert!(said(&["CAP_BPF"], Errno::NOENT).starts_with("mkdir"));
    }
}
