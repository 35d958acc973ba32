//! Options shared by several commands.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use truepeer_policy::{OnConflict, PrefixSet};
use truepeer_stream::tls::{MinVersion, Suite};

use super::confine::ConfineSpec;
use super::values::{self, ClientCert, Deny, HeaderOption, LogFormat, PrefixesOrFile, Verbosity};
use super::{AdminAddr, RequiredTlv, SecretTlv, SenderName};
use truepeer_routes::options::RoutesMode;

/// Which senders are admitted, and which clients they may name.
#[derive(Debug, Clone, Default, Args)]
pub struct SendersSpec {
    #[arg(long)]
    pub(crate) sender: Option<SenderName>,
    #[arg(long)]
    pub allow: Vec<PrefixesOrFile>,
    #[arg(long)]
    pub(crate) header: Vec<HeaderOption>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) header_timeout: Option<Duration>,
    #[arg(long)]
    pub(crate) require_tlv: Vec<RequiredTlv>,
    #[arg(long, value_parser = values::header_max)]
    pub(crate) header_max: Option<usize>,
    #[arg(long)]
    pub allow_claims: Vec<PrefixSet>,
    #[arg(long)]
    pub(crate) deny_clients: Vec<Deny>,
}

/// For commands that support optional headers.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct WaitSpec {
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) header_wait: Option<Duration>,
}

/// How to connect to backends.
#[derive(Debug, Clone, Default, Args)]
pub struct UpstreamSpec {
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) connect_timeout: Option<Duration>,
    #[arg(short, long, value_parser = values::mark)]
    pub mark: Option<u32>,
    #[arg(long)]
    pub on_conflict: Option<OnConflict>,
}

/// TLVs of the headers to backends.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SendTlvSpec {
    #[arg(long)]
    pub(crate) send_tlv: Vec<SecretTlv>,
}

/// TLS with clients.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsSpec {
    #[arg(long, alias = "cert")]
    pub(crate) tls_cert: Vec<PathBuf>,
    #[arg(long, alias = "key")]
    pub(crate) tls_key: Vec<PathBuf>,
    #[arg(long)]
    pub(crate) tls_min: Option<MinVersion>,
    #[arg(long)]
    pub(crate) tls_suite: Vec<Suite>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) tls_timeout: Option<Duration>,
    #[arg(long)]
    pub(crate) client_ca: Option<PathBuf>,
    #[arg(long, value_parser = values::client_cert)]
    pub(crate) client_cert: Option<ClientCert>,
    #[arg(long, value_parser = values::count_or_none::<usize>)]
    pub(crate) max_per_client: Option<usize>,
}

/// TLS with backends.
#[derive(Debug, Clone, Default, Args)]
pub struct OriginSpec {
    #[arg(long)]
    pub(crate) origin_ca: Option<PathBuf>,
    #[arg(long)]
    pub(crate) origin_insecure: bool,
    #[arg(long)]
    pub(crate) origin_name: Option<String>,
    #[arg(long)]
    pub(crate) origin_cert: Option<PathBuf>,
    #[arg(long)]
    pub(crate) origin_key: Option<PathBuf>,
}

/// Options of the whole process.
#[derive(Debug, Clone, Default, Args)]
pub struct ProcessSpec {
    #[arg(long, value_parser = values::count::<NonZeroUsize>)]
    pub workers: Option<NonZeroUsize>,
    #[arg(long, value_parser = super::text::parse_duration)]
    pub drain_timeout: Option<Duration>,
    #[arg(long)]
    pub reload_on_change: bool,
    #[command(flatten)]
    pub confine: ConfineSpec,
}

/// How many UDP flows the whole process has.
#[derive(Debug, Clone, Default, Args)]
pub struct FlowsSpec {
    #[arg(long, value_parser = values::count::<NonZeroUsize>)]
    pub max_flows: Option<NonZeroUsize>,
}

/// The command line as a file.
#[derive(Debug, Clone, Default, Args)]
pub struct PrintSpec {
    #[arg(long)]
    pub print_config: bool,
}

/// Where to ask about the process.
#[derive(Debug, Clone, Default, Args)]
pub struct AdminSpec {
    #[arg(long)]
    pub(crate) admin: Vec<AdminAddr>,
}

/// How backends' replies come back.
#[derive(Debug, Clone, Default, Args)]
pub struct RoutesSpec {
    #[arg(long, value_parser = values::routes_mode)]
    pub routes: Option<RoutesMode>,
    #[arg(long, value_parser = values::table)]
    pub table: Option<u32>,
}

/// What is logged, and how.
#[derive(Debug, Clone, Default, Args)]
pub struct LogSpec {
    #[arg(short, num_args = 0..=1, default_missing_value = "1", value_parser = values::verbosity)]
    pub v: Option<Verbosity>,
    #[arg(long)]
    pub verbose: bool,
    #[arg(short, long)]
    pub quiet: bool,
    #[arg(long, value_parser = values::log_format)]
    pub(crate) log_format: Option<LogFormat>,
}
