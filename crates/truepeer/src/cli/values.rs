//! Option values: each parser says what was expected.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use truepeer_policy::{HeaderRule, PrefixSet};

use crate::plan::{RoutesMode, SendProxy, SenderRule, Verbosity, parse_duration};

/// `--allow`: who, or the file that says who.
#[derive(Debug, Clone)]
pub(super) enum Allow {
    Prefixes(Box<PrefixSet>),
    File(PathBuf),
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(['/', '.']) {
            return Ok(Self::File(text.into()));
        }
        text.parse().map(|prefixes| Self::Prefixes(Box::new(prefixes))).map_err(|_| {
            "expected loopback, private, any, an address, a prefix such as 10.0.0.0/8, or the path of a file (beginning with / or .)"
                .to_owned()
        })
    }
}

/// `--header`: a rule for all senders, or for some.
#[derive(Debug, Clone)]
pub(super) enum Header {
    All(HeaderRule),
    Some(Box<SenderRule>),
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.contains('=') {
            true => text.parse().ok().map(|rule| Self::Some(Box::new(rule))),
            false => text.parse().ok().map(Self::All),
        };
        parsed.ok_or_else(|| {
            "expected require, optional or forbid, or PREFIX=RULE for some senders, such as 10.0.0.0/8=optional".to_owned()
        })
    }
}

/// A duration that may be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaybeDuration(pub(super) Option<Duration>);

impl FromStr for MaybeDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let duration = parse_duration(text).map_err(|error| format!("{error}, or none"))?;
        Ok(Self(Some(duration).filter(|duration| !duration.is_zero())))
    }
}

/// A duration that takes time.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("expected more than 0".to_owned()),
        duration => Ok(duration),
    }
}

/// The smallest header that every version fits in (PROXY 2.1), and the longest v2 one (PROXY 2.2).
const HEADER_MAX: std::ops::RangeInclusive<usize> = 107..=16 + 65535;

/// `--header-max`, in bytes.
pub(super) fn header_max(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix("KiB").or_else(|| text.strip_suffix('k')) {
        Some(digits) => (digits, 1024),
        None => (text.strip_suffix('B').unwrap_or(text), 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| HEADER_MAX.contains(bytes)).ok_or_else(|| {
        format!("expected {} to {} bytes, such as 4096 or 16KiB", HEADER_MAX.start(), HEADER_MAX.end())
    })
}

/// `--mark`: as `ip rule` takes it, decimal or hexadecimal.
pub(super) fn mark(text: &str) -> Result<u32, String> {
    number(text).ok_or_else(|| "expected a number from 0 to 4294967295, decimal or 0x…".to_owned())
}

/// `--table`. The kernel's own tables are refused: a table that leads everything to this machine cuts it off there.
pub(super) fn table(text: &str) -> Result<u32, String> {
    number(text).filter(|table| !matches!(table, 0 | 253..=255)).ok_or_else(|| {
        "expected the number of a routing table of its own, from 1, not 253 to 255 (default, main, local)"
            .to_owned()
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        Some(_) => None,
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    }
}

/// `--listeners`, `--workers`.
pub(super) fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "expected a number from 1".to_owned())
}

/// `-v`.
pub(super) fn verbosity(text: &str) -> Result<Verbosity, String> {
    match text {
        "0" => Ok(Verbosity::Lifecycle),
        "1" => Ok(Verbosity::Sessions),
        "2" | "v" => Ok(Verbosity::States),
        _ => Err(
            "expected 0 (start, stop, warnings), 1 (and a line for each session) or 2 (and changes of state)"
                .to_owned(),
        ),
    }
}

/// `--routes`.
pub(super) fn routes_mode(text: &str) -> Result<RoutesMode, String> {
    match text {
        "auto" => Ok(RoutesMode::Auto),
        "manual" => Ok(RoutesMode::Manual),
        _ => Err("expected auto (set them, remove them at the end) or manual (somebody else has set them)"
            .to_owned()),
    }
}

/// `--send-proxy`.
pub(super) fn send_proxy(text: &str) -> Result<SendProxy, String> {
    match text {
        "v1" | "1" => Ok(SendProxy::V1),
        "v2" | "2" => Ok(SendProxy::V2),
        "spp" => Ok(SendProxy::Spp),
        _ => Err("expected v1, v2 or spp".to_owned()),
    }
}
