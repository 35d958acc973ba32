//! `truepeer proxy` as it is written.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use truepeer_policy::{Destinations, Dialect, Nat64Prefix};

use super::address::{HostPort, ListenAddr};
use super::groups::{
    AdminSpec, FlowsSpec, LogSpec, OriginSpec, PrintSpec, ProcessSpec, RoutesSpec, SendTlvSpec, SendersSpec,
    TlsSpec, UpstreamSpec, WaitSpec,
};
use super::sender;
use super::splice::{self, SpliceAfter, SpliceLinger, SpliceMode};
use super::values::{self, Carried, MaybeDuration, SendProxy};

/// Accept connections that start with a PROXY header, and connect to the backend from the client's own
/// address
#[derive(Debug, Clone, Default, Args)]
pub struct ProxySpec {
    #[arg(short, long, alias = "listen-addr")]
    pub listen: Vec<ListenAddr>,
    #[arg(short, long, value_parser = values::carried)]
    pub(crate) protocol: Option<Carried>,
    #[arg(long, value_parser = values::count::<NonZeroU16>)]
    pub(crate) listeners: Option<NonZeroU16>,
    #[arg(long)]
    pub(crate) listen_transparent: bool,
    #[command(flatten)]
    pub process: ProcessSpec,

    #[arg(short = '4', long, value_parser = values::backend)]
    pub ipv4: Option<HostPort>,
    #[arg(short = '6', long, value_parser = values::backend)]
    pub ipv6: Option<HostPort>,
    #[arg(long)]
    pub dynamic_destination: bool,
    #[arg(long)]
    pub dynamic_allow: Vec<Destinations>,
    #[command(flatten)]
    pub upstream: UpstreamSpec,

    #[command(flatten)]
    pub senders: SendersSpec,
    #[command(flatten)]
    pub(crate) wait: WaitSpec,
    #[arg(short = 'a', long)]
    pub allowed_subnets: Vec<PathBuf>,

    #[arg(long)]
    pub(crate) nat64_prefix: Option<Nat64Prefix>,
    #[arg(long)]
    pub(crate) pseudo_ipv4: bool,
    #[arg(long, value_parser = values::send_proxy)]
    pub(crate) send_proxy: Option<SendProxy>,
    #[command(flatten)]
    pub(crate) sent: SendTlvSpec,
    #[arg(long)]
    pub(crate) idle_timeout: Option<MaybeDuration>,
    #[arg(long, value_parser = splice::mode)]
    pub(crate) splice: Option<SpliceMode>,
    #[arg(long)]
    pub(crate) splice_after: Option<SpliceAfter>,
    #[arg(long, value_parser = splice::linger)]
    pub(crate) splice_linger: Option<SpliceLinger>,

    #[command(flatten)]
    pub(crate) tls: TlsSpec,
    #[arg(long)]
    pub(crate) tls_alpn: Vec<String>,
    #[arg(long)]
    pub(crate) origin_tls: bool,
    #[command(flatten)]
    pub(crate) origin: OriginSpec,
    #[arg(long)]
    pub(crate) origin_alpn: Vec<String>,

    #[arg(long, value_parser = sender::dialect)]
    pub(crate) udp_dialect: Option<Dialect>,
    #[arg(short = 'c', long, value_parser = values::positive_duration)]
    pub(crate) close_after: Option<Duration>,
    #[command(flatten)]
    pub flows: FlowsSpec,

    #[command(flatten)]
    pub routes: RoutesSpec,
    #[command(flatten)]
    pub(crate) admin: AdminSpec,
    #[command(flatten)]
    pub log: LogSpec,
    #[command(flatten)]
    pub print: PrintSpec,
}
