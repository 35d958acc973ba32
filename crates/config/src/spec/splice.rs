//! Whether and when a session's packets are translated by the kernel alone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::text::{format_duration, parse_duration};
use super::values::size;

/// `--splice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpliceMode {
    /// Where kernel and capabilities permit; other sessions are relayed.
    #[default]
    Auto,
    /// Every session is relayed.
    Off,
}

pub(super) fn mode(text: &str) -> Result<SpliceMode, String> {
    match text {
        "auto" => Ok(SpliceMode::Auto),
        "off" => Ok(SpliceMode::Off),
        _ => Err("expected auto (where kernel and capabilities permit) or off".to_owned()),
    }
}

/// `--splice-linger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpliceLinger {
    /// A stop waits for sessions that have left user space as for all others, then ends them.
    #[default]
    Drain,
    /// They go on after a stop.
    Leave,
}

pub(super) fn linger(text: &str) -> Result<SpliceLinger, String> {
    match text {
        "drain" => Ok(SpliceLinger::Drain),
        "leave" => Ok(SpliceLinger::Leave),
        _ => Err("expected drain (a stop waits for them, then ends them) or leave (they go on)".to_owned()),
    }
}

/// `--splice-after`: whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpliceAfter {
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
}

impl Default for SpliceAfter {
    fn default() -> Self {
        Self { bytes: 64 << 10, age: Duration::from_millis(250) }
    }
}

impl FromStr for SpliceAfter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected a size and a time, such as 64KiB,250ms, or 0 for every session".to_owned();
        if text == "0" {
            return Ok(Self { bytes: 0, age: Duration::ZERO });
        }
        let (bytes, age) = text.split_once(',').ok_or_else(wrong)?;
        Ok(Self { bytes: size(bytes).map_err(|_| wrong())?, age: parse_duration(age).map_err(|_| wrong())? })
    }
}

impl fmt::Display for SpliceAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            bytes if bytes % 1024 == 0 => write!(f, "{}KiB,", bytes / 1024)?,
            bytes => write!(f, "{bytes},")?,
        }
        f.write_str(&format_duration(&self.age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_and_a_time_are_read_as_they_are_written() {
        assert_eq!("64KiB,250ms".parse(), Ok(SpliceAfter::default()));
        assert_eq!(SpliceAfter::default().to_string(), "64KiB,250ms");
        assert_eq!("0".parse(), Ok(SpliceAfter { bytes: 0, age: Duration::ZERO }));
        for wrong in ["", "64KiB", "250ms", "64KiB,", ",1s", "1,1,1"] {
            assert!(wrong.parse::<SpliceAfter>().is_err(), "{wrong}");
        }
    }
}
