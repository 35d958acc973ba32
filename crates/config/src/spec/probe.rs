//! `truepeer probe` as it is written.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::address::HostPort;
use super::values;

/// Judge a receiver or a sender of PROXY headers by the specification, whatever program it is
#[derive(Debug, Clone, Args)]
pub struct ProbeArgs {
    #[arg(required_unless_present = "listen", conflicts_with = "listen")]
    pub target: Option<HostPort>,
    #[arg(long, value_parser = port_or_address)]
    pub listen: Option<SocketAddr>,
    #[arg(long)]
    pub udp: bool,
    #[arg(long = "as", conflicts_with = "listen")]
    pub app: Option<String>,
    #[arg(long, conflicts_with = "listen")]
    pub from: Option<IpAddr>,
    #[arg(long, conflicts_with = "listen")]
    pub client_log: Option<PathBuf>,
    #[arg(long, conflicts_with = "listen")]
    pub stranger: bool,
    #[arg(long, value_parser = values::positive_duration)]
    pub patience: Option<Duration>,
    #[arg(long, conflicts_with = "target")]
    pub count: Option<NonZeroUsize>,
    #[arg(long, value_name = "ADDR", conflicts_with = "listen")]
    pub yes_i_may: Vec<IpAddr>,
    #[arg(long)]
    pub json: bool,
}

/// `7000`, `:7000` or `127.0.0.1:7000`.
fn port_or_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    let every = |port| SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let address = text.parse::<SocketAddr>().or_else(|_| port.parse::<u16>().map(every));
    address.map_err(|_| "expected PORT or ADDR:PORT, such as 7000, 127.0.0.1:7000 or [::1]:7000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::port_or_address;

    #[test]
    fn a_port_alone_is_every_address() {
        let said = |text: &str| port_or_address(text).map(|address| address.to_string());
        assert_eq!(said("7000").as_deref(), Ok("[::]:7000"));
        assert_eq!(said(":7000").as_deref(), Ok("[::]:7000"));
        assert_eq!(said("127.0.0.1:7000").as_deref(), Ok("127.0.0.1:7000"));
        assert!(said("localhost").is_err_and(|error| error.contains("such as 7000")));
    }
}
