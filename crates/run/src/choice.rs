//! Chooses the mechanism for a program.

use std::fmt;

use anyhow::{Result, bail};

use super::program::{Kind, Program};
use truepeer_config::spec::Via;

/// The mechanism between the program and the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mechanism {
    /// The library.
    Preload,
    /// The library, and a supervisor for programs of the family that lack it.
    Both,
    /// The supervisor.
    Notify,
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preload => "preload",
            Self::Both => "preload, with a supervisor for programs without the library",
            Self::Notify => "notify",
        })
    }
}

/// Chooses a mechanism. If none works, the error names the alternatives.
pub(super) fn choose(via: Via, program: &Program) -> Result<Mechanism> {
    let name = program.file.display();
    match (via, &program.kind) {
        (Via::Auto, Kind::Dynamic) => Ok(Mechanism::Both),
        (Via::Preload, Kind::Dynamic) => Ok(Mechanism::Preload),
        (_, Kind::SetUserId) => bail!(
            "{name} changes its user when it starts (set-user-ID or file capabilities), so neither a library \
            nor a supervisor can be used; run it as its owner, or use truepeer attach or truepeer proxy"
        ),
        (Via::Preload, kind) => {
            bail!("--via preload: {name} is {kind}: it loads no library; use --via notify")
        }
        (Via::Auto | Via::Notify, _) => Ok(Mechanism::Notify),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(kind: Kind) -> Program {
        Program { file: "/bin/x".into(), words: vec!["x".into()], kind }
    }

    #[test]
    fn auto_takes_preload_wherever_it_is_loaded() {
        let chosen = |via, kind| choose(via, &program(kind)).ok();
        assert_eq!(chosen(Via::Auto, Kind::Dynamic), Some(Mechanism::Both));
        assert_eq!(chosen(Via::Preload, Kind::Dynamic), Some(Mechanism::Preload));
        assert_eq!(chosen(Via::Notify, Kind::Dynamic), Some(Mechanism::Notify));
        for kind in [Kind::Static, Kind::Go, Kind::OtherLibc, Kind::OtherMachine] {
            assert_eq!(chosen(Via::Auto, kind), Some(Mechanism::Notify), "{kind}");
            assert_eq!(chosen(Via::Preload, kind), None, "{kind}");
        }
        for via in [Via::Auto, Via::Preload, Via::Notify] {
            let error = choose(via, &program(Kind::SetUserId)).unwrap_err().to_string();
            assert!(error.contains("truepeer attach"), "{error}");
        }
    }
}
