//! The options of `truepeer routes`.

use clap::{Args, ValueEnum};

use super::routing::RoutingArgs;
use crate::routes::show::RemoveOptions;

pub(super) const AFTER_HELP: &str = "\
`truepeer proxy` does the same by itself where it may (--routes auto), and undoes it when its last instance ends.
What `apply` makes stays until `remove`.

Examples:
  What would be needed for a backend on this machine:
    truepeer routes apply -4 127.0.0.1:443 -6 [::1]:443 --print
  For a service that runs without CAP_NET_ADMIN, in its unit:
    ExecStartPre=+truepeer routes apply -4 127.0.0.1:443
    ExecStopPost=+truepeer routes remove";

/// Show, set or remove the rules and routes by which backends' replies find their way back.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct RoutesArgs {
    /// What to do
    #[arg(value_enum)]
    pub(crate) action: RoutesAction,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    /// Print the equivalent ip commands instead of doing it
    #[arg(long)]
    pub(crate) print: bool,
    /// remove: even while a running truepeer uses them
    #[arg(long)]
    pub(crate) force: bool,
}

impl RoutesArgs {
    /// What `remove` needs to know. Without `--table`, every table is meant.
    pub(crate) fn removal(&self) -> RemoveOptions {
        RemoveOptions { table: self.routing.table, force: self.force, print: self.print }
    }
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
