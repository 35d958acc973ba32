//! The options that `routes` and `doctor` share: what truepeer will be asked to do, as far as routing goes.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use clap::Args;
use truepeer_policy::Destinations;

use super::values;
use crate::plan::{BackendsConfig, ConfigError, Family, HostPort, ListenAddr};
use crate::routes::item::Transport;
use crate::routes::options::SetupOptions;
use crate::routes::plan::{DEFAULT_TABLE, DEFAULT_TPROXY_MARK};

/// The options of `proxy` that decide which routes are needed.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub(crate) struct RoutingArgs {
    /// Backend for IPv4 clients; repeatable [default, if -6 is not given either: 127.0.0.1:443]
    #[arg(short = '4', long, value_name = "HOST:PORT")]
    ipv4: Vec<HostPort>,
    /// Backend for IPv6 clients; repeatable [default, if -4 is not given either: [::1]:443]
    #[arg(short = '6', long, value_name = "HOST:PORT")]
    ipv6: Vec<HostPort>,
    /// What is carried to the backends
    #[arg(short, long, value_name = "tcp|udp", default_value = "tcp", value_parser = transport)]
    protocol: Transport,
    /// Firewall mark of connections to the backends; 0: none
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = values::mark)]
    mark: u32,
    /// Number of the routing table [default: 123]
    #[arg(long, value_name = "N", value_parser = values::table)]
    pub(crate) table: Option<u32>,
    /// Where a dynamic destination may lead; repeatable
    #[arg(long, value_name = "PREFIX[:PORTS]")]
    dynamic_allow: Vec<Destinations>,
    /// TPROXY redirects connections to this listening address; repeatable
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "0.0.0.0:8443")]
    listen_transparent: Vec<ListenAddr>,
    /// The ports that TPROXY redirects, for --print
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports)]
    tproxy_ports: Option<RangeInclusive<u16>>,
    /// The mark that the firewall sets on what it redirects
    #[arg(long, value_name = "N", default_value_t = DEFAULT_TPROXY_MARK, value_parser = values::mark)]
    tproxy_mark: u32,
}

impl RoutingArgs {
    /// Resolves names.
    pub(crate) fn options(&self) -> Result<SetupOptions, ConfigError> {
        let transport = self.protocol;
        let listen_transparent = self.listen_transparent.iter().map(ListenAddr::resolve);
        let dynamic = self.dynamic_allow.iter().flat_map(Destinations::iter);
        Ok(SetupOptions {
            backends: self.backends()?.into_iter().map(|backend| (backend, transport)).collect(),
            dynamic: dynamic.map(|(prefix, ports)| (prefix, ports, transport)).collect(),
            mark: self.mark,
            table: self.table.unwrap_or(DEFAULT_TABLE),
            listen_transparent: listen_transparent.collect::<Result<_, _>>()?,
            tproxy_ports: self.tproxy_ports.clone(),
            tproxy_mark: self.tproxy_mark,
        })
    }

    /// Whether a backend was named, or the default is meant.
    pub(crate) fn names_backends(&self) -> bool {
        !(self.ipv4.is_empty() && self.ipv6.is_empty())
    }

    fn backends(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let default = BackendsConfig::default();
        let (ipv4, ipv6) = match (self.ipv4.as_slice(), self.ipv6.as_slice()) {
            ([], []) => (std::slice::from_ref(&default.ipv4), std::slice::from_ref(&default.ipv6)),
            given => given,
        };
        let ipv4 = ipv4.iter().map(|backend| backend.backend("-4", Family::Ipv4));
        let ipv6 = ipv6.iter().map(|backend| backend.backend("-6", Family::Ipv6));
        ipv4.chain(ipv6).map(|backend| Ok(backend?.get())).collect()
    }
}

fn transport(text: &str) -> Result<Transport, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Transport::Tcp),
        "udp" => Ok(Transport::Udp),
        _ => Err("expected tcp or udp".to_owned()),
    }
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.parse().ok().zip(last.parse().ok()).map(|(first, last): (u16, u16)| first..=last);
    range
        .filter(|range| *range.start() > 0 && !range.is_empty())
        .ok_or_else(|| "expected a port or FIRST-LAST, such as 10000-20000".to_owned())
}
