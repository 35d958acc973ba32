//! From an accepted connection to a stream whose client is known.
//!
//! ```text
//! accept ──▶ Policy::admit ──▶ PROXY header, if the sender's rule has one ──▶ Policy::route ──▶ TLS ──▶ Downstream
//! ```
//! Whether a header comes is never guessed: the policy's rule for the sender says so, TLS or not. Nothing is dialled
//! before all of this has succeeded.

mod accepting;
mod header;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use truepeer_policy::{Policy, Route, SenderAddr};
use truepeer_proto::Tlvs;
use truepeer_session::Journal;
use truepeer_session::budget::Budgets;
use truepeer_session::counters::Shard;
use truepeer_session::settings::ListenerSettings;

pub use self::accepting::accept;
use crate::close::CloseReason;
use crate::reactor::TcpStream;
use crate::stream::Stream;
use crate::tls::{Facts, HandshakeError, ServerTls, TlsStream};

/// What the connections of one worker share.
#[derive(Debug, Clone)]
pub struct House {
    /// Where is written what happened.
    pub journal: Arc<Journal>,
    /// The worker's counters.
    pub shard: Arc<Shard>,
    /// What all workers' connections together may hold.
    pub budgets: Budgets,
}

/// A listener: what it follows, and who may do what on it.
#[derive(Debug, Clone)]
pub struct Listening {
    /// How connections are handled.
    pub settings: ListenerSettings,
    /// Whose they are and where they go.
    pub policy: Arc<Policy>,
    /// Set: clients speak TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// How long a TLS handshake may take, with clients and with backends.
    pub handshake_timeout: Duration,
}

/// A connection whose client is known.
#[derive(Debug)]
pub struct Downstream {
    /// Who opened the connection.
    pub sender: SenderAddr,
    /// Whose it is and where it goes.
    pub route: Route,
    /// The extensions (TLVs) of the sender's header, as they came.
    pub tlvs: Box<[u8]>,
    /// What TLS has agreed on.
    pub tls: Option<Facts>,
    /// The connection itself.
    pub stream: Stream,
    /// What was read of the stream already; where TLS is spoken: nothing.
    pub first: Vec<u8>,
}

impl Downstream {
    /// What is still to be done with an accepted connection, before it is of use.
    ///
    /// # Errors
    /// Why it is of none. The connection is closed.
    pub async fn open(
        listening: &Listening,
        house: &House,
        tcp: TcpStream,
        sender: SenderAddr,
    ) -> Result<Self, CloseReason> {
        let reactor = tcp.reactor().clone();
        let opening = header::read(listening, house, &tcp, sender).await?;
        let route = opening.route;
        if let Some(range) = route.special {
            house.journal.on_special_claim(&route, sender, range, reactor.now());
        }
        let mut downstream = Self {
            sender,
            route,
            tlvs: opening.tlvs,
            tls: None,
            stream: Stream::Plain(tcp),
            first: opening.rest,
        };
        if let Some(tls) = &listening.tls {
            downstream = downstream.encrypt(tls, listening.handshake_timeout).await?;
        }
        Ok(downstream)
    }

    async fn encrypt(self, tls: &ServerTls, limit: Duration) -> Result<Self, CloseReason> {
        let Stream::Plain(tcp) = self.stream else { return Ok(self) };
        let reactor = tcp.reactor().clone();
        let handshake = TlsStream::accept(tcp, tls.current(), &self.first);
        let stream = match reactor.timeout(limit, handshake).await {
            Ok(shaken) => shaken.map_err(CloseReason::Downstream)?,
            Err(_) => {
                return Err(CloseReason::Downstream(HandshakeError::TimedOut { waited: limit }));
            }
        };
        let facts = Some(stream.facts());
        Ok(Self { tls: facts, stream: Stream::Tls(Box::new(stream)), first: Vec::new(), ..self })
    }

    /// The connection alone. What is known of it, the sender's extensions and certificate among it, is forgotten: a
    /// connection may last for long.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        self.stream
    }

    /// The extensions of the sender's header.
    #[must_use]
    pub fn tlvs(&self) -> Tlvs<'_> {
        Tlvs::parse(&self.tlvs).unwrap_or(Tlvs::EMPTY)
    }

    /// The address that the sender connected to.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.stream.tcp().local_address().ok()
    }
}
