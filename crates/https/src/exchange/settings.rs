//! The settings of a listener's exchanges.

use std::time::Duration;

use truepeer_http1::HttpLimits;
use truepeer_policy::PrefixSet;

/// Timeouts.
#[derive(Debug, Clone, Copy)]
pub struct HttpTimeouts {
    /// For a request's head, from its first byte (or the connection's first request) to its last.
    pub head: Duration,
    /// Between two requests of a connection.
    pub keep_alive: Duration,
    /// Silence within a request's body.
    pub body: Duration,
    /// While the client (at its minimal rate) or the origin takes nothing of what was sent.
    pub send: Duration,
    /// Silence of the origin before and within a response.
    pub response: Duration,
    /// The wait for `100 Continue` from the origin. After it, the body is sent anyway.
    pub proceed: Duration,
    /// How long a client that has its response may go on sending.
    pub linger: Duration,
    /// For the response to begin, after the client has closed its direction. It may still read (`nc` does) or may have left: only
    /// sending tells.
    pub half_closed: Duration,
    /// Silence in both directions after 101.
    pub tunnel: Duration,
    /// Likewise, once one direction has ended.
    pub half_tunnel: Duration,
}

impl Default for HttpTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            keep_alive: Duration::from_secs(60),
            body: Duration::from_secs(30),
            send: Duration::from_secs(60),
            response: Duration::from_secs(60),
            proceed: Duration::from_secs(1),
            linger: Duration::from_secs(2),
            half_closed: Duration::from_secs(5),
            tunnel: Duration::from_secs(3600),
            half_tunnel: Duration::from_secs(60),
        }
    }
}

/// How requests are handled.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Limits of heads, trailers and chunk extensions.
    pub limits: HttpLimits,
    /// Timeouts.
    pub timeouts: HttpTimeouts,
    /// Methods that may be used; empty: all.
    pub methods: Vec<String>,
    /// The longest request body, in bytes; `None`: any.
    pub max_body: Option<u64>,
    /// The average rate, in bytes a second, that a client must reach while it sends a body or takes a response. Checked once truepeer
    /// has waited for it longer than [`HttpTimeouts::body`] or [`HttpTimeouts::send`] in all. 0: no limit.
    pub min_rate: u64,
    /// Requests that a connection may carry; `None`: any number.
    pub max_requests: Option<u64>,
    /// Whether `Forwarded` and `X-Forwarded-For` tell the client; if not, the connection to the origin does.
    pub tells_the_client: bool,
    /// Senders whose `Forwarded` and similar fields are passed on.
    pub trusted: PrefixSet,
    /// Whether each request leaves a line in the log.
    pub access_log: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            limits: HttpLimits::default(),
            timeouts: HttpTimeouts::default(),
            methods: Vec::new(),
            max_body: None,
            min_rate: 500,
            max_requests: None,
            tells_the_client: true,
            trusted: PrefixSet::new(),
            access_log: false,
        }
    }
}

impl HttpSettings {
    /// Whether requests may have this method. GET brings HEAD along, as it does in NGINX's `limit_except`. CONNECT, which
    /// asks for a tunnel, never gets this far.
    #[must_use]
    pub fn allows(&self, method: &[u8]) -> bool {
        self.methods.is_empty()
            || self
                .methods
                .iter()
                .any(|allowed| allowed.as_bytes() == method || (allowed == "GET" && method == b"HEAD"))
    }
}
