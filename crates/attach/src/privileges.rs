//! The privileges that `attach` needs, and the message to print when they are missing.

use std::io;

use anyhow::{Error, Result, bail};
use rustix::io::Errno;

use truepeer_privilege::confine::Capability;
use truepeer_privilege::confine::needs::{ATTACH_BPF, ATTACH_NET, ATTACH_PERFMON, Need};

const NEEDED: &str = "attach needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN";
const INSTEAD: &str = "truepeer run needs none of them";

/// Returns the missing capabilities.
pub fn missing() -> Vec<Capability> {
    let needs = [ATTACH_BPF, ATTACH_PERFMON, ATTACH_NET];
    needs.iter().filter(|need| !need.is_held()).map(Need::first).collect()
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
fn explain_to(missing: &[Capability], error: Error) -> Error {
    let is_refusal = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) if missing.is_empty() => error.raw_os_error() == Some(Errno::PERM.raw_os_error()),
        Some(error) => error.kind() == io::ErrorKind::PermissionDenied,
        None => false,
    };
    if error.chain().any(is_refusal) { error.context(what_to_do(missing)) } else { error }
}

fn what_to_do(missing: &[Capability]) -> String {
    if missing.is_empty() {
        // Capabilities of a user namespace don't count here: BPF needs those of the initial user namespace.
        return format!("{NEEDED}; in a container: those of the initial user namespace ({INSTEAD})");
    }
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    format!("{NEEDED} (missing: {}): type sudo before it; {INSTEAD}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_are_explained() {
        let said = |missing: &[Capability], errno: Errno| {
            let error = Error::new(io::Error::from(errno)).context("mkdir");
            format!("{:#}", explain_to(missing, error))
        };
        for errno in [Errno::PERM, Errno::ACCESS] {
            assert!(said(&[Capability::Bpf], errno).starts_with(NEEDED));
            assert!(said(&[Capability::Bpf], errno).contains("truepeer run"));
        }
        assert!(said(&[], Errno::PERM).contains("in a container"));
        assert!(said(&[], Errno::ACCESS).starts_with("mkdir"));
        assert!(said(&[Capability::Bpf], Errno::NOENT).starts_with("mkdir"));
    }
}
