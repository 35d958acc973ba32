//! Confinement as it is written.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};

/// What a process gives up after its start.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfineSpec {
    #[arg(long, value_parser = mode)]
    pub(crate) confine: Option<ConfineMode>,
    #[arg(long)]
    pub(crate) user: Option<UserName>,
}

/// `--confine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfineMode {
    /// Everything that is not needed any more, as far as the kernel has the means.
    #[default]
    Auto,
    /// Nothing.
    Off,
}

fn mode(text: &str) -> Result<ConfineMode, String> {
    match text {
        "auto" => Ok(ConfineMode::Auto),
        "off" => Ok(ConfineMode::Off),
        _ => Err("expected auto (give up what is not needed after the start) or off".to_owned()),
    }
}

/// `--user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserName {
    Name(String),
    /// Without a group: the user's own.
    Number {
        uid: u32,
        gid: Option<u32>,
    },
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Number { uid, gid: None } => uid.fmt(f),
            Self::Number { uid, gid: Some(gid) } => write!(f, "{uid}:{gid}"),
        }
    }
}

impl FromStr for UserName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "expected a user's name, or UID[:GID], such as truepeer or 990:990";
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
        let is_name =
            |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '/');
        match (number(user), group.map(number)) {
            (Some(uid), None) => Ok(Self::Number { uid, gid: None }),
            (Some(uid), Some(Some(gid))) => Ok(Self::Number { uid, gid: Some(gid) }),
            (None, None) if is_name(text) && !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
                Ok(Self::Name(text.to_owned()))
            }
            _ => Err(wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_or_numbers() {
        assert_eq!("truepeer".parse(), Ok(UserName::Name("truepeer".to_owned())));
        assert_eq!("990".parse(), Ok(UserName::Number { uid: 990, gid: None }));
        assert_eq!("990:991".parse(), Ok(UserName::Number { uid: 990, gid: Some(991) }));
        for wrong in ["", "990:", ":990", "name:990", "-1", "4294967295", "a b", "9x"] {
            assert!(wrong.parse::<UserName>().is_err(), "{wrong}");
        }
        for right in ["truepeer", "990", "990:991"] {
            assert_eq!(right.parse::<UserName>().unwrap().to_string(), right);
        }
    }
}
