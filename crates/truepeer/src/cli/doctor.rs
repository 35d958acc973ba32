//! The options of `truepeer doctor`.

use std::time::Duration;

use clap::Args;

use super::routing::RoutingArgs;
use crate::plan::parse_duration;

/// Try what truepeer needs on this machine, and print the one command that mends what fails.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    /// Make the missing routes for the time of the test, as `truepeer proxy` would
    #[arg(long = "try")]
    pub(crate) with_routes: bool,
    /// How long to wait for a backend
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// Print for machines
    #[arg(long)]
    pub(crate) json: bool,
}
