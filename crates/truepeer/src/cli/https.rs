//! The options of `truepeer https`, and what they make of the configuration.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use truepeer_https::tls::{MinVersion, Suite};
use truepeer_policy::{HeaderRule, PrefixSet};

use super::UsageError;
use super::tls::{certificate, certificates};
use super::values::{self, Allow, Header};
use super::vpp::{Stack, StackArgs};
use crate::plan::{
    BackendsConfig, ClaimsConfig, ClientAddressConfig, ClientCert, Config, HeaderLimits, HostPort,
    HttpConfig, ListenAddr, ListenerConfig, LogConfig, LogFormat, OriginTlsConfig, RoutesConfig, RoutesMode,
    SendProxy, SenderRule, SendersConfig, Timeouts, TlsConfig, Verbosity,
};

pub(super) const AFTER_HELP: &str = "\
Units: TIME is seconds (5), or has a unit (500ms, 5s, 2m, 1h). SIZE is bytes (4096), KiB (16KiB) or MiB (100MiB).

How the origin learns the client (--client-address):
  forwarded    each request has Forwarded and X-Forwarded-For, -Proto and -Host; connections are shared by all clients.
               What clients write there themselves is removed, unless --trusted names them
  transparent  connections come from the client's own address (needs CAP_NET_RAW or CAP_NET_ADMIN, and routes)
  proxy        connections begin with a PROXY v2 header that names the client and its TLS, and serve one client each

Clients that leave: a request whose client resets its connection or stream is given up, and the origin's connection closed. A
client of HTTP/1.1 that only closes its own direction (close_notify) gets its answer if that begins within 5 s.

SIGHUP reads again: certificates, keys and authorities (--cert, --key, --client-ca, --origin-ca, --origin-cert, --origin-key).
New handshakes use them, and resume no session from before; connections that are open stay. What can't be read stays as it
was, and an error says so. Options and other files (--allow FILE, --deny-clients) are read at the start only.

Examples:
  A site whose application listens on port 8080:
    truepeer https -l :443 --cert site.pem --key site.key --origin http://127.0.0.1:8080
  Two sites, chosen by the name that the client asks for; TLS towards an origin with a certificate of our own authority:
    truepeer https -l :443 --cert a.pem --key a.key --cert b.pem --key b.key \\
      --origin https://app.internal --origin-ca ca.pem
  Behind a load balancer that sends PROXY headers; the application sees clients as if they had come by themselves:
    truepeer https -l :8443 --cert site.pem --key site.key --origin http://127.0.0.1:8080 \\
      --allow 10.0.0.7 --header require --client-address transparent
  A mirror that only gives (403 for everything else):
    truepeer https -l :443 --cert site.pem --key site.key --origin http://127.0.0.1:8080 --methods GET";

/// Take HTTPS off (HTTP/2 and HTTP/1.1), and pass each request on (by HTTP/1.1) to an origin that learns who the client is.
#[derive(Debug, Args)]
pub(super) struct HttpsArgs {
    /// Address to listen on; repeatable. `:PORT` is every address of this machine [default: :443]
    #[arg(short = 'l', long = "listen", value_name = "ADDR:PORT", help_heading = LISTENING)]
    listen: Vec<ListenAddr>,
    /// Threads [default: one for each core; with --stack vpp: 1]
    #[arg(long, value_name = "N", value_parser = values::count::<NonZeroUsize>, help_heading = LISTENING)]
    workers: Option<NonZeroUsize>,
    /// How long requests and tunnels that are under way may go on after SIGTERM; a second one ends at once. 0: not at all
    /// [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = crate::plan::parse_duration, help_heading = LISTENING)]
    drain_timeout: Option<Duration>,

    /// Certificate (PEM, its issuers behind it); repeatable: chosen by the name that the client asks for, the first for all
    /// others. Read again on SIGHUP
    #[arg(long, value_name = "FILE", required = true, help_heading = TLS)]
    cert: Vec<PathBuf>,
    /// The certificate's key (PEM); one for each --cert, in the same order [default: in the certificate's file]
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    key: Vec<PathBuf>,
    /// The oldest version of TLS spoken [default: 1.2]
    #[arg(long, value_name = "1.2|1.3", help_heading = TLS)]
    tls_min: Option<MinVersion>,
    /// Cipher suite, such as TLS_AES_128_GCM_SHA256; repeatable, best first: our order decides
    /// [default: all that are safe, in the client's order]
    #[arg(long, value_name = "NAME", help_heading = TLS)]
    tls_suite: Vec<Suite>,
    /// Offer HTTP/1.1 alone (by ALPN), not HTTP/2
    #[arg(long, help_heading = TLS)]
    no_http2: bool,
    /// How long a TLS handshake may take, with clients and with the origin [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = TLS)]
    tls_timeout: Option<Duration>,
    /// Ask clients for certificates, of the authorities in this file (PEM); the origin is told the subject in
    /// X-SSL-Client-S-DN
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    client_ca: Option<PathBuf>,
    /// Whether a client must show one: required or optional [default: required]
    #[arg(long, value_name = "required|optional", value_parser = super::tls::client_cert, requires = "client_ca", help_heading = TLS)]
    client_cert: Option<ClientCert>,

    /// Where requests go: http://HOST[:PORT] or https://HOST[:PORT], whose certificate is verified
    #[arg(long, value_name = "URL", help_heading = ORIGIN)]
    origin: OriginUrl,
    /// Authorities that vouch for the origin (PEM) [default: those that this system trusts]
    #[arg(long, value_name = "FILE", help_heading = ORIGIN)]
    origin_ca: Option<PathBuf>,
    /// Take whatever certificate the origin shows
    #[arg(long, conflicts_with = "origin_ca", help_heading = ORIGIN)]
    origin_insecure: bool,
    /// The name that the origin's certificate must have, and that is asked for [default: the host of --origin]
    #[arg(long, value_name = "NAME", help_heading = ORIGIN)]
    origin_name: Option<String>,
    /// Certificate that is shown to an origin that asks for one (PEM, its issuers behind it)
    #[arg(long, value_name = "FILE", help_heading = ORIGIN)]
    origin_cert: Option<PathBuf>,
    /// Its key (PEM) [default: in the certificate's file]
    #[arg(long, value_name = "FILE", requires = "origin_cert", help_heading = ORIGIN)]
    origin_key: Option<PathBuf>,
    /// Idle connections to the origin that each worker keeps; 0: none [default: 1024]
    #[arg(long, value_name = "N", help_heading = ORIGIN)]
    origin_keepalive: Option<usize>,
    /// For how long; less if the origin says so [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = ORIGIN)]
    origin_idle: Option<Duration>,
    /// How long the origin may take to accept a connection [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = ORIGIN)]
    connect_timeout: Option<Duration>,
    /// How long requests wait for an origin that refuses connections, or closes them at once, as it does while it is restarted
    /// [default: 1s]
    #[arg(long, alias = "origin-patience", value_name = "TIME", value_parser = crate::plan::parse_duration, help_heading = ORIGIN)]
    origin_retry_timeout: Option<Duration>,
    /// How long the origin may be silent before and within a response (504) [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = ORIGIN)]
    response_timeout: Option<Duration>,
    /// Firewall mark of connections to the origin; 0: none [default: 0]
    #[arg(short, long, value_name = "N", value_parser = values::mark, help_heading = ORIGIN)]
    mark: Option<u32>,

    /// How the origin learns the client: forwarded, transparent or proxy [default: forwarded]
    #[arg(long, value_name = "MODE", value_parser = client_address, help_heading = CLIENTS)]
    client_address: Option<ClientAddressConfig>,
    /// Senders, such as another proxy of yours, whose own Forwarded and X-Forwarded-… go on, with theirs added; repeatable
    /// [default: none]
    #[arg(long, value_name = "PREFIX", help_heading = CLIENTS)]
    trusted: Vec<PrefixSet>,
    /// Who may connect: loopback, private, any, a prefix, or a file (beginning with / or .); repeatable [default: any; where
    /// PROXY headers are read: loopback]
    #[arg(long, value_name = "PREFIX|FILE", help_heading = CLIENTS)]
    allow: Vec<Allow>,
    /// Whether connections begin with a PROXY header: require, forbid, or optional; PREFIX=RULE for some senders, repeatable
    /// [default: forbid]
    #[arg(long, value_name = "[PREFIX=]RULE", help_heading = CLIENTS)]
    header: Vec<Header>,
    /// Connections that one client may have, by its address, IPv6 by /64; 0: any number. Not counted are those of --trusted
    /// senders and from this machine, unless a PROXY header names the client [default: an eighth of all, 64 to 4096]
    #[arg(long, value_name = "N", help_heading = CLIENTS)]
    max_per_client: Option<usize>,
    /// How long a sender may take for its PROXY header [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = CLIENTS)]
    header_timeout: Option<Duration>,
    /// How long a sender with --header optional may be silent before it is served as itself [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = CLIENTS)]
    header_wait: Option<Duration>,
    /// This host's own, loopback, unspecified, multicast, broadcast and reserved addresses that a PROXY header may claim all
    /// the same; repeatable [default: none]
    #[arg(long, value_name = "PREFIX", help_heading = CLIENTS)]
    allow_claims: Vec<PrefixSet>,
    /// File of clients to refuse, a prefix a line, # for comments; repeatable
    #[arg(long, value_name = "FILE", help_heading = CLIENTS)]
    deny_clients: Vec<PathBuf>,

    /// Methods that may be used, separated by commas; others are answered with 403. GET allows HEAD, too [default: all]
    #[arg(long, value_name = "METHODS", value_delimiter = ',', value_parser = method, help_heading = REQUESTS)]
    methods: Vec<String>,
    /// The longest request body (413) [default: any]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = REQUESTS)]
    max_body: Option<u64>,
    /// The longest head of a request or response (431, 502) [default: 32KiB]
    #[arg(long, value_name = "SIZE", value_parser = head_size, help_heading = REQUESTS)]
    max_head: Option<usize>,
    /// How long a request's head may take (408) [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = REQUESTS)]
    head_timeout: Option<Duration>,
    /// How long a client may be silent within a request's body (408) [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = REQUESTS)]
    body_timeout: Option<Duration>,
    /// How long a client may take nothing of a response, and the origin nothing of a request (504) [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = REQUESTS)]
    send_timeout: Option<Duration>,
    /// Bytes a second that a client has to manage on average, sending a body (408) or taking one, once it has been waited for
    /// longer than --body-timeout (sending) or --send-timeout (taking) in all; 0: any number [default: 500]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = REQUESTS)]
    min_rate: Option<u64>,
    /// How long a connection may wait for its next request [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = REQUESTS)]
    keepalive_timeout: Option<Duration>,
    /// How long a connection after 101 (a WebSocket) may be silent both ways; once one side has ended, a minute at most
    /// [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = values::positive_duration, help_heading = REQUESTS)]
    tunnel_timeout: Option<Duration>,

    /// Rules and routes for the origin's replies (--client-address transparent): auto (set, and remove at the end) or manual
    /// [default: auto if permitted]
    #[arg(long, value_name = "auto|manual", value_parser = values::routes_mode, help_heading = ROUTING)]
    routes: Option<RoutesMode>,
    /// Number of the routing table for them [default: 123]
    #[arg(long, value_name = "N", value_parser = values::table, help_heading = ROUTING)]
    table: Option<u32>,

    #[command(flatten, next_help_heading = STACK)]
    pub(super) stack: StackArgs,

    /// A line for each request
    #[arg(long, help_heading = LOGGING)]
    access_log: bool,
    /// 0: start, stop and warnings; 1: the same; 2: and changes of state [default: 0]
    #[arg(short, value_name = "0|1|2", num_args = 0..=1, default_missing_value = "1", value_parser = values::verbosity,
        help_heading = LOGGING)]
    v: Option<Verbosity>,
    /// Warnings and errors only
    #[arg(short, long, conflicts_with = "v", help_heading = LOGGING)]
    quiet: bool,
    /// Lines for people or for machines [default: text on a terminal, json otherwise]
    #[arg(long, value_name = "text|json", value_parser = super::proxy::log_format, help_heading = LOGGING)]
    log_format: Option<LogFormat>,
}

const LISTENING: &str = "Listening";
const TLS: &str = "TLS with clients";
const ORIGIN: &str = "The origin";
const CLIENTS: &str = "Clients, and who sends for them";
const REQUESTS: &str = "Requests";
const ROUTING: &str = "Routing";
const STACK: &str = "The network stack";
const LOGGING: &str = "Logging";

/// `http(s)://HOST[:PORT]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OriginUrl {
    is_https: bool,
    host: HostPort,
}

impl FromStr for OriginUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected http://HOST[:PORT] or https://HOST[:PORT], such as https://127.0.0.1:8443 or http://[::1]:80"
                .to_owned()
        };
        let (is_https, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let usual_port = if is_https { 443 } else { 80 };
        let host = rest.parse().or_else(|_| format!("{rest}:{usual_port}").parse());
        Ok(Self { is_https, host: host.map_err(|_: String| wrong())? })
    }
}

impl HttpsArgs {
    /// The configuration; contradictions and addresses that can't be resolved are errors, files are not read yet.
    pub(super) fn into_config(self) -> Result<Config, UsageError> {
        let template = self.listener()?;
        let usual = [ListenAddr::new("", 443)];
        let listen = if self.listen.is_empty() { &usual[..] } else { &self.listen[..] };
        let listeners: Result<_, UsageError> = listen
            .iter()
            .map(|addr| Ok(ListenerConfig { bind: addr.resolve()?, ..template.clone() }))
            .collect();
        Ok(Config {
            listeners: listeners?,
            workers: self.workers(),
            max_flows: None,
            drain: self.drain_timeout.unwrap_or(crate::plan::DRAIN),
            routes: self.routes()?,
            log: LogConfig {
                verbosity: if self.quiet { Verbosity::Quiet } else { self.v.unwrap_or_default() },
                format: self.log_format,
            },
        })
    }

    /// On VPP's stack one, unless more are asked for: what several threads gain there has not been measured.
    fn workers(&self) -> Option<NonZeroUsize> {
        match self.stack.stack {
            Stack::Kernel => self.workers,
            Stack::Vpp => self.workers.or(Some(NonZeroUsize::MIN)),
        }
    }

    /// The kernel's rules do nothing for VPP, which has routes of its own.
    fn routes(&self) -> Result<RoutesConfig, UsageError> {
        let usual = RoutesConfig::default();
        let table = self.table.unwrap_or(usual.table);
        match (self.stack.stack, self.routes) {
            (Stack::Kernel, mode) => Ok(RoutesConfig { mode: mode.unwrap_or(usual.mode), table }),
            (Stack::Vpp, None | Some(RoutesMode::Manual)) => {
                Ok(RoutesConfig { mode: RoutesMode::Manual, table })
            }
            (Stack::Vpp, Some(_)) => Err(UsageError::Options(
                "--routes auto: with --stack vpp the origin's replies are VPP's to route: `ip route add CLIENTS-PREFIX via \
                 local` in vppctl"
                    .to_owned(),
            )),
        }
    }

    fn listener(&self) -> Result<ListenerConfig, UsageError> {
        let common = ListenerConfig::default();
        let client_address = self.client_address.unwrap_or_default();
        let mut claims = ClaimsConfig { deny_files: self.deny_clients.clone(), ..common.claims.clone() };
        self.allow_claims.iter().for_each(|prefixes| claims.allow.extend(prefixes));
        Ok(ListenerConfig {
            mark: self.mark.unwrap_or_default(),
            backends: BackendsConfig { ipv4: self.origin.host.clone(), ipv6: self.origin.host.clone() },
            senders: self.senders()?,
            header: HeaderLimits {
                timeout: self.header_timeout.unwrap_or(common.header.timeout),
                wait: self.header_wait.unwrap_or(common.header.wait),
                ..common.header
            },
            claims,
            send_proxy: (client_address == ClientAddressConfig::Proxy).then_some(SendProxy::V2),
            timeouts: Timeouts {
                connect: self.connect_timeout.unwrap_or(common.timeouts.connect),
                ..common.timeouts
            },
            max_per_client: self.max_per_client,
            tls: Some(self.tls()?),
            origin_tls: self.origin_tls()?,
            http: Some(self.http(client_address)),
            ..common
        })
    }

    fn tls(&self) -> Result<TlsConfig, UsageError> {
        if !self.key.is_empty() && self.key.len() != self.cert.len() {
            return Err(UsageError::Options(format!(
                "--key: expected one for each --cert ({}), got {}",
                self.cert.len(),
                self.key.len()
            )));
        }
        let usual = TlsConfig::default();
        Ok(TlsConfig {
            certs: certificates(&self.cert, &self.key),
            min_version: self.tls_min.unwrap_or_default(),
            suites: self.tls_suite.clone(),
            alpn: self.alpn(),
            client_ca: self.client_ca.clone(),
            client_cert: self.client_cert.unwrap_or_default(),
            timeout: self.tls_timeout.unwrap_or(usual.timeout),
        })
    }

    /// The versions of HTTP that clients may choose from, best first. Who offers HTTP/1.0 alone (`curl --http1.0`) would be
    /// turned away if it were not among them.
    fn alpn(&self) -> Vec<String> {
        let versions =
            if self.no_http2 { &["http/1.1", "http/1.0"][..] } else { &["h2", "http/1.1", "http/1.0"] };
        versions.iter().map(|&version| version.to_owned()).collect()
    }

    fn origin_tls(&self) -> Result<Option<OriginTlsConfig>, UsageError> {
        let needy = [
            (self.origin_ca.is_some(), "--origin-ca"),
            (self.origin_insecure, "--origin-insecure"),
            (self.origin_name.is_some(), "--origin-name"),
            (self.origin_cert.is_some(), "--origin-cert"),
        ];
        match needy.iter().find(|(given, _)| *given && !self.origin.is_https) {
            Some((_, option)) => {
                Err(UsageError::Options(format!("{option}: expected --origin https://… with it")))
            }
            None if !self.origin.is_https => Ok(None),
            None => Ok(Some(OriginTlsConfig {
                name: self.origin_name.clone().unwrap_or_else(|| self.origin.host.host().to_owned()),
                ca: self.origin_ca.clone(),
                insecure: self.origin_insecure,
                alpn: vec!["http/1.1".to_owned()],
                cert: certificate(self.origin_cert.as_ref(), self.origin_key.as_ref()),
            })),
        }
    }

    /// Clients come by themselves, whoever they are; only where headers are read is it to be said who sends them.
    fn senders(&self) -> Result<SendersConfig, UsageError> {
        let (mut rule, mut rules) = (None, Vec::new());
        for entry in &self.header {
            match entry {
                Header::Some(exception) => rules.push(SenderRule::clone(exception)),
                Header::All(all) if rule.is_none_or(|before| before == *all) => rule = Some(*all),
                Header::All(_) => {
                    return Err(UsageError::Options(
                        "--header: given twice with different rules; expected one rule for all senders, and PREFIX=RULE for others"
                            .to_owned(),
                    ));
                }
            }
        }
        let header = rule.unwrap_or(HeaderRule::Forbid);
        let mut senders = SendersConfig { allow: PrefixSet::new(), allow_files: Vec::new(), header, rules };
        for entry in &self.allow {
            match entry {
                Allow::Prefixes(prefixes) => senders.allow.extend(prefixes),
                Allow::File(path) => senders.allow_files.push(path.clone()),
            }
        }
        if self.allow.is_empty() {
            let reads_headers = header != HeaderRule::Forbid;
            senders.allow = if reads_headers { PrefixSet::loopback() } else { PrefixSet::any() };
        }
        Ok(senders)
    }

    fn http(&self, client_address: ClientAddressConfig) -> HttpConfig {
        let usual = HttpConfig::default();
        let mut trusted = PrefixSet::new();
        self.trusted.iter().for_each(|prefixes| trusted.extend(prefixes));
        HttpConfig {
            client_address,
            trusted,
            methods: self.methods.clone(),
            max_body: self.max_body,
            max_head: self.max_head.unwrap_or(usual.max_head),
            min_rate: self.min_rate.unwrap_or(usual.min_rate),
            access_log: self.access_log,
            origin_keepalive: self.origin_keepalive.unwrap_or(usual.origin_keepalive),
            origin_idle: self.origin_idle.unwrap_or(usual.origin_idle),
            origin_retry_timeout: self.origin_retry_timeout.unwrap_or(usual.origin_retry_timeout),
            head_timeout: self.head_timeout.unwrap_or(usual.head_timeout),
            body_timeout: self.body_timeout.unwrap_or(usual.body_timeout),
            send_timeout: self.send_timeout.unwrap_or(usual.send_timeout),
            keepalive_timeout: self.keepalive_timeout.unwrap_or(usual.keepalive_timeout),
            response_timeout: self.response_timeout.unwrap_or(usual.response_timeout),
            tunnel_timeout: self.tunnel_timeout.unwrap_or(usual.tunnel_timeout),
        }
    }
}

fn client_address(text: &str) -> Result<ClientAddressConfig, String> {
    match text {
        "forwarded" => Ok(ClientAddressConfig::Forwarded),
        "transparent" => Ok(ClientAddressConfig::Transparent),
        "proxy" => Ok(ClientAddressConfig::Proxy),
        _ => Err("expected forwarded, transparent or proxy".to_owned()),
    }
}

/// A method is a token (RFC 9110 section 9.1), and usual ones are upper case: `get` would allow nobody's request.
fn method(text: &str) -> Result<String, String> {
    let is_method = |text: &str| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    if !text.is_empty() && is_method(text) {
        Ok(text.to_owned())
    } else {
        Err("expected methods in upper case, separated by commas, such as GET,POST".to_owned())
    }
}

fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("B", 1)];
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (digits, unit) = unit.unwrap_or((text, 1));
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "expected bytes, or a number with KiB, MiB or GiB, such as 100MiB".to_owned())
}

fn head_size(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(size(text)?).ok().filter(|bytes| (1024..=1 << 20).contains(bytes));
    bytes.ok_or_else(|| "expected 1KiB to 1MiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_perhaps_a_port() {
        for (text, is_https, host) in [
            ("http://127.0.0.1:8080", false, "127.0.0.1:8080"),
            ("https://app.internal", true, "app.internal:443"),
            ("http://app/", false, "app:80"),
            ("https://[::1]", true, "[::1]:443"),
            ("https://[::1]:1", true, "[::1]:1"),
        ] {
            let origin: OriginUrl = text.parse().unwrap();
            assert_eq!((origin.is_https, origin.host.to_string()), (is_https, host.to_owned()), "{text}");
        }
        for text in ["app:80", "ftp://app", "https://", "https://app/path", "https://a b", "https://::1"] {
            assert!(text.parse::<OriginUrl>().unwrap_err().contains("https://HOST"), "{text}");
        }
    }

    #[test]
    fn sizes_have_units_and_methods_are_upper_case() {
        assert_eq!(size("100MiB"), Ok(100 << 20));
        assert_eq!(size("5"), Ok(5));
        assert!(size("x").is_err() && size("99999999999GiB").is_err() && head_size("1").is_err());
        assert!(method("GET").is_ok() && method("get").is_err() && method("").is_err());
    }
}
