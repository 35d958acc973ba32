//! Where a value was given.

use std::fmt;

/// The place of a problem: the option that was typed. (A file's key, with its line, will be another variant.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemPlace {
    /// A long option, without its dashes.
    Option(&'static str),
}

impl fmt::Display for ProblemPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option("ipv4") => f.write_str("-4"),
            Self::Option("ipv6") => f.write_str("-6"),
            Self::Option(name) => write!(f, "--{name}"),
        }
    }
}
