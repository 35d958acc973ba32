//! The options that `routes` and `doctor` share: what truepeer will be asked to do, as far as routing goes.

use std::ops::RangeInclusive;

use clap::Args;
use truepeer_policy::Destinations;

use super::address::{HostPort, ListenAddr};
use super::values::{self, Protocol};

/// The options of `proxy` that decide which routes are needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct RoutingArgs {
    #[arg(short = '4', long)]
    pub(crate) ipv4: Vec<HostPort>,
    #[arg(short = '6', long)]
    pub(crate) ipv6: Vec<HostPort>,
    #[arg(short, long, value_parser = values::protocol)]
    pub(crate) protocol: Option<Protocol>,
    #[arg(short, long, value_parser = values::mark)]
    pub(crate) mark: Option<u32>,
    #[arg(long, value_parser = values::table)]
    pub table: Option<u32>,
    #[arg(long)]
    pub(crate) dynamic_allow: Vec<Destinations>,
    #[arg(long, num_args = 0..=1, default_missing_value = "0.0.0.0:8443")]
    pub(crate) listen_transparent: Vec<ListenAddr>,
    #[arg(long, value_parser = ports)]
    pub(crate) tproxy_ports: Option<RangeInclusive<u16>>,
    #[arg(long, value_parser = values::mark)]
    pub(crate) tproxy_mark: Option<u32>,
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok().zip(last.parse().ok()).map(|(first, last): (u16, u16)| first..=last);
    range
        .filter(|range| *range.start() > 0 && !range.is_empty())
        .ok_or_else(|| "expected a port or FIRST-LAST, such as 10000-20000".to_owned())
}
