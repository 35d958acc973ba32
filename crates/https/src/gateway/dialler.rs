//! Connects to the origin: TCP from the client's address or truepeer's own, then an optional PROXY header, then
//! optional TLS.

use std::rc::Rc;

use tokio::io::AsyncWriteExt as _;
use truepeer_proto::Tlvs;
use truepeer_session::{CloseReason, Hint, send_proxy};

use crate::client_info::ClientInfo;
use crate::dial::dial;
use crate::downstream::{TlsListener, WorkerState};
use crate::origin::{Dial, DialError};
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
}

impl Dialler {
    pub(super) fn new(
        reactor: Reactor,
        worker: Rc<WorkerState>,
        listening: Rc<TlsListener>,
        origin: Option<OriginTls>,
    ) -> Self {
        Self { reactor, worker, listening, origin }
    }
}

impl Dial for Dialler {
    type Stream = Stream;

    async fn dial(&self, client_info: &ClientInfo) -> Result<Stream, DialError> {
        let settings = &self.listening.settings;
        let limit = settings.connect_timeout;
        let dialled = dial(&self.reactor, &self.worker, &client_info.route, settings.mark, limit).await;
        let mut tcp = dialled.map_err(of_close)?;
        if client_info.route.send_proxy.is_some() {
            let header = header(client_info)?;
            tcp.write_all(&header).await.map_err(|error| DialError::Header(error.to_string()))?;
        }
        let Some(OriginTls { tls }) = &self.origin else { return Ok(Stream::Plain(tcp)) };
        let handshake = TlsStream::connect(tcp, tls.config(), tls.name());
        match self.reactor.timeout(self.listening.handshake_timeout, handshake).await {
            Ok(Ok(stream)) => Ok(Stream::Tls(Box::new(stream))),
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
