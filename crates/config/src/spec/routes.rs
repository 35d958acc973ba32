//! `truepeer routes` as it is written.

use clap::{Args, ValueEnum};

use super::routing::RoutingArgs;

/// Show, add or remove the rules and routes that bring backends' replies back
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct RoutesArgs {
    #[arg(value_enum)]
    pub action: RoutesAction,
    #[command(flatten)]
    pub routing: RoutingArgs,
    #[arg(long)]
    pub print: bool,
    #[arg(long)]
    pub force: bool,
}

/// The action of `truepeer routes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoutesAction {
    /// List existing rules and routes, truepeer's and others'
    Show,
    /// Add what is missing
    Apply,
    /// Remove truepeer's
    Remove,
}
