//! What a listener's exchanges follow.

use std::time::Duration;

use truepeer_http1::Limits;
use truepeer_policy::PrefixSet;

/// How long each party may take for what.
#[derive(Debug, Clone, Copy)]
pub struct HttpTimeouts {
    /// For a request's head, from its first byte (or the connection's first request) to its last.
    pub head: Duration,
    /// Between two requests of a connection.
    pub keep_alive: Duration,
    /// Without a byte of a request's body.
    pub body: Duration,
    /// Without taking a byte of what was sent (a client: as many as its rate wants): client or origin.
    pub send: Duration,
    /// Without a byte of the response, its head above all.
    pub response: Duration,
    /// Before a body is sent to an origin that has not said whether it wants it.
    pub proceed: Duration,
    /// For whatever is still coming from a client that has its answer already.
    pub linger: Duration,
    /// For the answer to begin, to a client that has closed its direction after its request. Such a one may still listen
    /// (`nc` does), or may have left: nothing tells until something is sent.
    pub half_closed: Duration,
    /// After 101, without a byte in either direction.
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
    /// Bounds of heads, and of what surrounds bodies.
    pub limits: Limits,
    /// How long everybody may take.
    pub timeouts: HttpTimeouts,
    /// Methods that may be used; empty: all.
    pub methods: Vec<String>,
    /// The longest request body, in bytes; `None`: any.
    pub max_body: Option<u64>,
    /// Bytes a second that a client has to manage, on average, while it sends a body or takes one, as soon as it has been
    /// waited for longer than [`HttpTimeouts::body`] or [`HttpTimeouts::send`] in all; 0: any number.
    pub min_rate: u64,
    /// Requests that a connection may carry; `None`: any number.
    pub max_requests: Option<u64>,
    /// Whether `Forwarded` and `X-Forwarded-For` tell the client; if not, the connection to the origin does.
    pub tells_the_client: bool,
    /// Senders whose own word on whom they stand for is passed on.
    pub trusted: PrefixSet,
    /// Whether each request leaves a line in the log.
    pub access_log: bool,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
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
