//! `fd:NAME`: a listening socket that the service manager passes, by the name that its unit gives it
//! (`FileDescriptorName=`, LISTEN_FDNAMES of sd_listen_fds(3)).
//!
//! A plan knows listeners by their addresses, so a name leads to its socket's address. The names are read
//! once: after the start the sockets belong to the engines. A new process gets them from the old one
//! ([`HANDED_ON`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};

use truepeer_sys::inherit::passed_names;

use super::problem::{OptionName, Problem};

/// The variable with the names for the new process of `truepeer upgrade`, which always sets it: a line `NAME
/// ADDRESS` for each.
pub const HANDED_ON: &str = "TRUEPEER_PASSED";

/// Whether `truepeer upgrade` has started this process, in the background.
pub fn is_of_upgrade_command() -> bool {
    std::env::var_os(HANDED_ON).is_some()
}

/// The addresses of each name.
pub type PassedNames = BTreeMap<String, BTreeSet<SocketAddr>>;

static NAMES: OnceLock<PassedNames> = OnceLock::new();

/// Names that nobody has passed, in the order in which plans asked for them.
static UNKNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The names that this process was given. The first call must come before the sockets are taken.
pub fn names() -> &'static PassedNames {
    NAMES.get_or_init(|| {
        let handed_on = std::env::var(HANDED_ON).unwrap_or_default();
        let handed_on = handed_on.lines().filter_map(|line| {
            let (name, address) = line.rsplit_once(' ')?;
            Some((name.to_owned(), address.parse().ok()?))
        });
        let mut names = PassedNames::new();
        for (name, address) in handed_on.chain(passed_names()) {
            names.entry(name).or_default().insert(address);
        }
        names
    })
}

/// The value of [`HANDED_ON`].
pub fn handed_on(names: &PassedNames) -> String {
    let lines = names
        .iter()
        .flat_map(|(name, addresses)| addresses.iter().map(move |address| format!("{name} {address}\n")));
    lines.collect()
}

/// The address of a name's socket. Commands that only look at a configuration are passed nothing: then it is
/// a stand-in, by which [`refuse_unknown`] finds the name.
pub(super) fn address(name: &str) -> Result<SocketAddr, Problem> {
    let Some(addresses) = names().get(name) else { return Ok(stand_in(name)) };
    match addresses.first() {
        Some(address) if addresses.len() == 1 => Ok(*address),
        _ => {
            let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            Err(Problem::Value {
                place: OptionName("listen"),
                value: format!(" fd:{name}"),
                expected: format!(
                    "several sockets have this name ({}); give each a name of its own (FileDescriptorName= in its socket unit)",
                    all.join(", ")
                ),
            })
        }
    }
}

/// Before anything listens.
///
/// # Errors
/// The address stands for a name that nobody has passed.
pub fn refuse_unknown(address: SocketAddr) -> anyhow::Result<()> {
    let SocketAddr::V6(v6) = address else { return Ok(()) };
    let unknown = UNKNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = (0..).zip(unknown.iter()).find(|(number, _)| *v6.ip() == discarded(*number));
    let Some((_, name)) = name else { return Ok(()) };
    let passed: Vec<&str> = names().keys().map(String::as_str).collect();
    let passed = if passed.is_empty() { "none".to_owned() } else { passed.join(", ") };
    anyhow::bail!(
        "--listen fd:{name}: the service manager has passed no socket of this name (passed: {passed}); expected a name \
         that a socket unit has in FileDescriptorName=, or an address"
    )
}

fn stand_in(name: &str) -> SocketAddr {
    let mut unknown = UNKNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let number = unknown.iter().position(|known| known == name).unwrap_or_else(|| {
        unknown.push(name.to_owned());
        unknown.len() - 1
    });
    // A plan has few listeners, and port 0 may be listened on by several.
    SocketAddr::new(discarded(u16::try_from(number).unwrap_or(u16::MAX)).into(), 0)
}

/// An address of the discard prefix (RFC 6666), which no host has.
fn discarded(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nobody_passes_is_refused_when_it_would_listen() {
        let (first, second) = (address("web").unwrap(), address("dns").unwrap());
        assert_ne!(first, second);
        assert_eq!(first, address("web").unwrap());
        let error = refuse_unknown(second).unwrap_err().to_string();
        assert!(error.contains("fd:dns") && error.contains("passed: none"), "{error}");
        assert!(refuse_unknown("[::]:443".parse().unwrap()).is_ok());
        assert!(refuse_unknown("0.0.0.0:443".parse().unwrap()).is_ok());
    }

    #[test]
    fn names_are_handed_on_as_lines() {
        let addresses = BTreeSet::from(["0.0.0.0:80".parse().unwrap(), "[::]:80".parse().unwrap()]);
        let names = PassedNames::from([("a web".to_owned(), addresses)]);
        assert_eq!(handed_on(&names), "a web 0.0.0.0:80\na web [::]:80\n");
    }
}
