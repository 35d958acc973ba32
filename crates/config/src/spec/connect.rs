//! `truepeer connect` as it is written.

use std::net::SocketAddr;

use clap::Args;
use truepeer_policy::Destinations;
use truepeer_proto::Version;

use super::run::HowArgs;
use super::tlv::SecretTlv;

/// Start a program whose connections start with a PROXY header
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    #[arg(long, value_parser = client)]
    pub(crate) from: Option<SocketAddr>,
    /// Was called `--header`, which is the rule for received headers everywhere else.
    #[arg(long, alias = "header", value_parser = version)]
    pub(crate) send_proxy: Option<Version>,
    #[arg(long)]
    pub(crate) send_tlv: Vec<SecretTlv>,
    #[arg(long)]
    pub(crate) to: Vec<Destinations>,
    #[command(flatten)]
    pub how: HowArgs,
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
