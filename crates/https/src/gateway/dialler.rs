//! Connects to the origin: TCP from the client's address or truepeer's own, then an optional PROXY header, then
//! optional TLS.

use std::rc::Rc;
use std::sync::Arc;

use rustls::ClientConfig;
use tokio::io::AsyncWriteExt as _;
use truepeer_proto::Tlvs;
use truepeer_session::{CloseReason, Hint, send_proxy};

use crate::client_info::ClientInfo;
use crate::dial::dial;
use crate::downstream::{TlsListener, WorkerState};
use crate::origin::{Dial, DialError, Dialled, Offer, OriginProtocol};
use crate::reactor::Reactor;
use crate::stream::Stream;
use crate::tls::TlsStream;
use crate::tunnel::OriginTls;

/// Connects to the origin of a listener.
#[derive(Debug)]
pub(crate) struct Dialler {
    reactor: Reactor,
    worker: Rc<WorkerState>,
    listening: Rc<TlsListener>,
    origin: Option<OriginTls>,
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
    ) -> Self {
        let configs = origin.as_ref().map(Configs::of);
        Self { reactor, worker, listening, origin, configs }
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

    async fn dial(&self, client_info: &ClientInfo, offer: Offer) -> Result<Dialled<Stream>, DialError> {
        let settings = &self.listening.settings;
        let limit = settings.connect_timeout;
        let dialled = dial(&self.reactor, &self.worker, &client_info.route, settings.mark, limit).await;
        let mut tcp = dialled.map_err(of_close)?;
        if client_info.route.send_proxy.is_some() {
            let header = header(client_info)?;
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

fn header(client_info: &ClientInfo) -> Result<Box<[u8]>, DialError> {
    let tlvs = Tlvs::parse(&client_info.tlvs).unwrap_or(Tlvs::EMPTY);
    let header = send_proxy::header_and(&client_info.route, || client_info.local, tlvs, &[]);
    header.map_err(|error| DialError::Header(error.to_string()))
}
