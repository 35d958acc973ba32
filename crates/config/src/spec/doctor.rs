//! `truepeer doctor` as it is written.

use std::time::Duration;

use clap::Args;

use super::address::AdminAddr;
use super::routing::RoutingArgs;
use super::text::parse_duration;

/// Check what truepeer needs on this machine, and print the one command that fixes what fails
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct DoctorArgs {
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
