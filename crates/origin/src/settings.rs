//! The settings of a listener's exchanges.

use std::time::Duration;

use truepeer_http::HttpLimits;
use truepeer_policy::PrefixSet;

/// A client that sends on after its response is read at this average rate at least, in bytes a second. Each
/// second of a slow one costs a descriptor, and it may be slow on purpose.
pub const LINGER_RATE: u64 = 4 << 10;

/// Timeouts.
#[derive(Debug, Clone, Copy)]
pub struct HttpTimeouts {
    /// For a request's head, from its first byte (for a connection's first request, from the start) to its
    /// last.
    pub head: Duration,
    /// Between two requests on a connection.
    pub keep_alive: Duration,
    /// For a last request after a drain has begun: its answer says `Connection: close`. A connection that
    /// closes without saying so may meet a request that is already on its way.
    pub last_request: Duration,
    /// Without bytes of a request's body.
    pub body: Duration,
    /// While the client (at its minimum rate) or the origin takes no bytes.
    pub send: Duration,
    /// Without bytes from the origin, before and within a response.
    pub response: Duration,
    /// For the SETTINGS with which an HTTP/2 origin begins.
    pub settings: Duration,
    /// How long an HTTP/2 origin may be silent while requests are open before it is sent a PING, and then
    /// how long it may take to send anything.
    pub ping: Duration,
    /// Waiting for `100 Continue` from the origin. After it, the body is sent anyway.
    pub proceed: Duration,
    /// How long closing a connection may take.
    pub linger: Duration,
    /// How long a client that has its response may be silent before its connection is closed. It may pause
    /// while it sends the rest of its request.
    pub linger_pause: Duration,
    /// How long such a client may continue to send, at `LINGER_RATE` or faster.
    pub linger_total: Duration,
    /// For the start of the response after the client has ended its direction. It may still read (`nc` does)
    /// or may have left; only sending shows which.
    pub half_closed: Duration,
    /// Without bytes in both directions after 101.
    pub tunnel: Duration,
    /// The same, once one direction has ended.
    pub half_tunnel: Duration,
}

impl Default for HttpTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            keep_alive: Duration::from_secs(60),
            last_request: Duration::from_secs(2),
            body: Duration::from_secs(30),
            send: Duration::from_secs(60),
            response: Duration::from_secs(60),
            settings: Duration::from_secs(5),
            ping: Duration::from_secs(10),
            proceed: Duration::from_secs(1),
            linger: Duration::from_secs(2),
            linger_pause: Duration::from_secs(5),
            linger_total: Duration::from_secs(30),
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
    /// The allowed methods; empty: all.
    pub methods: Vec<String>,
    /// The longest request body in bytes; `None`: unlimited.
    pub max_body: Option<u64>,
    /// The average rate, in bytes a second, that a client must reach while it sends a body or takes a
    /// response. It is checked once truepeer has waited for the client longer than
    /// [`HttpTimeouts::body`] or [`HttpTimeouts::send`] in total. 0: no limit.
    pub min_rate: u64,
    /// How many requests a connection may carry; `None`: unlimited.
    pub max_requests: Option<u64>,
    /// Whether `Forwarded` and `X-Forwarded-For` name the client. If not, the connection to the origin does.
    pub tells_the_client: bool,
    /// Senders whose `Forwarded` and similar fields are passed on.
    pub trusted: PrefixSet,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Requests are answered with a redirect to https on this port, and reach no origin.
    pub redirect: Option<u16>,
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
            redirect: None,
        }
    }
}

impl HttpSettings {
    /// Whether requests may use this method. GET includes HEAD, as in NGINX's `limit_except`. CONNECT, which
    /// asks for a tunnel, is refused earlier.
    #[must_use]
    pub fn allows(&self, method: &[u8]) -> bool {
        self.methods.is_empty()
            || self
                .methods
                .iter()
                .any(|allowed| allowed.as_bytes() == method || (allowed == "GET" && method == b"HEAD"))
    }
}
