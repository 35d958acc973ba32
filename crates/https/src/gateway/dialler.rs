//! Connects to the origin: TCP from the client's address or truepeer's own, then an optional PROXY header,
//! then optional TLS.

use std::rc::Rc;
use std::sync::Arc;

use rustls::ClientConfig;
use tokio::io::AsyncWriteExt as _;
use truepeer_origin::{ClientInfo, Dial, DialError, Dialled, Offer, OriginProtocol};
use truepeer_policy::{BackendAddr, Backends, Route, SentTlv};
use truepeer_proto::Tlvs;
use truepeer_session::{CloseReason, Hint, send_proxy};
use truepeer_stream::reactor::Reactor;
use truepeer_stream::stream::Stream;
use truepeer_stream::tls::TlsStream;

use crate::dial::dial;
use crate::downstream::{TlsListener, WorkerState};
use crate::tunnel::{OriginTls, tlvs};

/// Connects to the origin of a listener.
#[derive(Debug)]
pub(crate) struct Dialler {
    reactor: Reactor,
    worker: Rc<WorkerState>,
    listening: Rc<TlsListener>,
    origin: Option<OriginTls>,
    /// The origin's addresses; `None`: those of the client's route.
    backends: Option<Backends>,
    /// The TLS configurations for each [`Offer`].
    configs: Option<Configs>,
}

#[derive(Debug)]
struct Configs {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    either: Arc<ClientConfig>,
}

impl Configs {
    fn of(OriginTls { tls }: &OriginTls) -> Self {
        let offering = |protocols: &[&[u8]]| {
            let mut config = (*tls.config()).clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        Self { http1: tls.config(), http2: offering(&[HTTP2]), either: offering(&[HTTP2, b"http/1.1"]) }
    }

    fn for_offer(&self, offer: Offer) -> Arc<ClientConfig> {
        Arc::clone(match offer {
            Offer::Http1 => &self.http1,
            Offer::Http2 => &self.http2,
            Offer::Either => &self.either,
        })
    }
}

/// The name of HTTP/2 in ALPN.
const HTTP2: &[u8] = b"h2";

impl Dialler {
    pub(super) fn new(
        reactor: Reactor,
        worker: Rc<WorkerState>,
        listening: Rc<TlsListener>,
        origin: Option<OriginTls>,
        backends: Option<Backends>,
    ) -> Self {
        let configs = origin.as_ref().map(Configs::of);
        Self { reactor, worker, listening, origin, backends, configs }
    }

    /// The client's route, to this origin.
    fn route(&self, client_info: &ClientInfo) -> Route {
        let usual = client_info.route;
        let of_family = |backends: Backends| {
            if usual.client.ip().is_ipv4() { backends.ipv4 } else { backends.ipv6 }
        };
        Route { backend: self.backends.and_then(of_family).unwrap_or(usual.backend), ..usual }
    }

    /// The version to speak: without TLS the origin can't choose one.
    pub(super) fn protocol(&self, wanted: OriginProtocol) -> OriginProtocol {
        match wanted {
            OriginProtocol::Auto if self.origin.is_none() => OriginProtocol::Http1,
            wanted => wanted,
        }
    }
}

impl Dial for Dialler {
    type Stream = Stream;

    fn uses_tls(&self) -> bool {
        self.origin.is_some()
    }

    fn backend(&self, client_info: &ClientInfo) -> BackendAddr {
        self.route(client_info).backend
    }

    async fn dial(&self, client_info: &ClientInfo, offer: Offer) -> Result<Dialled<Stream>, DialError> {
        let route = self.route(client_info);
        if let Some(source) = route.source.filter(|source| source.is_ipv4() != route.backend.ip().is_ipv4()) {
            return Err(DialError::OtherFamily(if source.is_ipv4() { "IPv4" } else { "IPv6" }));
        }
        let settings = &self.listening.settings;
        let limit = settings.connect_timeout;
        let dialled = dial(&self.reactor, &self.worker, &route, settings.mark, limit).await;
        let mut tcp = dialled.map_err(of_close)?;
        if route.send_proxy.is_some() {
            let header = header(client_info, &route, offer, &self.listening.policy.delivery.send_tlvs)?;
            tcp.write_all(&header).await.map_err(|error| DialError::Header(error.to_string()))?;
        }
        let (Some(OriginTls { tls }), Some(configs)) = (&self.origin, &self.configs) else {
            return Ok(Dialled { stream: Stream::Plain(tcp), speaks_http2: offer == Offer::Http2 });
        };
        let handshake = TlsStream::connect(tcp, configs.for_offer(offer), tls.name());
        match self.reactor.timeout(self.listening.handshake_timeout, handshake).await {
            Ok(Ok(stream)) => {
                let speaks_http2 = stream.alpn() == Some(HTTP2);
                if offer == Offer::Http2 && !speaks_http2 {
                    return Err(DialError::NotHttp2("it chose no protocol by ALPN"));
                }
                Ok(Dialled { stream: Stream::Tls(Box::new(stream)), speaks_http2 })
            }
            Ok(Err(error)) if error.is_a_closed_connection() => {
                Err(DialError::ClosedAtStart("during the TLS handshake"))
            }
            Ok(Err(error)) if offer == Offer::Http2 && error.is_no_common_protocol() => {
                Err(DialError::NotHttp2("it refuses it by ALPN (alert no_application_protocol)"))
            }
            Ok(Err(error)) if offer == Offer::Http1 && error.is_no_common_protocol() => {
                Err(DialError::NotHttp1)
            }
            Ok(Err(error)) => {
                Err(DialError::Tls { problem: error.to_string(), hint: error.hint(Hint::OriginAuthority) })
            }
            Err(_) => Err(DialError::Timeout(self.listening.handshake_timeout)),
        }
    }
}

fn of_close(reason: CloseReason) -> DialError {
    match reason {
        CloseReason::ConnectFailed { error, .. } => DialError::Connect(error),
        CloseReason::ConnectTimeout { waited, .. } => DialError::Timeout(waited),
        other => DialError::Header(other.to_string()),
    }
}

/// The PROXY header of a connection. It is sent before the origin can choose by ALPN: [`Offer::Either`] then
/// names HTTP/1.1.
fn header(
    client_info: &ClientInfo,
    route: &Route,
    offer: Offer,
    own: &[SentTlv],
) -> Result<Box<[u8]>, DialError> {
    let alpn = if offer == Offer::Http2 { HTTP2 } else { b"http/1.1" };
    let tlvs = tlvs::with_alpn(&client_info.tlvs, alpn);
    let tlvs = Tlvs::parse(&tlvs).unwrap_or(Tlvs::EMPTY);
    let header = send_proxy::header_and(route, || client_info.local, tlvs, own, &[]);
    header.map_err(|error| DialError::Header(error.to_string()))
}
