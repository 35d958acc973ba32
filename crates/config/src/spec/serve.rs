//! `truepeer serve` and `check` as they are written, and the tables of the file that no other command has.
//!
//! The tables `[[proxy]]`, `[[https]]` and `[[attach]]` are the commands of these names: [`ProxySpec`],
//! [`HttpsSpec`] and [`AttachSpec`], without the groups that are tables of their own here.
//!
//! [`ProxySpec`]: super::ProxySpec
//! [`HttpsSpec`]: super::HttpsSpec
//! [`AttachSpec`]: super::AttachSpec

use std::path::{Path, PathBuf};

use clap::Args;

use super::address::AdminAddr;
use super::defaults;
use super::groups::{FlowsSpec, ProcessSpec};
use super::values::{self, LogFormat, Verbosity};

/// Identifies the configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct FileSpec {
    #[arg(short, long)]
    pub(crate) config: Option<PathBuf>,
}

impl FileSpec {
    /// Whether it was named.
    pub fn is_named(&self) -> bool {
        self.config.is_some()
    }

    /// The file, by default the system's.
    pub fn path(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(defaults::CONFIG))
    }
}

/// Do everything that a configuration file says, in one process: listeners, HTTPS sites, attachments
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub file: FileSpec,
    #[arg(long)]
    pub take_over: bool,
}

/// Make a running truepeer read its configuration and all files again
#[derive(Debug, Clone, Args)]
pub struct ReloadArgs {
    #[command(flatten)]
    pub file: FileSpec,
    #[arg(long)]
    pub admin: Option<PathBuf>,
}

/// Start this version of truepeer in the place of a running one, without a pause
#[derive(Debug, Clone, Args)]
pub struct UpgradeArgs {
    #[command(flatten)]
    pub file: FileSpec,
    #[arg(long)]
    pub if_replaced: bool,
}

/// Say everything that is wrong in a configuration file, without doing any of it
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub file: FileSpec,
    #[arg(long)]
    pub show: bool,
    #[arg(long)]
    pub as_service: bool,
}

/// The keys before the first table: settings of the whole process.
#[derive(Debug, Clone, Default, Args)]
pub struct ProcessTable {
    #[command(flatten)]
    pub process: ProcessSpec,
    #[command(flatten)]
    pub flows: FlowsSpec,
}

/// `[admin]`.
#[derive(Debug, Clone, Default, Args)]
pub struct AdminTable {
    #[arg(long)]
    pub listen: Vec<AdminAddr>,
}

/// `[log]`.
#[derive(Debug, Clone, Default, Args)]
pub struct LogTable {
    #[arg(long, value_parser = values::log_level)]
    pub level: Option<Verbosity>,
    #[arg(long, value_parser = values::log_format)]
    pub format: Option<LogFormat>,
}
