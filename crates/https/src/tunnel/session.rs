//! One session, from the accepted connection to its log line.

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::AsyncWriteExt as _;
use truepeer_policy::{Route, SenderAddr, SentTlv};
use truepeer_proto::Tlvs;
use truepeer_session::budget::Permit;
use truepeer_session::counters::Counter;
use truepeer_session::registry::SessionStage;
use truepeer_session::{Ended, send_proxy};
use truepeer_stream::open::{Listed, OpenConnection};
use truepeer_stream::pump::{ByteCounts, IdleTimeouts, Pump, PumpEnd, Side};
use truepeer_stream::reactor::{TcpStream, refused_late};
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Stream;
use truepeer_stream::tls::{ClientTls, HandshakeError, TlsStream};

use super::tlvs;
use crate::close::TlsCloseReason;
use crate::dial::dial;
use crate::downstream::{Downstream, TlsListener, WorkerState, end_refused};

/// The TLS configuration towards backends.
#[derive(Debug, Clone)]
pub struct OriginTls {
    /// How.
    pub tls: Arc<ClientTls>,
}

/// The state that the sessions of a listener share.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub(crate) listening: Rc<TlsListener>,
    pub(crate) origin: Option<OriginTls>,
    pub(crate) worker: Rc<WorkerState>,
}

/// Serves one connection.
pub(crate) async fn serve(
    shared: Rc<SessionContext>,
    tcp: TcpStream,
    sender: SenderAddr,
    _permit: Permit,
    listed: Listed,
) {
    let reactor = tcp.reactor().clone();
    let open = Rc::clone(listed.connection());
    let mut record = Record::new(Rc::clone(&shared), sender, reactor.now(), open);
    let (Ok(reason) | Err(reason)) = session(&shared, &mut record, tcp, sender).await;
    let reason = listed.connection().ended().map_or(reason, TlsCloseReason::from);
    record.end(&reason, reactor.now());
}

async fn session(
    shared: &SessionContext,
    record: &mut Record,
    tcp: TcpStream,
    sender: SenderAddr,
) -> Result<TlsCloseReason, TlsCloseReason> {
    let reactor = tcp.reactor().clone();
    // Boxed: the memory of the handshakes must not stay with the session.
    let mut downstream = {
        let opening = Downstream::open(&shared.listening, &shared.worker, tcp, sender, &record.open);
        Box::pin(opening).await?
    };
    if let Some(facts) = &downstream.tls {
        record.open.set_tls(facts, &shared.listening.policy, &tlvs::for_backend(&downstream));
    }
    record.open.set_stage(SessionStage::Connecting);
    let _counted = downstream.counted.take();
    record.route = Some(downstream.route);
    record.tls = downstream.tls.as_ref().map(ToString::to_string);
    let upstream = match Box::pin(reach(shared, &downstream)).await {
        Ok(upstream) => upstream,
        Err(reason) => {
            if reason.resets_downstream() {
                downstream.stream.tcp().reset_when_closed();
            }
            return Err(reason);
        }
    };
    let worker = &shared.worker;
    worker.shard.count(Counter::Relayed);
    record.open.set_stage(SessionStage::Relaying);
    let backlog = worker.budgets.backlog_bytes.clone();
    let counted = ByteCounts { shard: Arc::clone(&worker.shard), open: Some(Rc::clone(&record.open)) };
    let pump = Pump::new(downstream.first, Vec::new(), backlog, counted);
    let pump = record.pump.insert(pump);
    let idle = shared.listening.settings.idle_timeout;
    let timeouts = IdleTimeouts { both: idle, half: idle };
    let (downstream, upstream) = (SharedStream::new(downstream.stream), SharedStream::new(upstream));
    let end = pump.run(&reactor, timeouts, &downstream, &upstream).await;
    drop(upstream);
    if let Stream::Tls(mut stream) = downstream.into_inner()
        && stream.is_broken()
    {
        end_refused(&mut stream).await;
    }
    Ok(reason(&end))
}

fn reason(end: &PumpEnd) -> TlsCloseReason {
    let tcp = match end {
        PumpEnd::Finished => truepeer_session::CloseReason::Finished,
        PumpEnd::Idle => truepeer_session::CloseReason::Idle,
        PumpEnd::Broken(side, error) => match (side, error.kind()) {
            (Side::Downstream, ErrorKind::UnexpectedEof) => return TlsCloseReason::TruncatedByClient,
            (Side::Upstream, ErrorKind::UnexpectedEof) => return TlsCloseReason::TruncatedByBackend,
            (Side::Downstream, _) => match refused_late(error) {
                Some(header) => header.into(),
                None => truepeer_session::CloseReason::ResetByClient,
            },
            (Side::Upstream, _) => truepeer_session::CloseReason::ResetByBackend,
        },
    };
    tcp.into()
}

/// Connects to the backend, sends the PROXY header and completes the TLS handshake, as far as configured.
async fn reach(shared: &SessionContext, downstream: &Downstream) -> Result<Stream, TlsCloseReason> {
    let (route, listening) = (&downstream.route, &*shared.listening);
    let settings = &listening.settings;
    let reactor = downstream.stream.tcp().reactor();
    let mut tcp = dial(reactor, &shared.worker, route, settings.mark, settings.connect_timeout).await?;
    let failed = |error| TlsCloseReason::Upstream { route: Box::new(*route), error };
    if route.send_proxy.is_some() {
        let header = header(downstream, &listening.policy.delivery.send_tlvs)?;
        tcp.write_all(&header).await.map_err(|error| failed(error.into()))?;
    }
    let Some(OriginTls { tls }) = &shared.origin else { return Ok(Stream::Plain(tcp)) };
    let handshake = TlsStream::connect(tcp, tls.config(), tls.name());
    match reactor.timeout(listening.handshake_timeout, handshake).await {
        Ok(shaken) => Ok(Stream::Tls(Box::new(shaken.map_err(failed)?))),
        Err(_) => Err(failed(HandshakeError::TimedOut { waited: listening.handshake_timeout })),
    }
}

fn header(downstream: &Downstream, own: &[SentTlv]) -> Result<Box<[u8]>, TlsCloseReason> {
    let tlvs = tlvs::for_backend(downstream);
    let tlvs = Tlvs::parse(&tlvs).unwrap_or(Tlvs::EMPTY);
    let header = send_proxy::header_and(&downstream.route, || downstream.local_address(), tlvs, own, &[]);
    Ok(header.map_err(truepeer_session::CloseReason::Unencodable)?)
}

/// Data for a session's log line. The line is written at the latest when this is dropped, so also when
/// truepeer stops.
struct Record {
    shared: Rc<SessionContext>,
    sender: SenderAddr,
    route: Option<Route>,
    tls: Option<String>,
    began: Instant,
    pump: Option<Pump>,
    open: Rc<OpenConnection>,
    ended: bool,
}

impl Record {
    fn new(shared: Rc<SessionContext>, sender: SenderAddr, began: Instant, open: Rc<OpenConnection>) -> Self {
        Self { shared, sender, route: None, tls: None, began, pump: None, open, ended: false }
    }

    fn end(&mut self, reason: &TlsCloseReason, now: Instant) {
        self.ended = true;
        let worker = &*self.shared.worker;
        let (bytes_up, bytes_down) = self.pump.as_ref().map_or((0, 0), Pump::delivered);
        let tags = self.open.tags();
        let ended = Ended {
            sender: self.sender,
            route: self.route.as_ref(),
            listener: self.shared.listening.settings.address,
            bytes_up,
            bytes_down,
            began: self.began,
            tls: self.tls.as_deref(),
            tags: tags.as_deref(),
        };
        worker.journal.on_close(&worker.shard, &ended, reason, now);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.ended {
            self.end(&truepeer_session::CloseReason::Stopping.into(), Instant::now());
        }
    }
}
