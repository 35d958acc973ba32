//! The table of options: name, value, default and help of each. `--help` and docs/options.md are generated
//! from it.
//!
//! The order here is the order in `--help`, where rare options follow all others.

use truepeer_http::HttpLimits;
use truepeer_policy::HeaderTimes;

use truepeer_config::spec::SpliceAfter;
use truepeer_config::spec::defaults as d;
use truepeer_config::spec::text::format_duration;
use truepeer_origin::{HttpSettings, HttpTimeouts};

/// A command, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Commands(u32);

pub(crate) const PROXY: Commands = Commands(1);
pub(crate) const HTTPS: Commands = Commands(1 << 1);
pub(crate) const ATTACH: Commands = Commands(1 << 2);
pub(crate) const RUN: Commands = Commands(1 << 3);
pub(crate) const CONNECT: Commands = Commands(1 << 4);
pub(crate) const ROUTES: Commands = Commands(1 << 5);
pub(crate) const DOCTOR: Commands = Commands(1 << 6);
pub(crate) const STATUS: Commands = Commands(1 << 12);
pub(crate) const SESSIONS: Commands = Commands(1 << 13);
pub(crate) const TOP: Commands = Commands(1 << 14);
pub(crate) const SERVE: Commands = Commands(1 << 7);
pub(crate) const CHECK: Commands = Commands(1 << 8);
pub(crate) const COMPLETION: Commands = Commands(1 << 11);
/// Tables of the file that are not commands.
pub(crate) const ADMIN_TABLE: Commands = Commands(1 << 9);
pub(crate) const LOG_TABLE: Commands = Commands(1 << 10);
pub(crate) const ACME_TABLE: Commands = Commands(1 << 15);
pub(crate) const RELOAD: Commands = Commands(1 << 16);
pub(crate) const UPGRADE: Commands = Commands(1 << 17);
pub(crate) const OCI_HOOK: Commands = Commands(1 << 18);
pub(crate) const PROBE: Commands = Commands(1 << 25);
pub(crate) const BAN: Commands = Commands(1 << 19);
pub(crate) const UNBAN: Commands = Commands(1 << 20);
pub(crate) const BANS: Commands = Commands(1 << 21);
pub(crate) const WHOIS: Commands = Commands(1 << 22);
pub(crate) const CROWDSEC: Commands = Commands(1 << 23);
pub(crate) const VPP: Commands = Commands(1 << 31);

impl Commands {
    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn include(self, one: Self) -> bool {
        self.0 & one.0 != 0
    }
}

const SERVERS: Commands = PROXY.or(HTTPS);
const RECEIVERS: Commands = SERVERS.or(ATTACH).or(RUN);
const STARTERS: Commands = RUN.or(CONNECT);
const ROUTERS: Commands = ROUTES.or(DOCTOR);
const FILE_READERS: Commands = SERVE.or(CHECK).or(RELOAD).or(UPGRADE).or(ASKERS).or(DOCTOR);
const ASKERS: Commands = STATUS.or(SESSIONS).or(WHOIS).or(TOP).or(BANNERS);
const BANNERS: Commands = BAN.or(UNBAN).or(BANS).or(CROWDSEC);

/// What applies if the option is absent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Default {
    /// Nothing: the option is off, the list empty.
    Nothing,
    /// This value; writing it changes nothing.
    Value(fn() -> String),
    /// A description, because no single value expresses it.
    Words(&'static str),
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// The long option, which is also the key.
    pub(crate) name: &'static str,
    /// The placeholder for its value in the help; empty for a switch.
    pub(crate) value: &'static str,
    pub(crate) help: &'static str,
    pub(crate) default: Default,
    pub(crate) commands: Commands,
    /// `-h` shows it, too.
    pub(crate) is_common: bool,
    /// `--help` shows it at the end.
    is_rare: bool,
    heading: &'static str,
}

const fn row(
    commands: Commands,
    heading: &'static str,
    name: &'static str,
    value: &'static str,
    help: &'static str,
) -> Row {
    Row { name, value, help, default: Default::Nothing, commands, is_common: false, is_rare: false, heading }
}

impl Row {
    const fn is(self, default: fn() -> String) -> Self {
        Self { default: Default::Value(default), ..self }
    }

    const fn means(self, words: &'static str) -> Self {
        Self { default: Default::Words(words), ..self }
    }

    const fn common(self) -> Self {
        Self { is_common: true, ..self }
    }

    const fn rare(self) -> Self {
        Self { is_rare: true, ..self }
    }

    pub(crate) const fn heading(&self) -> &'static str {
        if self.is_rare { RARE } else { self.heading }
    }

    /// The help with its default.
    pub(crate) fn text(&self) -> String {
        match self.default_text() {
            Some(default) => format!("{} [default: {default}]", self.help),
            None => self.help.to_owned(),
        }
    }

    /// The default as printed.
    pub(crate) fn default_text(&self) -> Option<String> {
        match self.default {
            Default::Nothing => None,
            Default::Value(value) => Some(value()),
            Default::Words(words) => Some(words.to_owned()),
        }
    }
}

/// The row of a command's option, and its place in `--help`.
pub(crate) fn find(command: Commands, name: &str) -> Option<(usize, &'static Row)> {
    let found = OPTIONS.iter().enumerate().find(|(_, row)| row.name == name && row.commands.include(command));
    found.map(|(place, row)| (if row.is_rare { OPTIONS.len() + place } else { place }, row))
}

const RARE: &str = "Rarely needed";
const LISTENING: &str = "Listening";
const BACKENDS: &str = "Backends";
const ORIGIN: &str = "The origin";
const SENDERS: &str = "Senders: who may connect, with or without a header";
const CLIENTS: &str = "Clients: which clients a header may name";
const DELIVERY: &str = "Delivery";
const TLS: &str = "TLS with clients";
const ACME: &str = "Certificates by ACME";
const ORIGIN_TLS: &str = "TLS with backends";
const REQUESTS: &str = "Requests";
const UDP: &str = "UDP";
const ROUTING: &str = "Routes for the backends' replies";
const STACK: &str = "Network stack";
const LAYOUT: &str = "VPP and its layout (up)";
const ON_VPP: &str = "A program on VPP (run, demo)";
const CONFINEMENT: &str = "Confinement";
const LOG: &str = "Log";
const PROGRAM: &str = "The program";
const PLACE: &str = "Place";
const ACTION: &str = "Action";
const WATCH: &str = "Watch";
const PRINT: &str = "As a file";
const FILE: &str = "Configuration file";

fn address((host, port): (&str, u16)) -> String {
    truepeer_config::spec::HostPort::new(host, port).to_string()
}

fn http() -> HttpTimeouts {
    HttpTimeouts::default()
}

fn time(duration: std::time::Duration) -> String {
    format_duration(&duration)
}

fn kib(bytes: usize) -> String {
    format!("{}KiB", bytes / 1024)
}

/// Every option of every command.
pub(crate) const OPTIONS: &[Row] = &[
    row(PROXY, LISTENING, "listen", "[ADDR]:PORT", "Address to listen on; repeatable. :PORT is every address of this machine, fd:NAME a socket of the service manager (FileDescriptorName=)")
        .is(|| address(d::LISTEN)).common(),
    row(HTTPS, LISTENING, "listen", "[ADDR]:PORT", "Address to listen on; repeatable. :PORT is every address of this machine, fd:NAME a socket of the service manager (FileDescriptorName=)")
        .is(|| address(d::LISTEN_HTTPS)).common(),
    row(HTTPS, LISTENING, "listen-http", "[ADDR]:PORT", "Address to listen on for HTTP without TLS, such as :80; repeatable").means("none"),
    row(HTTPS, LISTENING, "on-http", "redirect[:PORT]|serve", "What clients of --listen-http get: a redirect (308) to the same URL by https, on PORT or that of the first --listen; or what the origin answers").is(|| "redirect".to_owned()),
    row(PROXY, LISTENING, "protocol", "tcp|udp|both", "What is carried; both: TCP and UDP on the same addresses, to the same backends").is(|| "tcp".to_owned()),
    row(PROXY, LISTENING, "listeners", "N", "Sockets on each address; the kernel spreads connections over them (SO_REUSEPORT)").is(|| "1".to_owned()).rare(),
    row(PROXY, LISTENING, "workers", "N", "Threads").means("one for each core").rare(),
    row(HTTPS, LISTENING, "workers", "N", "Threads").means("one for each core; with --stack vpp: 1").rare(),
    row(SERVERS, LISTENING, "drain-timeout", "TIME", "How long open sessions, requests and flows may continue after SIGTERM; a second SIGTERM ends them at once. 0: end at once").is(|| time(d::DRAIN_TIMEOUT)),
    row(SERVERS, LISTENING, "reload-on-change", "", "Reload, as on SIGHUP, when the configuration or a file that it names has changed and then stayed the same for a second"),
    row(PROXY, LISTENING, "listen-transparent", "", "Accept connections to any address, as TPROXY redirects them (IP_TRANSPARENT on the listening sockets)"),

    row(PROXY, BACKENDS, "ipv4", "HOST[:PORT]", "Backend for IPv4 clients; a host name is resolved. Without PORT: the port that each connection came to. Without it, and with -6, IPv4 clients are refused")
        .means("127.0.0.1:443 if -6 is not given either").common(),
    row(PROXY, BACKENDS, "ipv6", "HOST[:PORT]", "Backend for IPv6 clients; a host name is resolved. Without PORT: the port that each connection came to. Without it, and with -4, IPv6 clients are refused")
        .means("[::1]:443 if -4 is not given either").common(),
    row(ROUTERS, BACKENDS, "ipv4", "HOST:PORT", "Backend for IPv4 clients; repeatable").means("127.0.0.1:443 if -6 is not given either").common(),
    row(ROUTERS, BACKENDS, "ipv6", "HOST:PORT", "Backend for IPv6 clients; repeatable").means("[::1]:443 if -4 is not given either").common(),
    row(ROUTERS, BACKENDS, "protocol", "tcp|udp", "Transport protocol of the backends").is(|| "tcp".to_owned()).common(),
    row(PROXY, BACKENDS, "dynamic-destination", "", "Connect to the destination that the header names. -4 and -6 serve headers that name none (LOCAL, UNKNOWN)"),
    row(PROXY, BACKENDS, "dynamic-allow", "PREFIX[:PORTS]", "Where --dynamic-destination may lead, such as 10.0.0.0/8:80,8000-8100 or [2001:db8::/32]:443; repeatable; without ports: all. Own listeners are never a destination"),
    row(ROUTERS, BACKENDS, "dynamic-allow", "PREFIX[:PORTS]", "Where --dynamic-destination may lead; repeatable"),

    row(HTTPS, ORIGIN, "origin", "[MATCH=]URL", "The origin of requests: http://HOST[:PORT], or https://HOST[:PORT], whose certificate is verified. Repeatable: MATCH=URL is for some requests only, by host, path or both: api.example, *.example, /static or api.example/v2").common(),
    row(HTTPS, ORIGIN, "origin-health", "[MATCH=]RULE", "Check origins: [HOST]/PATH[,TIME] asks for a path (2xx or 3xx is healthy), connect[,TIME] connects, each 5 s or TIME; after two failures requests get 503. Repeatable: MATCH=RULE is for one origin").means("no checks"),
    row(PROXY, BACKENDS, "connect-timeout", "TIME", "How long a backend may take to accept a connection").is(|| time(d::CONNECT_TIMEOUT)).rare(),
    row(HTTPS, ORIGIN, "connect-timeout", "TIME", "How long the origin may take to accept a connection").is(|| time(d::CONNECT_TIMEOUT)).rare(),
    row(HTTPS, ORIGIN, "origin-protocol", "auto|h2|http1", "HTTP version spoken with the origin. auto: HTTP/2 if an https:// origin chooses it (ALPN). h2: always, by prior knowledge with an http:// origin").is(|| "http1".to_owned()).rare(),
    row(HTTPS, ORIGIN, "origin-keepalive", "N", "Idle connections to the origin that each worker keeps; 0: none").is(|| d::ORIGIN_KEEPALIVE.to_string()).rare(),
    row(HTTPS, ORIGIN, "origin-idle", "TIME", "How long an idle connection to the origin is kept; less if the origin says so").is(|| time(d::ORIGIN_IDLE)).rare(),
    row(HTTPS, ORIGIN, "origin-retry-timeout", "TIME", "How long a request waits for an origin that refuses connections or closes them at once, as during a restart").is(|| time(d::ORIGIN_RETRY_TIMEOUT)).rare(),
    row(HTTPS, ORIGIN, "response-timeout", "TIME", "How long the origin may be silent before and within a response (504)").is(|| time(http().response)).rare(),

    row(RUN, PROGRAM, "port", "PORT[,PORT|-PORT]", "Only listeners on these ports: 443, 80,443, 8000-8010 or https; repeatable").means("all listeners").common(),
    row(RUN, PROGRAM, "listen", "ADDR:PORT", "Only listeners on this address and port; repeatable").means("all listeners"),
    row(ATTACH, PROGRAM, "port", "[FROM:]PORT[/udp]", "Port that the server listens on: 443, 80,443, 8000-8010, https or 53/udp; FROM:PORT/udp if datagrams are sent to another port; repeatable").common(),

    row(RECEIVERS, SENDERS, "sender", "NAME", "What the senders are: aws-nlb, dnsdist, edgeone, frp, haproxy, nginx, playit or spectrum. Sets --header require, the versions of the header that it writes, and its --udp-dialect, and says so; an option that is given itself wins").means("any program"),
    row(PROXY.or(ATTACH).or(RUN), SENDERS, "allow", "PREFIX|FILE", "Who may send headers: loopback, private, any, a prefix, or a file of prefixes (beginning with / or .); repeatable")
        .is(|| "loopback".to_owned()).common(),
    row(HTTPS, SENDERS, "allow", "PREFIX|FILE", "Who may connect: loopback, private, any, a prefix, or a file of prefixes (beginning with / or .); repeatable")
        .means("any; where PROXY headers are read: loopback").common(),
    row(PROXY, SENDERS, "allowed-subnets", "FILE", "The same as --allow FILE, as go-mmproxy calls it; repeatable").rare(),
    row(PROXY, SENDERS, "header", "[PREFIX=]RULE", "Whether connections begin with a PROXY header: require, forbid, or optional (every sender may then claim to be anybody); PREFIX=RULE for some senders; repeatable")
        .means("require; with --tls-cert: forbid").common(),
    row(HTTPS, SENDERS, "header", "[PREFIX=]RULE", "Whether connections begin with a PROXY header: require, forbid, or optional; PREFIX=RULE for some senders; repeatable")
        .is(|| "forbid".to_owned()).common(),
    row(RUN, SENDERS, "header", "[PREFIX=]RULE", "Whether connections begin with a PROXY header: require, forbid, or optional (every sender may then claim to be anybody); PREFIX=RULE for some senders; repeatable")
        .is(|| "require".to_owned()).common(),
    row(ATTACH, SENDERS, "header", "[PREFIX=]RULE", "Whether connections and datagrams begin with a header: require, or optional (every sender may then claim to be anybody; a server that speaks first is held back for --header-wait); PREFIX=RULE for some senders; repeatable")
        .is(|| "require".to_owned()).common(),
    row(SERVERS.or(RUN), SENDERS, "header-timeout", "TIME", "How long a sender may take for its header").is(|| time(HeaderTimes::default().timeout)),
    row(ATTACH, SENDERS, "header-timeout", "TIME", "TCP: how long a sender may take for its header; a silent one is looked at after 1, 3, 7, 15, 31 and 63 seconds").is(|| time(HeaderTimes::default().timeout)),
    row(SERVERS.or(RUN), SENDERS, "header-wait", "TIME", "How long a sender with --header optional may be silent before it is served as itself").is(|| time(HeaderTimes::default().wait)).rare(),
    row(ATTACH, SENDERS, "header-wait", "TIME", "TCP: how long a sender with --header optional may be silent before it is served as itself; looked at after 1, 3, 7, 15, 31 and 63 seconds").is(|| time(HeaderTimes::default().wait)).rare(),
    row(ATTACH, SENDERS, "unshowable", "show-sender|refuse", "When the server's socket can't show the client (IPv6 clients at a socket on 0.0.0.0): show-sender shows it the sender's address, which it then logs and bans; refuse ends the connection, or drops the datagram").is(|| "show-sender".to_owned()).rare(),
    row(SERVERS, SENDERS, "require-tlv", "[PREFIX,]TYPE=@FILE", "A header counts only if its TLV of this type, such as 0xE5, is a secret of FILE (up to four, a line each: add the new one, reload, change the sender). TYPE=hmac:@FILE: a digest that another truepeer sends, 30 s old at most. PREFIX: for some senders; repeatable").means("every header counts"),
    row(ATTACH.or(RUN), SENDERS, "require-tlv", "[PREFIX,]TYPE=@FILE", "A header counts only if its TLV of this type, such as 0xE5, is a secret of FILE (up to four, a line each). PREFIX: for some senders; repeatable").means("every header counts"),
    row(RECEIVERS, SENDERS, "header-max", "SIZE", "The longest header accepted").is(|| kib(d::HEADER_MAX)).rare(),
    row(RUN, SENDERS, "versions", "LIST", "Versions of the PROXY protocol accepted: 1, 2 or 1,2").is(|| "1,2".to_owned()).rare(),
    row(RECEIVERS, CLIENTS, "allow-claims", "PREFIX", "This host's own, loopback, unspecified, multicast, broadcast and reserved addresses that a header may name nevertheless; repeatable").means("none"),
    row(RECEIVERS, CLIENTS, "deny-clients", "PREFIX|FILE", "Clients to refuse: a prefix, or a file with one prefix a line and # for comments; repeatable").means("none"),
    row(PROXY, CLIENTS, "max-per-client", "N", "The most TCP connections of one client (an IPv4 address or an IPv6 /64); 0: unlimited. Counted are clients that a PROXY header names, and senders that must not send one, except this machine").means("unlimited; with --tls-cert an eighth of all, 64 to 4096").rare(),
    row(HTTPS, CLIENTS, "client-address", "MODE", "How the origin learns the client: forwarded, transparent or proxy").is(|| "forwarded".to_owned()).common(),
    row(HTTPS, CLIENTS, "send-tlv", "TYPE=@FILE", "With --client-address proxy: a TLV of the header to the origin, whose value is the first secret of FILE. TYPE=hmac:@FILE: a digest of header and time by it, for another truepeer; repeatable").means("none"),
    row(HTTPS, CLIENTS, "trusted", "PREFIX", "Senders, such as another proxy of yours, whose own Forwarded and X-Forwarded-… are kept and added to; repeatable").means("none"),

    row(CONNECT, SENDERS, "from", "ADDR:PORT", "The client to name").means("the connection's own address").common(),
    row(CONNECT, SENDERS, "send-proxy", "v1|v2", "Version of the PROXY header for TCP connections").is(|| "v2".to_owned()).common(),
    row(CONNECT, SENDERS, "send-tlv", "TYPE=@FILE", "A TLV of the header, whose value is the first secret of FILE, which the program must be able to read. TYPE=hmac:@FILE: a digest of header and time by it, for truepeer proxy and https; repeatable").means("none"),
    row(CONNECT, SENDERS, "to", "PREFIX[:PORTS]", "Only connections there; repeatable").means("all TCP connections").common(),
    row(RUN.or(ATTACH), PROGRAM, "destination", "socket|header", "What getsockname() returns: the socket's own address, or the destination that the header names").is(|| "socket".to_owned()).rare(),
    row(STARTERS, PROGRAM, "via", "HOW", "Mechanism between the program and the kernel").is(|| "auto".to_owned()),
    row(STARTERS, PROGRAM, "verbose", "", "Log each connection on standard error"),
    row(STARTERS, PROGRAM, "unpack", "DIR", "Only write the library to this directory, as libtruepeer.so and under the names of libproxyproto, for LD_PRELOAD by hand").rare(),
    row(STARTERS, PROGRAM, "command", "COMMAND", "The program and its arguments: from the first word that is not an option, or after --").common(),

    row(SERVERS, DELIVERY, "mark", "N", "Firewall mark of connections to backends; 0: none").is(|| "0".to_owned()).rare(),
    row(ROUTERS, BACKENDS, "mark", "N", "Firewall mark of connections to backends; 0: none").is(|| "0".to_owned()).rare(),
    row(SERVERS, DELIVERY, "on-conflict", "ephemeral|refuse", "When the client's address and port are in use: ephemeral keeps the address and takes another port, refuse ends the session")
        .is(|| "ephemeral".to_owned()).rare(),
    row(PROXY, DELIVERY, "nat64-prefix", "PREFIX", "Show IPv4 clients to an IPv6 backend under this prefix, such as 64:ff9b::/96").means("refuse them").rare(),
    row(PROXY, DELIVERY, "pseudo-ipv4", "", "Show IPv6 clients to an IPv4 backend as 240.0.0.0/4 addresses, one for each /64 network").means("refuse them").rare(),
    row(PROXY, DELIVERY, "send-proxy", "v1|v2|spp", "Write a PROXY header to the backend instead of using the client's address (needs no privilege). spp, Simple Proxy Protocol, is for UDP").common(),
    row(PROXY, DELIVERY, "send-tlv", "TYPE=@FILE", "With --send-proxy v2: a TLV of that header, whose value is the first secret of FILE. TYPE=hmac:@FILE: a digest of header and time by it, for another truepeer; repeatable").means("none"),
    row(PROXY, DELIVERY, "splice", "auto|off", "Sessions and UDP flows that last leave user space: the kernel translates their packets, and no byte is copied any more. auto: where kernel and capabilities permit, otherwise they are relayed").is(|| "auto".to_owned()),
    row(PROXY, DELIVERY, "splice-after", "SIZE,TIME", "With --splice auto, hand a session over after so many bytes or at this age; 0: at once").is(|| SpliceAfter::default().to_string()).rare(),
    row(PROXY, DELIVERY, "splice-linger", "drain|leave", "What a stop does with sessions that have left user space: drain waits for them, then ends them; leave lets them go on, and the next start finds them").is(|| "drain".to_owned()).rare(),
    row(PROXY, DELIVERY, "idle-timeout", "TIME|none", "End sessions that are silent in both directions for this long").is(|| "none".to_owned()),

    row(PROXY, TLS, "tls-cert", "FILE|self", "Certificate (PEM, followed by its issuers), or self, for a first try: one that no client trusts, made at the start for the names of --listen; clients then use TLS. Repeatable: the client's SNI selects one, and the first serves all other names. Read again on SIGHUP").common(),
    row(HTTPS, TLS, "tls-cert", "FILE|self", "Certificate (PEM, followed by its issuers), or self, for a first try: one that no client trusts, made for the names of --listen. Repeatable: by SNI, else the first. Read again on SIGHUP").common(),
    row(SERVERS, TLS, "tls-key", "FILE", "The certificate's key (PEM); one for each --tls-cert, in the same order").means("in the certificate's file"),
    row(SERVERS, TLS, "tls-min", "1.2|1.3", "The oldest version of TLS accepted").is(|| "1.2".to_owned()).rare(),
    row(SERVERS, TLS, "tls-suite", "NAME", "Cipher suite, such as TLS_AES_128_GCM_SHA256; repeatable, in order of preference, which overrides the client's").means("all that are safe, in the client's order").rare(),
    row(PROXY, TLS, "tls-alpn", "NAME", "Application protocol to offer (ALPN), such as h2; repeatable, in order of preference").means("none").rare(),
    row(HTTPS, ACME, "acme", "NAME", "Get and renew a certificate for this name from an ACME authority, to whose terms you agree, and which asks at port 80 (--listen-http) or 443; repeatable").common(),
    row(HTTPS, ACME, "acme-directory", "URL|WORD", "The authority: letsencrypt, staging (Let's Encrypt's, for trying), zerossl, or the URL of a directory").is(|| "letsencrypt".to_owned()),
    row(HTTPS, ACME, "acme-email", "ADDRESS", "Whom the authority may write to").means("nobody"),
    row(HTTPS, ACME, "acme-state", "DIR", "Where the account, certificates and keys are kept, for truepeer's user alone").means("$STATE_DIRECTORY/acme (systemd), otherwise /var/lib/truepeer/acme"),
    row(HTTPS, ACME, "acme-eab-id", "ID", "External account binding: the id of the key that the authority has given you").means("none").rare(),
    row(HTTPS, ACME, "acme-eab-key", "FILE", "External account binding: the key, in base64url").means("none").rare(),
    row(HTTPS, ACME, "acme-ca", "FILE", "Authorities with which to verify the ACME authority's own server (PEM)").means("those that this system trusts").rare(),
    row(ACME_TABLE, ACME, "directory", "URL|WORD", "The authority: letsencrypt, staging (Let's Encrypt's, for trying), zerossl, or the URL of a directory").is(|| "letsencrypt".to_owned()),
    row(ACME_TABLE, ACME, "email", "ADDRESS", "Whom the authority may write to").means("nobody"),
    row(ACME_TABLE, ACME, "state", "DIR", "Where the account, certificates and keys are kept, for truepeer's user alone").means("$STATE_DIRECTORY/acme (systemd), otherwise /var/lib/truepeer/acme"),
    row(ACME_TABLE, ACME, "eab-id", "ID", "External account binding: the id of the key that the authority has given you").means("none"),
    row(ACME_TABLE, ACME, "eab-key", "FILE", "External account binding: the key, in base64url").means("none"),
    row(ACME_TABLE, ACME, "ca", "FILE", "Authorities with which to verify the ACME authority's own server (PEM)").means("those that this system trusts"),
    row(HTTPS, TLS, "host", "NAME", "Name of this site, where several [[https]] of a file share an address: the client's SNI selects the site. *.NAME stands for the names one label below; repeatable").means("the names of its certificates"),
    row(HTTPS, TLS, "unknown-host", "first|refuse", "Clients that ask for a name that no site has, or for none: the first site on the address serves them, or they are refused (alert unrecognized_name; a request for such a host gets 421)").means("first").rare(),
    row(HTTPS, TLS, "no-http2", "", "Offer HTTP/1.1 alone (by ALPN), not HTTP/2"),
    row(SERVERS, TLS, "tls-timeout", "TIME", "How long a TLS handshake may take").is(|| time(d::TLS_TIMEOUT)).rare(),
    row(PROXY, TLS, "client-ca", "FILE", "Request client certificates issued by the authorities in this file (PEM)"),
    row(HTTPS, TLS, "client-ca", "FILE", "Request client certificates issued by the authorities in this file (PEM); the origin gets the subject in X-SSL-Client-S-DN"),
    row(SERVERS, TLS, "client-cert", "required|optional", "Whether a client must present a certificate").is(|| "required".to_owned()),

    row(HTTPS, TLS, "max-per-client", "N", "The most connections of one client (an IPv4 address or an IPv6 /64); 0: unlimited. Connections of --trusted senders and from this machine are not counted, unless a PROXY header names the client").means("an eighth of all, 64 to 4096").rare(),
    row(PROXY, ORIGIN_TLS, "origin-tls", "", "Use TLS with backends; their certificates are verified"),
    row(SERVERS, ORIGIN_TLS, "origin-ca", "FILE", "Authorities with which to verify backends (PEM)").means("those that this system trusts"),
    row(SERVERS, ORIGIN_TLS, "origin-insecure", "", "Accept any certificate from backends"),
    row(PROXY, ORIGIN_TLS, "origin-name", "NAME", "The name to request (SNI), which a backend's certificate must have").means("the host of -4 or -6").rare(),
    row(HTTPS, ORIGIN_TLS, "origin-name", "NAME", "The name to request (SNI), which the origin's certificate must have").means("the host of --origin").rare(),
    row(SERVERS, ORIGIN_TLS, "origin-cert", "FILE", "Certificate for backends that request one (PEM, followed by its issuers)").rare(),
    row(SERVERS, ORIGIN_TLS, "origin-key", "FILE", "The key of --origin-cert (PEM)").means("in the certificate's file").rare(),
    row(PROXY, ORIGIN_TLS, "origin-alpn", "NAME", "Application protocol to offer to backends (ALPN), such as http/1.1; repeatable, in order of preference").means("none").rare(),

    row(HTTPS, REQUESTS, "methods", "METHODS", "Allowed methods, separated by commas; others are answered with 403. GET allows HEAD, too").means("all"),
    row(HTTPS, REQUESTS, "max-body", "SIZE", "The longest request body (413)").means("any"),
    row(HTTPS, REQUESTS, "max-head", "SIZE", "The longest head of a request or response (431, 502)").is(|| kib(HttpLimits::default().head_bytes)).rare(),
    row(HTTPS, REQUESTS, "max-fields", "N", "The most fields of a request's or response's head (431, 502); all cookies of an HTTP/2 request are one field").is(|| HttpLimits::default().fields.to_string()).rare(),
    row(HTTPS, REQUESTS, "head-timeout", "TIME", "How long a request's head may take (408)").is(|| time(http().head)).rare(),
    row(HTTPS, REQUESTS, "body-timeout", "TIME", "How long a client may be silent within a request's body (408)").is(|| time(http().body)).rare(),
    row(HTTPS, REQUESTS, "send-timeout", "TIME", "How long a client may take no bytes of a response, or the origin no bytes of a request (504)").is(|| time(http().send)).rare(),
    row(HTTPS, REQUESTS, "min-rate", "SIZE", "The lowest average rate, in bytes a second, at which a client may send a body (408) or take one. Checked once truepeer has waited for the client longer than --body-timeout (sending) or --send-timeout (taking) in total; 0: no limit")
        .is(|| HttpSettings::default().min_rate.to_string()).rare(),
    row(HTTPS, REQUESTS, "keepalive-timeout", "TIME", "How long a connection may wait for its next request").is(|| time(http().keep_alive)).rare(),
    row(HTTPS, REQUESTS, "tunnel-timeout", "TIME", "How long a connection after 101 (a WebSocket) may be silent in both directions; once one side has ended, a minute at most").is(|| time(http().tunnel)).rare(),

    row(PROXY, UDP, "udp-dialect", "DIALECT", "Where the header is: every (v2 in each datagram: dnsdist, udppp), first (v2 in a flow's first: frp, NGINX), standalone (v2 before bare datagrams: Cloudflare Spectrum) or spp (38 bytes in each, and in the replies: Spectrum Simple, EdgeOne)")
        .is(|| "every".to_owned()),
    row(ATTACH, UDP, "udp-dialect", "DIALECT", "Where the header is: every (v2 in each datagram: dnsdist, udppp), first (v2 in a flow's first: frp, NGINX), standalone (v2 before bare datagrams: Cloudflare Spectrum) or spp (38 bytes in each, and in the answers: Spectrum Simple, EdgeOne)").is(|| "every".to_owned()),
    row(PROXY, UDP, "close-after", "TIME", "Forget flows that are silent for this long: with every and spp in both directions, otherwise towards the backend; then it must be less than the sender's own time-out")
        .means("60s with every and spp, 28s with first and standalone"),
    row(ATTACH, UDP, "close-after", "TIME", "How long a client is answered through its sender after its last datagram from there, in whole seconds. With first and standalone the flow is forgotten then: less than the sender's own time-out")
        .means("60s with every and spp, 28s with first and standalone"),
    row(PROXY, UDP, "max-flows", "N", "The most flows at a time; above it, the one that was silent longest is forgotten").means("from the limit of open files").rare(),
    row(ATTACH, PLACE, "max-flows", "COUNT", "TCP: how many connections may be open at a time; others are refused. 1048576 take 53 MiB of kernel memory. Another number needs a moment without connections").is(|| d::ATTACH_MAX_FLOWS.to_string()).rare(),
    row(ATTACH, PLACE, "max-udp-flows", "COUNT", "UDP: how many flows are remembered, 200 bytes of kernel memory each. Another number forgets them once").is(|| d::ATTACH_MAX_UDP_FLOWS.to_string()).rare(),
    row(ATTACH, PLACE, "dev", "DEV|all", "Network device to attach to, or all: also those that are down or have no address yet, but not the ports of a bridge or bond; repeatable").is(|| "all".to_owned()),
    row(ATTACH, PLACE, "cgroup", "PATH", "TCP: show the client only to processes of this cgroup. With --container and --pid: attach everything to this cgroup, which must have the process").means("all processes, or the container's"),
    row(ATTACH, PLACE, "unit", "NAME", "TCP: show the client only to processes of this systemd unit").means("all processes"),
    row(ATTACH, PLACE, "container", "NAME", "Network namespace and cgroup of this container").means("this host's").common(),
    row(ATTACH, PLACE, "engine", "ENGINE", "Its engine: docker, podman or containerd").means("all that are installed are asked").rare(),
    row(ATTACH, PLACE, "pid", "PID", "Network namespace and cgroup of this process of a container").means("this host's"),
    row(ATTACH, PLACE, "netns", "NAME|PATH|PID", "Network namespace, by its name, its path or a process in it").means("this one"),
    row(ATTACH, PLACE, "netns-inode", "INODE", "Do nothing if the network namespace that is named has another inode, as /proc/PID/ns/net shows it: a process number may belong to another process by now").rare(),
    row(ATTACH.or(OCI_HOOK).or(BANNERS).or(WHOIS), PLACE, "pins", "DIR", "Directory of the pins on a BPF file system").is(|| d::PINS.to_owned()).rare(),
    row(ATTACH, ACTION, "replace", "", "Ports that are attached in this network namespace and not named leave: they are no longer served. With add: these ports may be attached already, and change to these rules"),
    row(ATTACH, ACTION, "watch", "", "Stay, and follow: interfaces that appear or are made anew, this host's addresses, and a container that is started again. What is attached stays when the watch ends"),
    row(ATTACH, ACTION, "dry-run", "", "Print what would be attached where, without attaching"),
    row(ATTACH.or(DOCTOR).or(STATUS.or(SESSIONS)).or(PROBE).or(BANS).or(WHOIS), ACTION, "json", "", "Print for machines"),
    row(SERVERS.or(ATTACH), PRINT, "print-config", "", "Print this command line as a configuration file for truepeer serve, and end"),
    row(SESSIONS, ACTION, "client", "PREFIX", "Only those of these clients: an address, a prefix, loopback, private or any").common(),
    row(WHOIS, ACTION, "address", "ADDRESS[:PORT]", "The client's, the sender's, or the one that the server sees (of class E, below 64:ff9b::); without a port, all of this address").common(),
    row(SESSIONS, ACTION, "kill", "", "End them: both ends see a reset").common(),
    row(BAN, ACTION, "clients", "CLIENT", "Whom to ban: an address, a prefix such as 192.0.2.0/24, the path of a list (beginning with / or .), or - for a list on standard input; repeatable").common(),
    row(UNBAN, ACTION, "clients", "CLIENT", "Whose ban ends, as it was written: an address, a prefix, the path of a list (beginning with / or .), or - for a list on standard input; repeatable").common(),
    row(BAN, ACTION, "for", "TIME", "How long; also in days (7d)").means("until unban").common(),
    row(BAN, ACTION, "port", "PORT", "Only connections and datagrams to this port of truepeer").means("all ports").common(),
    row(UNBAN, ACTION, "port", "PORT", "Only the ban for this port").means("those for all ports").common(),
    row(BAN, ACTION, "why", "TEXT", "The reason, which truepeer bans lists").common(),
    row(UNBAN, ACTION, "why", "TEXT", "Only bans with this reason").means("those with any").common(),
    row(BAN, ACTION, "keep", "", "Also after a restart or a reboot: each truepeer with a configuration file, and each attachment, begins with it").common(),
    row(UNBAN, ACTION, "all", "", "Everybody").common(),
    row(CROWDSEC, ACTION, "key", "@FILE", "The file with the key of the local API: cscli bouncers add truepeer -o raw > FILE").common(),
    row(CROWDSEC, ACTION, "url", "http://HOST:PORT", "Where CrowdSec's local API listens").is(|| d::CROWDSEC_URL.to_owned()).common(),
    row(CROWDSEC, ACTION, "interval", "TIME", "How often it is asked for what is new").is(|| "1s".to_owned()),
    row(ATTACH, ACTION, "all", "", "Every network namespace of this machine in which something is attached"),
    row(ATTACH, ACTION, "follow", "", "Stay, and print who is refused, and why. With --json, an object a line"),
    row(ATTACH, ACTION, "refuse-new", "", "While detach waits, refuse new TCP connections from senders that must send a header"),
    row(ATTACH, ACTION, "now", "", "Detach at once: connections with translated sequence numbers are reset, the others lose their client's name"),

    row(PROXY, ROUTING, "routes", "auto|manual", "Rules and routes for the backends' replies: auto (set, and remove at the end) or manual").means("auto if permitted"),
    row(HTTPS, ROUTING, "routes", "auto|manual", "Rules and routes for the origin's replies (--client-address transparent): auto (set, and remove at the end) or manual").means("auto if permitted"),
    row(SERVERS.or(ROUTERS), ROUTING, "table", "N", "Number of the routing table").is(|| d::TABLE.to_string()).rare(),
    row(ROUTERS, ROUTING, "listen-transparent", "[ADDR]:PORT", "TPROXY redirects connections to this listening address; repeatable"),
    row(ROUTERS, ROUTING, "tproxy-ports", "FIRST-LAST", "The ports that TPROXY redirects, for --print"),
    row(ROUTERS, ROUTING, "tproxy-mark", "N", "The mark that the firewall sets on redirected packets").is(|| d::TPROXY_MARK.to_string()).rare(),
    row(PROBE, ACTION, "target", "HOST:PORT", "The receiver: where it listens").common(),
    row(PROBE, ACTION, "listen", "[ADDR:]PORT", "Play the receiver: wait here for a sender, and judge it").common(),
    row(PROBE, ACTION, "as", "PROTOCOL", "The application's protocol, by whose answer a header that was taken shows: echo, http, smtp, ftp, imap, pop3, ssh, redis, mqtt, dns or postgresql; none: only connections that end show something").is(|| "none".to_owned()).common(),
    row(PROBE, ACTION, "udp", "", "Datagrams instead of connections: which dialect is understood. HOST:PORT needs --as dns or echo").common(),
    row(PROBE, ACTION, "from", "ADDR", "This host's address that connections come from").means("the kernel's choice"),
    row(PROBE, ACTION, "client-log", "FILE", "A file in which the server names its clients: whom did it believe in").means("not looked at"),
    row(PROBE, ACTION, "stranger", "", "This host is no sender: a header that is taken is a fault, and nothing else is looked at").common(),
    row(PROBE, ACTION, "patience", "TIME", "How long an answer is waited for").is(|| time(d::PROBE_PATIENCE)),
    row(PROBE, ACTION, "count", "N", "With --listen: how many connections or datagrams are judged").is(|| "1".to_owned()),
    row(PROBE, ACTION, "yes-i-may", "ADDR", "This target is neither loopback nor private, and its owner agrees; repeatable").means("such targets are not probed"),
    row(COMPLETION, ACTION, "shell", "bash|zsh|fish", "The shell").common(),
    row(ROUTES, ACTION, "action", "ACTION", "What to do").common(),
    row(ROUTES, ACTION, "print", "", "Only print the equivalent ip commands").common(),
    row(ROUTES, ACTION, "force", "", "remove: even while a running truepeer uses them").rare(),
    row(DOCTOR, ACTION, "port", "PORT[/udp]", "Tell all about this port: 443, https or 53/udp").means("what is there on this host").common(),
    row(DOCTOR, ACTION, "try", "", "Add missing routes for the duration of the test, as truepeer proxy would. With PORT: ban the test's client (192.0.2.1) for a moment, too").common(),
    row(DOCTOR, ACTION, "timeout", "TIME", "How long to wait for a backend").is(|| time(d::PROBE_TIMEOUT)),
    row(DOCTOR, ACTION, "admin", "PATH|ADDR:PORT", "A running truepeer: its listeners and refusals; with backends, which of its sessions stay in user space, and why").means("the file's"),

    row(HTTPS, STACK, "stack", "kernel|vpp", "Network stack: the kernel's, or that of the VPP started by truepeer vpp up").is(|| "kernel".to_owned()).rare(),
    row(HTTPS, STACK, "vpp-namespace", "ID", "--stack vpp: the namespace").means("the proxy's").rare(),
    row(HTTPS, STACK, "vpp-dir", "DIR", "--stack vpp: the --dir of truepeer vpp up").means("its default").rare(),
    row(HTTPS, STACK, "vpp-library", "FILE", "--stack vpp: VPP's libvcl_ldpreload.so, or its directory").means("the running VPP's").rare(),

    row(VPP, LAYOUT, "loopback", "", "Three loop interfaces with a table and a namespace each: server 172.16.1.1, proxy 172.16.2.1, client 172.16.3.1").common(),
    row(VPP, LAYOUT, "ethernet", "DEV,DEV", "The devices towards the clients and towards the origin: PCI addresses (dpdk), or names of devices that stay with the kernel (veth)").common(),
    row(VPP, LAYOUT, "address", "ADDR,ADDR", "Their addresses in VPP").is(|| d::ETHERNET_ADDRESSES.map(|net| net.to_string()).join(",")).common(),
    row(VPP, LAYOUT, "core", "N", "The core of VPP's main thread (up), or of the program (run)").means("up: the one on which it starts; run: any").common(),
    row(VPP, LAYOUT, "vpp", "PATH", "VPP's program, or its installation prefix").means("in PATH or the usual places").common(),
    row(VPP, LAYOUT, "print", "", "Only print startup.conf and the lines").common(),
    row(VPP, LAYOUT, "dir", "DIR", "Private directory of this VPP: its configuration, sockets and log").means("/run/truepeer/vpp, or in $XDG_RUNTIME_DIR").common(),
    row(VPP, ON_VPP, "namespace", "ID", "The program's namespace: server, proxy or client").means("the proxy's").common(),
    row(VPP, ON_VPP, "library", "FILE", "VPP's libvcl_ldpreload.so, or its directory").means("the running VPP's").common(),
    row(VPP, ON_VPP, "command", "COMMAND", "The program and its arguments").common(),
    row(VPP, ON_VPP, "options", "OPTION", "Options of the demonstration: --stack kernel|vpp|both, --vpp PATH, and wrk2's: -t THREADS, -c CONNECTIONS, -d TIME, -R RATE").common(),

    row(SERVERS, WATCH, "admin", "PATH|ADDR:PORT", "Where to ask about this process: a socket's path (beginning with / or .), an address, which only reads, or whois:PATH, a socket for every user that answers truepeer whois ADDRESS:PORT alone; repeatable").means("nowhere"),
    row(SERVERS, CONFINEMENT, "confine", "auto|off", "After the start, give up every capability, file and system call that is not needed any more, as far as the kernel has the means; off: nothing").means("auto; with --stack vpp: off").rare(),
    row(SERVERS, CONFINEMENT, "user", "NAME|UID[:GID]", "Become this user after the start").means("started by root: the user truepeer if there is one, otherwise a number that is nobody's").rare(),

    row(HTTPS, LOG, "access-log", "", "Log a line for each request"),
    row(PROXY, LOG, "v", "0|1|2", "0: start, stop and warnings; 1: also a line for each session; 2: also changes of state. -v alone: 1").is(|| "0".to_owned()),
    row(HTTPS, LOG, "v", "0|1|2", "0 and 1: start, stop and warnings; 2: also changes of state").is(|| "0".to_owned()),
    row(SERVERS, LOG, "verbose", "", "The same as -v 1"),
    row(SERVERS, LOG, "quiet", "", "Warnings and errors only"),
    row(ASKERS, WATCH, "admin", "PATH|ADDR:PORT", "Where the running truepeer listens: a socket's path (beginning with / or .), or an address, which only reads").means("the first `listen` of [admin] in the configuration file").common(),
    row(TOP, WATCH, "interval", "TIME", "How often to ask").is(|| time(d::TOP_INTERVAL)),
    row(FILE_READERS, FILE, "config", "FILE", "The configuration file").is(|| d::CONFIG.to_owned()).common(),
    row(CHECK, FILE, "show", "", "Print the configuration with every default, as a file that means the same").common(),
    row(CHECK, FILE, "as-service", "", "Also what truepeer.service can't read; as root, /etc/truepeer/truepeer.toml is checked so in any case, with warnings").common(),
    row(SERVE, FILE, "take-over", "", "Take the place of the truepeer that listens on the file's admin socket: its listening sockets and UDP flows come here, and it ends with its last session"),
    row(UPGRADE, FILE, "if-replaced", "", "Only if the running program's file has been replaced"),
    row(RELOAD, FILE, "admin", "PATH", "The admin socket of the running truepeer").means("the file's"),
    row(ADMIN_TABLE, WATCH, "listen", "PATH|ADDR:PORT", "Where to ask about this process: a socket's path (beginning with / or .), an address, which only reads, or whois:PATH, a socket for every user that answers truepeer whois ADDRESS:PORT alone").means("/run/truepeer/admin.sock, if that directory exists"),
    row(LOG_TABLE, LOG, "level", "warn|info|sessions|debug", "warn: warnings and errors; info: start and stop, too; sessions: also a line for each session; debug: also changes of state").is(|| "info".to_owned()),
    row(LOG_TABLE, LOG, "format", "text|json", "Lines for people or for machines").means("text"),
    row(SERVERS, LOG, "log-format", "text|json", "Lines for people or for machines").means("text"),
];
