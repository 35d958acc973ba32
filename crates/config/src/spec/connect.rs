//! `truepeer connect` as it is written.

use std::net::SocketAddr;

use clap::Args;
use truepeer_handover::ConnectSettings;
use truepeer_policy::Destinations;
use truepeer_proto::Version;

use super::run::HowArgs;

/// Start a program whose connections start with a PROXY header
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    #[arg(long, value_parser = client)]
    from: Option<SocketAddr>,
    /// Was called `--header`, which is the rule for received headers everywhere else.
    #[arg(long, alias = "header", value_parser = version)]
    send_proxy: Option<Version>,
    #[arg(long)]
    to: Vec<Destinations>,
    #[command(flatten)]
    pub how: HowArgs,
}

impl ConnectArgs {
    /// Which header goes to which destinations.
    pub fn sending(&self) -> ConnectSettings {
        let mut to = Destinations::default();
        self.to.iter().for_each(|entry| to.extend(entry));
        ConnectSettings {
            from: self.from,
            version: self.send_proxy.unwrap_or(super::defaults::SEND_PROXY),
            to,
            verbose: self.how.verbose,
        }
    }
}

fn client(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected an address and a port, 203.0.113.7:5000 or [2001:db8::7]:5000")
}

fn version(text: &str) -> Result<Version, &'static str> {
    match text {
        "v1" | "1" => Ok(Version::V1),
        "v2" | "2" => Ok(Version::V2),
        _ => Err("expected v1 or v2"),
    }
}
