//! The defaults of options.
//!
//! A default is a constant here (or in the engine that uses it), and the table of options prints
//! it, so that help and behaviour agree.

use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use ipnet::Ipv4Net;
use truepeer_proto::Version;

/// The default of `serve --config`.
pub const CONFIG: &str = "/etc/truepeer/truepeer.toml";
/// The admin socket of a file that names none.
pub(crate) const ADMIN_SOCKET: &str = "/run/truepeer/admin.sock";
/// The default of `crowdsec --url`: where CrowdSec's local API listens after its installation.
pub const CROWDSEC_URL: &str = "http://127.0.0.1:8080";
/// The default of `proxy --listen`.
pub const LISTEN: (&str, u16) = ("0.0.0.0", 8443);
/// The default of `https --listen`: every address.
pub const LISTEN_HTTPS: (&str, u16) = ("", 443);
/// The defaults of `-4` and `-6`, if neither is given.
pub(crate) const IPV4: (&str, u16) = ("127.0.0.1", 443);
pub(crate) const IPV6: (&str, u16) = ("::1", 443);
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
pub const HEADER_MAX: usize = 16 * 1024;
/// Less than systemd's time-out (90 s), and longer than almost every request takes.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
pub const TLS_TIMEOUT: Duration = Duration::from_secs(10);
pub const TABLE: u32 = truepeer_routes::plan::DEFAULT_TABLE;
pub const TPROXY_MARK: u32 = truepeer_routes::plan::DEFAULT_TPROXY_MARK;
pub const ORIGIN_KEEPALIVE: usize = 1024;
pub const ORIGIN_IDLE: Duration = Duration::from_secs(60);
/// The pause between two checks of an origin.
pub(crate) const ORIGIN_HEALTH: Duration = Duration::from_secs(5);
pub const ORIGIN_RETRY_TIMEOUT: Duration = Duration::from_secs(1);
pub const ATTACH_MAX_FLOWS: NonZeroU32 = truepeer_bpf::MAX_FLOWS;
pub const ATTACH_MAX_UDP_FLOWS: NonZeroU32 = truepeer_bpf::MAX_UDP_FLOWS;
pub const PINS: &str = truepeer_bpf::DEFAULT_PINS;
/// `connect --send-proxy`.
pub(crate) const SEND_PROXY: Version = Version::V2;
/// The addresses of `vpp up --ethernet`: on the clients' side, and on the origin's side.
pub const ETHERNET_ADDRESSES: [Ipv4Net; 2] = [
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 2, 1), 24),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 1, 2), 24),
];
/// `doctor --timeout`.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// `probe --patience`.
pub const PROBE_PATIENCE: Duration = Duration::from_secs(1);

/// `top --interval`.
pub const TOP_INTERVAL: Duration = Duration::from_secs(1);

pub fn pins() -> &'static Path {
    Path::new(PINS)
}

/// Where the account and certificates of ACME are kept.
pub const ACME_STATE: &str = "/var/lib/truepeer/acme";
