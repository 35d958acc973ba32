//! `truepeer doctor` as it is written.

use std::time::Duration;

use clap::Args;

use super::address::AdminAddr;
use super::port::{AttachPorts, Port};
use super::routing::RoutingArgs;
use super::serve::FileSpec;
use super::text::parse_duration;

/// Say why a server does not see its clients, and print the one command that fixes it
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DoctorArgs {
    #[arg(value_parser = one_port)]
    pub port: Option<Port>,
    #[command(flatten)]
    pub file: FileSpec,
    #[command(flatten)]
    pub routing: RoutingArgs,
    #[arg(long = "try")]
    pub with_routes: bool,
    #[arg(long, value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    #[arg(long)]
    pub admin: Option<AdminAddr>,
    #[arg(long)]
    pub json: bool,
}

/// `443`, `443/tcp`, `53/udp` or `https`.
fn one_port(text: &str) -> Result<Port, String> {
    match text.parse::<AttachPorts>()?.0[..] {
        [port] => Ok(port),
        _ => Err("expected one port, such as 443, https or 53/udp".to_owned()),
    }
}
