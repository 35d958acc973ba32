//! `truepeer https` as it is written.

use std::time::Duration;

use clap::Args;
use truepeer_policy::PrefixSet;

use super::acme::AcmeSpec;
use super::address::ListenAddr;
use super::groups::{
    AdminSpec, LogSpec, OriginSpec, PrintSpec, ProcessSpec, RoutesSpec, SendTlvSpec, SendersSpec, TlsSpec,
    UpstreamSpec, WaitSpec,
};
use super::origin::{HealthOption, OriginRule};
use super::values::{self, ClientAddressConfig, OnHttp, OriginProtocolConfig, UnknownHost};
use super::vpp::StackArgs;

/// Terminate HTTPS (HTTP/2 and HTTP/1.1) and pass each request on to an origin that learns the
/// client's address
#[derive(Debug, Clone, Args)]
pub struct HttpsSpec {
    #[arg(short, long)]
    pub(crate) listen: Vec<ListenAddr>,
    #[arg(long)]
    pub(crate) listen_http: Vec<ListenAddr>,
    #[arg(long, value_parser = values::on_http)]
    pub(crate) on_http: Option<OnHttp>,
    #[arg(long, value_delimiter = ',', value_parser = super::acme::name)]
    pub(crate) acme: Vec<String>,
    #[command(flatten)]
    pub(crate) authority: AcmeSpec,
    #[arg(long, value_delimiter = ',', value_parser = super::origin::site_name)]
    pub(crate) host: Vec<String>,
    #[arg(long, value_parser = values::unknown_host)]
    pub(crate) unknown_host: Option<UnknownHost>,
    #[command(flatten)]
    pub process: ProcessSpec,

    #[command(flatten)]
    pub(crate) tls: TlsSpec,
    #[arg(long)]
    pub(crate) no_http2: bool,

    #[arg(long, required = true)]
    pub(crate) origin: Vec<OriginRule>,
    #[arg(long)]
    pub(crate) origin_health: Vec<HealthOption>,
    #[command(flatten)]
    pub(crate) origin_tls: OriginSpec,
    #[command(flatten)]
    pub(crate) upstream: UpstreamSpec,
    #[arg(long, value_parser = values::origin_protocol)]
    pub(crate) origin_protocol: Option<OriginProtocolConfig>,
    #[arg(long, value_parser = values::count_or_none::<usize>)]
    pub(crate) origin_keepalive: Option<usize>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) origin_idle: Option<Duration>,
    #[arg(long, alias = "origin-patience", value_parser = super::text::parse_duration)]
    pub(crate) origin_retry_timeout: Option<Duration>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) response_timeout: Option<Duration>,

    #[arg(long, value_parser = values::client_address)]
    pub(crate) client_address: Option<ClientAddressConfig>,
    #[command(flatten)]
    pub(crate) sent: SendTlvSpec,
    #[arg(long)]
    pub(crate) trusted: Vec<PrefixSet>,
    #[command(flatten)]
    pub(crate) senders: SendersSpec,
    #[command(flatten)]
    pub(crate) wait: WaitSpec,

    #[arg(long, value_delimiter = ',', value_parser = values::method)]
    pub(crate) methods: Vec<String>,
    #[arg(long, value_parser = values::size)]
    pub(crate) max_body: Option<u64>,
    #[arg(long, value_parser = values::head_size)]
    pub(crate) max_head: Option<usize>,
    #[arg(long, value_parser = values::field_count)]
    pub(crate) max_fields: Option<usize>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) head_timeout: Option<Duration>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) body_timeout: Option<Duration>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) send_timeout: Option<Duration>,
    #[arg(long, value_parser = values::size)]
    pub(crate) min_rate: Option<u64>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) keepalive_timeout: Option<Duration>,
    #[arg(long, value_parser = values::positive_duration)]
    pub(crate) tunnel_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) routes: RoutesSpec,
    #[command(flatten)]
    pub stack: StackArgs,
    #[arg(long)]
    pub(crate) access_log: bool,
    #[command(flatten)]
    pub(crate) admin: AdminSpec,
    #[command(flatten)]
    pub(crate) log: LogSpec,
    #[command(flatten)]
    pub(crate) print: PrintSpec,
}
