//! The options of `truepeer proxy`, and what they make of the configuration.

use std::num::{NonZeroU16, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use truepeer_policy::{Destinations, Dialect, HeaderRule, Nat64Prefix, OnConflict, PrefixSet};

use super::UsageError;
use super::tls::TlsArgs;
use super::values::{self, Allow, Header, MaybeDuration};
use crate::plan::{
    BackendsConfig, ClaimsConfig, Config, DynamicConfig, HeaderLimits, HostPort, ListenAddr, ListenerConfig,
    LogConfig, LogFormat, Protocol, RoutesConfig, RoutesMode, SendProxy, SenderRule, SendersConfig, Timeouts,
    UdpConfig, Verbosity,
};

pub(super) const AFTER_HELP: &str = "\
Units: TIME is seconds (5), or has a unit (500ms, 5s, 2m, 1h). SIZE is bytes (4096) or KiB (16KiB).
PREFIX is an address, a prefix (10.0.0.0/8, 2001:db8::/32), or the word loopback, private or any.

Examples:
  HAProxy on this machine, a web server on port 80:
    truepeer proxy -l 127.0.0.1:8080 -4 127.0.0.1:80 -6 [::1]:80
  A load balancer at 10.0.0.7 in front of SSH:
    truepeer proxy -l :2222 -4 127.0.0.1:22 -6 [::1]:22 --allow 10.0.0.7
  frp, which stands on this machine and may carry local clients:
    truepeer proxy -l 127.0.0.1:8080 -4 127.0.0.1:80 -6 [::1]:80 --allow-claims loopback
  The sending end of a chain: no header in, a header out:
    truepeer proxy -l :8080 -4 192.0.2.10:8443 -6 192.0.2.10:8443 --allow any \\
      --header forbid --send-proxy v2
  All ports of a range, redirected by TPROXY, each to its own backend port:
    truepeer proxy -l 0.0.0.0:25577 --listen-transparent --dynamic-destination \\
      --dynamic-allow loopback:10000-20000

  TLS for clients that come by themselves, plain bytes and the client's address for the backend:
    truepeer proxy -l :443 --tls-cert site.pem --tls-key site.key -4 127.0.0.1:80 -6 [::1]:80 --allow any

  DNS behind dnsdist (useProxyProtocol=true):
    truepeer proxy -p udp -l :5300 -4 127.0.0.1:53 -6 [::1]:53 --allow 10.0.0.7

SIGHUP, where TLS is spoken, reads certificates, keys and authorities again: new handshakes use them, connections that are open
stay, and what can't be read stays as it was. Options and other files are read at the start only. Without TLS it ends truepeer.

Single-dash long options (-allowed-subnets FILE, -listeners=4) are understood, too.";

/// Take connections that begin with a PROXY header, and connect to the backend from the client's own address.
#[derive(Debug, Args)]
pub(super) struct ProxyArgs {
    /// Address to listen on; repeatable. `:PORT` is every address of this machine [default: 0.0.0.0:8443]
    #[arg(short = 'l', long = "listen", visible_alias = "listen-addr", value_name = "ADDR:PORT", help_heading = LISTENING)]
    listen: Vec<ListenAddr>,
    /// What is carried [default: tcp]
    #[arg(short, long, value_name = "tcp|udp", value_parser = protocol, help_heading = LISTENING)]
    protocol: Option<Protocol>,
    /// Sockets to open on each address, among which the kernel spreads connections (SO_REUSEPORT) [default: 1]
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroU16>, help_heading = LISTENING)]
    listeners: Option<NonZeroU16>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroUsize>, help_heading = LISTENING)]
    workers: Option<NonZeroUsize>,
    /// Take connections to any address, as TPROXY redirects them (IP_TRANSPARENT on the listening sockets)
    #[arg(long, help_heading = LISTENING)]
    listen_transparent: bool,

    /// Backend for IPv4 clients; a name is resolved [default: 127.0.0.1:443]
    #[arg(short = '4', long, value_name = "HOST:PORT", help_heading = BACKENDS)]
    ipv4: Option<HostPort>,
    /// Backend for IPv6 clients; a name is resolved [default: [::1]:443]
    #[arg(short = '6', long, value_name = "HOST:PORT", help_heading = BACKENDS)]
    ipv6: Option<HostPort>,
    /// Connect to the destination that the header names; -4 and -6 serve headers that name none (LOCAL, UNKNOWN)
    #[arg(long, help_heading = BACKENDS)]
    dynamic_destination: bool,
    /// Where a header may lead, such as 10.0.0.0/8:80,8000-8100 or [2001:db8::/32]:443; repeatable; without ports: all.
    /// Needed with --dynamic-destination. Our own listeners are never a destination
    #[arg(long, value_name = "PREFIX[:PORTS]", help_heading = BACKENDS)]
    dynamic_allow: Vec<Destinations>,
    /// How long a backend may take to accept a connection [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = BACKENDS)]
    connect_timeout: Option<Duration>,

    /// Who may connect: loopback, private, any, a prefix, or a file (beginning with / or .); repeatable [default: loopback]
    #[arg(long, value_name = "PREFIX|FILE", help_heading = SENDERS)]
    allow: Vec<Allow>,
    /// File of those who may connect, a prefix a line, # for comments; repeatable
    #[arg(short = 'a', long, value_name = "FILE", help_heading = SENDERS)]
    allowed_subnets: Vec<PathBuf>,
    /// Whether connections begin with a PROXY header: require, forbid, or optional (whoever may connect may then claim to
    /// be anybody); PREFIX=RULE for some senders, repeatable [default: require; with --tls-cert: forbid]
    #[arg(long, value_name = "[PREFIX=]RULE", help_heading = SENDERS)]
    header: Vec<Header>,
    /// How long a sender may take for its header [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = SENDERS)]
    header_timeout: Option<Duration>,
    /// How long a sender with --header optional may be silent before it is served as itself [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = SENDERS)]
    header_wait: Option<Duration>,
    /// The longest header taken [default: 16KiB]
    #[arg(long, value_name = "SIZE", value_parser = values::header_max, help_heading = SENDERS)]
    header_max: Option<usize>,

    /// This host's own, loopback, unspecified, multicast, broadcast and reserved addresses that a header may claim all the
    /// same; repeatable [default: none]
    #[arg(long, value_name = "PREFIX", help_heading = CLIENTS)]
    allow_claims: Vec<PrefixSet>,
    /// File of clients to refuse, a prefix a line, # for comments; repeatable
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    deny_clients: Vec<PathBuf>,

    /// Firewall mark of connections to backends; 0: none [default: 0]
    #[arg(short, long, value_name = "N", value_parser = values::mark, help_heading = DELIVERY)]
    mark: Option<u32>,
    /// When the client's address and port are in use: ephemeral (keep the address, take another port) or refuse
    /// [default: ephemeral]
    #[arg(long, value_name = "ephemeral|refuse", help_heading = DELIVERY)]
    pub(super) on_conflict: Option<OnConflict>,
    /// Show IPv4 clients to an IPv6 backend under this prefix, such as 64:ff9b::/96 [default: refuse them]
    #[arg(long, value_name = "PREFIX", help_heading = DELIVERY)]
    nat64_prefix: Option<Nat64Prefix>,
    /// Show IPv6 clients to an IPv4 backend as 240.0.0.0/4 addresses, one for each /64 network [default: refuse them]
    #[arg(long, help_heading = DELIVERY)]
    pseudo_ipv4: bool,
    /// Write a PROXY header to the backend instead of using the client's address (needs no privilege); spp, Simple Proxy
    /// Protocol, is for UDP
    #[arg(long, value_name = "v1|v2|spp", value_parser = values::send_proxy, help_heading = DELIVERY)]
    send_proxy: Option<SendProxy>,
    /// End sessions that are silent in both directions for so long [default: none]
    #[arg(long, value_name = "TIME|none", help_heading = DELIVERY)]
    idle_timeout: Option<MaybeDuration>,

    #[command(flatten)]
    tls: TlsArgs,

    /// Where the header is: every (v2 in each datagram: dnsdist, udppp), first (v2 in a flow's first: frp, NGINX), standalone
    /// (v2 before bare datagrams: Cloudflare Spectrum) or spp (38 bytes in each, and in the replies: Spectrum Simple,
    /// EdgeOne) [default: every]
    #[arg(long, value_name = "DIALECT", help_heading = UDP)]
    udp_dialect: Option<Dialect>,
    /// Forget flows that are silent for so long: with every and spp in both directions, else towards the backend; then it
    /// must be less than the sender's own time-out [default: 60 with every and spp, 28 with first and standalone]
    #[arg(short = 'c', long, value_name = "TIME", value_parser = values::positive_duration, help_heading = UDP)]
    close_after: Option<Duration>,
    /// The most flows at a time; beyond it the longest silent one is forgotten [default: from the limit of open files]
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroUsize>, help_heading = UDP)]
    max_flows: Option<NonZeroUsize>,

    /// Rules and routes for the backends' replies: auto (set, and remove at the end) or manual [default: auto if permitted]
    #[arg(long, value_name = "auto|manual", value_parser = values::routes_mode, help_heading = ROUTING)]
    routes: Option<RoutesMode>,
    /// Number of the routing table for them [default: 123]
    #[arg(long, value_name = "N", value_parser = values::table, help_heading = ROUTING)]
    table: Option<u32>,

    /// 0: start, stop and warnings; 1: and a line for each session; 2: and changes of state [default: 0; -v alone: 1]
    #[arg(short, value_name = "0|1|2", num_args = 0..=1, default_missing_value = "1", value_parser = values::verbosity,
        help_heading = LOGGING)]
    pub(super) v: Option<Verbosity>,
    /// A line for each session (-v 1)
    #[arg(long, help_heading = LOGGING)]
    pub(super) verbose: bool,
    /// Warnings and errors only
    #[arg(short, long, help_heading = LOGGING)]
    pub(super) quiet: bool,
    /// Lines for people or for machines [default: text on a terminal, json otherwise]
    #[arg(long, value_name = "text|json", value_parser = log_format, help_heading = LOGGING)]
    log_format: Option<LogFormat>,
}

const LISTENING: &str = "Listening";
const BACKENDS: &str = "Backends";
const SENDERS: &str = "Senders: who may connect, and with a header or without";
const CLIENTS: &str = "Clients: who may be claimed";
const DELIVERY: &str = "Delivery";
const UDP: &str = "UDP";
const ROUTING: &str = "Routing";
const LOGGING: &str = "Logging";

/// What an option that is not given means; other programs differ.
pub(super) struct Defaults {
    pub(super) listen: ListenAddr,
    pub(super) backends: BackendsConfig,
    pub(super) allow: PrefixSet,
    pub(super) claims: PrefixSet,
    /// Whether a header may claim this host's own addresses.
    pub(super) claims_host: bool,
    /// What `--dynamic-destination` allows without `--dynamic-allow`; `None`: it must be said.
    pub(super) dynamic_allow: Option<Destinations>,
    pub(super) mark: u32,
    pub(super) routes: RoutesConfig,
    pub(super) on_conflict: OnConflict,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            listen: ListenAddr::new("0.0.0.0", 8443),
            backends: BackendsConfig::default(),
            allow: PrefixSet::loopback(),
            claims: PrefixSet::new(),
            claims_host: false,
            dynamic_allow: None,
            mark: 0,
            routes: RoutesConfig::default(),
            on_conflict: OnConflict::default(),
        }
    }
}

impl ProxyArgs {
    /// The configuration; contradictions and addresses that can't be resolved are errors, files are not read yet.
    pub(super) fn into_config(self, defaults: &Defaults) -> Result<Config, UsageError> {
        let template = self.listener(defaults)?;
        let listen =
            if self.listen.is_empty() { std::slice::from_ref(&defaults.listen) } else { &self.listen[..] };
        let listeners: Result<_, UsageError> = listen
            .iter()
            .map(|addr| {
                let bind = addr.resolve()?;
                let backends = self.backends(defaults, bind.port());
                Ok(ListenerConfig { bind, backends, ..template.clone() })
            })
            .collect();
        Ok(Config {
            listeners: listeners?,
            workers: self.workers,
            max_flows: self.max_flows,
            drain: self.tls.drain()?,
            routes: RoutesConfig {
                mode: self.routes.unwrap_or(defaults.routes.mode),
                table: self.table.unwrap_or(defaults.routes.table),
            },
            log: self.log()?,
        })
    }

    fn listener(&self, defaults: &Defaults) -> Result<ListenerConfig, UsageError> {
        let common = ListenerConfig::default();
        Ok(ListenerConfig {
            bind: common.bind,
            protocol: self.protocol.unwrap_or(common.protocol),
            transparent: self.listen_transparent,
            sockets: self.listeners.unwrap_or(common.sockets),
            mark: self.mark.unwrap_or(defaults.mark),
            backends: self.backends(defaults, common.bind.port()),
            dynamic: self.dynamic(defaults)?,
            senders: self.senders(defaults)?,
            header: HeaderLimits {
                timeout: self.header_timeout.unwrap_or(common.header.timeout),
                wait: self.header_wait.unwrap_or(common.header.wait),
                max_bytes: self.header_max.unwrap_or(common.header.max_bytes),
            },
            claims: self.claims(defaults),
            on_conflict: self.on_conflict.unwrap_or(defaults.on_conflict),
            nat64_prefix: self.nat64_prefix,
            pseudo_ipv4: self.pseudo_ipv4,
            send_proxy: self.send_proxy,
            timeouts: Timeouts {
                idle: self.idle_timeout.map_or(common.timeouts.idle, |timeout| timeout.0),
                connect: self.connect_timeout.unwrap_or(common.timeouts.connect),
            },
            udp: UdpConfig { dialect: self.udp_dialect.unwrap_or_default(), close_after: self.close_after },
            max_per_client: self.tls.max_per_client,
            tls: self.tls.server()?,
            origin_tls: self.tls.origin(&self.named_hosts(defaults))?,
            http: None,
        })
    }

    /// A backend that nobody named must not be this program's own listener: who listens on port 443 and names only `-4`
    /// has no other backend, and its IPv6 clients are told so.
    fn backends(&self, defaults: &Defaults, own_port: u16) -> BackendsConfig {
        let choose =
            |named: &Option<HostPort>, usual: &HostPort, other: &Option<HostPort>| match (named, other) {
                (Some(named), _) => named.clone(),
                (None, Some(other)) if usual.port() == own_port => other.clone(),
                (None, _) => usual.clone(),
            };
        BackendsConfig {
            ipv4: choose(&self.ipv4, &defaults.backends.ipv4, &self.ipv6),
            ipv6: choose(&self.ipv6, &defaults.backends.ipv6, &self.ipv4),
        }
    }

    /// The hosts of the backends that are named, or of those that are usual.
    fn named_hosts<'a>(&'a self, defaults: &'a Defaults) -> Vec<&'a str> {
        let named: Vec<_> = [&self.ipv4, &self.ipv6].into_iter().flatten().map(HostPort::host).collect();
        if named.is_empty() { vec![defaults.backends.ipv4.host()] } else { named }
    }

    fn dynamic(&self, defaults: &Defaults) -> Result<Option<DynamicConfig>, UsageError> {
        let mut allow = Destinations::default();
        self.dynamic_allow.iter().for_each(|entry| allow.extend(entry));
        match (self.dynamic_destination, allow.is_empty(), &defaults.dynamic_allow) {
            (false, true, _) => Ok(None),
            (false, false, _) => {
                Err(UsageError::Options("--dynamic-allow: expected --dynamic-destination with it".to_owned()))
            }
            (true, false, _) => Ok(Some(DynamicConfig { allow })),
            (true, true, Some(allow)) => Ok(Some(DynamicConfig { allow: allow.clone() })),
            (true, true, None) => Err(UsageError::Options(
                "--dynamic-destination: expected --dynamic-allow PREFIX[:PORTS] with it: a header could lead anywhere, such as to services that only this machine may reach"
                    .to_owned(),
            )),
        }
    }

    /// Any list given takes the place of the default one.
    fn senders(&self, defaults: &Defaults) -> Result<SendersConfig, UsageError> {
        let is_default = self.allow.is_empty() && self.allowed_subnets.is_empty();
        let mut senders = SendersConfig {
            allow: if is_default { defaults.allow.clone() } else { PrefixSet::new() },
            allow_files: self.allowed_subnets.clone(),
            header: HeaderRule::Require,
            rules: Vec::new(),
        };
        for entry in &self.allow {
            match entry {
                Allow::Prefixes(prefixes) => senders.allow.extend(prefixes),
                Allow::File(path) => senders.allow_files.push(path.clone()),
            }
        }
        let mut rule = None;
        for entry in &self.header {
            match entry {
                Header::Some(exception) => senders.rules.push(SenderRule::clone(exception)),
                Header::All(all) if rule.is_none_or(|before| before == *all) => rule = Some(*all),
                Header::All(_) => {
                    return Err(UsageError::Options(
                        "--header: given twice with different rules; expected one rule for all senders, and PREFIX=RULE for others"
                            .to_owned(),
                    ));
                }
            }
        }
        // Clients speak TLS, and come by themselves: a header that any of them could write is not looked for.
        let usual = if self.tls.server()?.is_some() { HeaderRule::Forbid } else { HeaderRule::Require };
        Ok(SendersConfig { header: rule.unwrap_or(usual), ..senders })
    }

    fn claims(&self, defaults: &Defaults) -> ClaimsConfig {
        let mut allow = defaults.claims.clone();
        self.allow_claims.iter().for_each(|prefixes| allow.extend(prefixes));
        let allow_host = defaults.claims_host;
        ClaimsConfig { allow, allow_host, deny_files: self.deny_clients.clone() }
    }

    fn log(&self) -> Result<LogConfig, UsageError> {
        let verbosity = match (self.quiet, self.verbose, self.v) {
            (true, false, None) => Verbosity::Quiet,
            (true, ..) => {
                return Err(UsageError::Options("--quiet: expected no -v or --verbose with it".to_owned()));
            }
            (false, true, level) => level.unwrap_or_default().max(Verbosity::Sessions),
            (false, false, level) => level.unwrap_or_default(),
        };
        Ok(LogConfig { verbosity, format: self.log_format })
    }
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        _ => Err("expected tcp or udp".to_owned()),
    }
}

pub(super) fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected text or json".to_owned()),
    }
}
