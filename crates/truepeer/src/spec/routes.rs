//! `truepeer routes` as it is written.

use clap::{Args, ValueEnum};

use super::routing::RoutingArgs;

/// Show, set or remove the rules and routes by which backends' replies find their way back
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct RoutesArgs {
    #[arg(value_enum)]
    pub(crate) action: RoutesAction,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    #[arg(long)]
    pub(crate) print: bool,
    #[arg(long)]
    pub(crate) force: bool,
}

/// What `truepeer routes` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoutesAction {
    /// List what is set, ours and others'
    Show,
    /// Set what is missing
    Apply,
    /// Remove what is ours
    Remove,
}
