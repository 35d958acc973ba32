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
    #[arg(long, value_parser = patience)]
    pub patience: Option<Duration>,
    #[arg(long, conflicts_with = "target")]
    pub count: Option<NonZeroUsize>,
    #[arg(long, value_name = "ADDR", conflicts_with = "listen")]
    pub yes_i_may: Vec<IpAddr>,
    #[arg(long)]
    pub json: bool,
}

/// A receiver that answers nothing is waited for some hundred times.
const MOST_PATIENCE: Duration = Duration::from_secs(600);

fn patience(text: &str) -> Result<Duration, String> {
    let time = values::positive_duration(text)?;
    if time <= MOST_PATIENCE { Ok(time) } else { Err("expected at most 10m".to_owned()) }
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
    use std::time::Duration;

    use super::{patience, port_or_address};

    #[test]
    fn patience_has_an_end() {
        assert_eq!(patience("10m"), Ok(Duration::from_secs(600)));
        let refused = [format!("{}", u64::MAX), "601".to_owned()].map(|text| patience(&text));
        assert_eq!(refused.map(|refused| refused.unwrap_err()), ["expected at most 10m"; 2]);
        assert!(patience("0").is_err());
    }

    #[test]
    fn a_port_alone_is_every_address() {
        let said = |text: &str| port_or_address(text).map(|address| address.to_string());
        assert_eq!(said("7000").as_deref(), Ok("[::]:7000"));
        assert_eq!(said(":7000").as_deref(), Ok("[::]:7000"));
        assert_eq!(said("127.0.0.1:7000").as_deref(), Ok("127.0.0.1:7000"));
        assert!(said("localhost").is_err_and(|error| error.contains("such as 7000")));
    }
}
