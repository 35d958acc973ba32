//! From an accepted connection to a stream with a known client.
//!
//! ```text
//! accept ──▶ Policy::admit ──▶ PROXY header, if the sender's rule has one ──▶ Policy::route ──▶ TLS ──▶ Downstream
//! ```
//! The policy's rule for the sender determines whether a header must come. truepeer connects to the backend
//! only after all of this has succeeded.

mod accepting;
mod header;
mod idle;
mod rules;
mod worker_state;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use truepeer_policy::{Route, SenderAddr};
use truepeer_proto::Tlvs;
use truepeer_session::CloseReason;
use truepeer_session::clients::Counted;
use truepeer_session::registry::SessionStage;
use truepeer_stream::open::OpenConnection;
use truepeer_stream::reactor::{TcpStream, refused_late};
use truepeer_stream::stream::Stream;
use truepeer_stream::tls::{HandshakeError, Hello, HelloReader, Look, TlsFacts, TlsStream};

pub use self::accepting::{Closing, accept};
pub(crate) use self::header::put_tlv;
pub(crate) use self::idle::LEAST_IDLE;
pub use self::idle::{Idle, IdleConnections, IdleList};
pub use self::rules::{ListenerTls, TlsListener};
pub use self::worker_state::WorkerState;
use crate::challenges::Challenges;
use crate::close::TlsCloseReason;

/// How long a client may take to read the alert that ends its handshake, and to end the connection.
const AFTER_ALERT: Duration = Duration::from_secs(2);

/// The fatal alert unrecognized_name (RFC 6066, 3), as a record before any key is there.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// A connection whose client is known.
#[derive(Debug)]
pub struct Downstream {
    /// The sender.
    pub sender: SenderAddr,
    /// The client, and the destination.
    pub route: Route,
    /// The TLVs of the sender's header, unchanged.
    pub tlvs: Box<[u8]>,
    /// The result of the TLS handshake.
    pub tls: Option<TlsFacts>,
    /// The connection itself.
    pub stream: Stream,
    /// Bytes of the stream that were read with the header. Always empty with TLS.
    pub first: Vec<u8>,
    /// Counts the connection for its client while it is held.
    pub counted: Option<Counted>,
}

/// Ends a connection whose client has been sent an alert, so that the client can read it.
pub(crate) async fn end_refused(stream: &mut TlsStream<TcpStream>) {
    let reactor = stream.get_ref().reactor().clone();
    let _ = reactor.timeout(AFTER_ALERT, stream.end_refused()).await;
}

impl Downstream {
    /// Reads the header, finds the client, counts the connection for it, and completes the TLS handshake.
    ///
    /// # Errors
    /// One of these steps failed. The connection is closed.
    pub async fn open(
        listening: &TlsListener,
        worker: &WorkerState,
        tcp: TcpStream,
        sender: SenderAddr,
        open: &OpenConnection,
    ) -> Result<Self, TlsCloseReason> {
        let reactor = tcp.reactor().clone();
        let began = reactor.now();
        let opening = header::read(listening, worker, &tcp, sender).await?;
        let route = opening.route;
        let waited = reactor.now().saturating_duration_since(began);
        worker.journal.on_route(&worker.shard, &route, opening.version, waited);
        open.set_route(&route, &listening.policy, &opening.tlvs);
        open.set_stage(SessionStage::Handshake);
        if let Some(range) = route.special {
            worker.journal.on_special_claim(&worker.shard, &route, (sender, range), reactor.now());
        }
        // Before the cost of a handshake.
        let rule = listening.policy.senders.rule(sender);
        let counted = worker.budgets.count_client(&listening.settings.per_client, &route, rule);
        let counted = counted.map_err(CloseReason::from)?;
        let mut downstream = Self {
            sender,
            route,
            tlvs: opening.tlvs,
            tls: None,
            stream: Stream::Plain(tcp),
            first: opening.rest,
            counted,
        };
        if let Some(tls) = &listening.tls {
            let limit = listening.handshake_timeout;
            downstream = downstream.encrypt(tls, &listening.challenges, limit).await?;
        }
        Ok(downstream)
    }

    async fn encrypt(
        mut self,
        tls: &ListenerTls,
        challenges: &Challenges,
        limit: Duration,
    ) -> Result<Self, TlsCloseReason> {
        let Stream::Plain(mut tcp) = self.stream else { return Ok(self) };
        let reactor = tcp.reactor().clone();
        let began = reactor.now();
        let chosen = reactor.timeout(limit, tls.choose(&mut tcp, &mut self.first, challenges)).await;
        let chosen = chosen.unwrap_or(Err(HandshakeError::TimedOut { waited: limit }));
        let (config, is_challenge) = chosen.map_err(TlsCloseReason::of_handshake)?;
        let stream = TlsStream::begin(tcp, config, &self.first);
        let mut stream = stream.map_err(TlsCloseReason::Downstream)?;
        let left = limit.saturating_sub(reactor.now().saturating_duration_since(began));
        let shaken = reactor.timeout(left, stream.handshake()).await;
        let shaken = shaken.unwrap_or(Err(HandshakeError::TimedOut { waited: limit }));
        if let Err(error) = shaken {
            if matches!(error, HandshakeError::Tls { .. }) {
                end_refused(&mut stream).await;
            }
            return Err(TlsCloseReason::of_handshake(error));
        }
        if is_challenge {
            // The authority has seen the certificate, and asks for nothing else.
            end_refused(&mut stream).await;
            return Err(TlsCloseReason::Validated);
        }
        let facts = Some(stream.facts());
        Ok(Self { tls: facts, stream: Stream::Tls(Box::new(stream)), first: Vec::new(), ..self })
    }

    /// Where the client speaks first: waits at most `limit` for the first bytes of a sender that was silent
    /// while a header was optional.
    ///
    /// # Errors
    /// They are a header.
    pub async fn await_late_bytes(&self, limit: Duration) -> Result<(), TlsCloseReason> {
        let tcp = self.stream.tcp();
        let judged = tcp.reactor().timeout(limit, poll_fn(|cx| tcp.poll_late_bytes(cx))).await;
        match judged {
            Ok(Err(error)) => {
                refused_late(&error).map_or(Ok(()), |error| Err(CloseReason::from(error).into()))
            }
            // Each read goes on to judge.
            Ok(Ok(())) | Err(_) => Ok(()),
        }
    }

    /// Keeps the connection and the first bytes of its stream, and frees the rest (TLVs, certificate),
    /// because a connection may be open for a long time.
    #[must_use]
    pub fn into_stream(self) -> (Stream, Vec<u8>) {
        (self.stream, self.first)
    }

    /// The TLVs of the sender's header.
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

impl ListenerTls {
    /// The configuration for a client, and whether it is the answer to an authority's challenge. What is read
    /// to find out stays in `first`.
    async fn choose(
        &self,
        tcp: &mut TcpStream,
        first: &mut Vec<u8>,
        challenges: &Challenges,
    ) -> Result<(Arc<ServerConfig>, bool), HandshakeError> {
        if let Self::One(tls) = self
            && !challenges.has_names()
        {
            return Ok((tls.config(), false));
        }
        let hello = read_hello(tcp, first).await?;
        if let Some(config) = hello.as_ref().and_then(|hello| challenges.choose(hello)) {
            return Ok((config, true));
        }
        let config = match (self, hello) {
            (Self::One(tls), _) => tls.config(),
            (Self::Sites(sites), None) => sites.any(),
            (Self::Sites(sites), Some(hello)) => {
                let Some(config) = sites.choose(&hello) else {
                    refuse_name(tcp).await;
                    return Err(HandshakeError::UnknownName { name: hello.name });
                };
                config
            }
        };
        Ok((config, false))
    }
}

/// `None`: it can't be read, or the connection has ended.
async fn read_hello(tcp: &TcpStream, first: &mut Vec<u8>) -> io::Result<Option<Hello>> {
    let (mut reader, mut seen) = (HelloReader::default(), 0);
    loop {
        match reader.look(&first[seen..]) {
            Look::Whole(hello) => return Ok(Some(hello)),
            Look::Unreadable => return Ok(None),
            Look::NeedMore => seen = first.len(),
        }
        if header::receive(tcp, first).await? == 0 {
            return Ok(None);
        }
    }
}

/// Tells a client that no site has its name, and ends the connection so that the client can read it.
async fn refuse_name(tcp: &mut TcpStream) {
    let reactor = tcp.reactor().clone();
    let told = async {
        tcp.write_all(&UNRECOGNIZED_NAME).await?;
        tcp.shutdown().await?;
        let mut nothing = [0; 1024];
        while tcp.read(&mut nothing).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = reactor.timeout(AFTER_ALERT, told).await;
}
