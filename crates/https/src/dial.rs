//! Connecting to a backend from the client's address. A tuple that is in use, and a backend without a
//! route, are tried again.

use std::time::Duration;

use truepeer_policy::Route;
use truepeer_session::CloseReason;
use truepeer_session::connect_as::{AfterConflict, CONFLICT_RETRY, ConnectError, ROUTE_RETRY, Upstream};
use truepeer_session::histogram::Timing;
use truepeer_stream::reactor::{Reactor, TcpStream, connect};

use crate::downstream::WorkerState;

/// Connects to the backend of `route` within `limit`. If the client's tuple stays in use, the route's
/// conflict rule decides: another port, or an error.
///
/// # Errors
/// ConnectFailed or ConnectTimeout.
pub async fn dial(
    reactor: &Reactor,
    worker: &WorkerState,
    route: &Route,
    mark: u32,
    limit: Duration,
) -> Result<TcpStream, CloseReason> {
    let began = reactor.now();
    match reactor.timeout(limit, attempts(reactor, worker, route, mark)).await {
        Ok(Ok(stream)) => {
            let took = reactor.now().saturating_duration_since(began);
            worker.shard.observe(Timing::BackendConnect, took);
            Ok(stream)
        }
        Ok(Err(error)) => Err(CloseReason::ConnectFailed { route: Box::new(*route), error }),
        Err(_) => Err(CloseReason::ConnectTimeout { route: Box::new(*route), waited: limit }),
    }
}

async fn attempts(
    reactor: &Reactor,
    worker: &WorkerState,
    route: &Route,
    mark: u32,
) -> Result<TcpStream, ConnectError> {
    let own = Upstream::of(route, mark);
    let mut retries = 0;
    let conflict = loop {
        let error = match connect(reactor, &own).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match AfterConflict::of(&error, route, retries) {
            Some(AfterConflict::Retry) => {
                reactor.sleep(CONFLICT_RETRY).await;
                retries += 1;
            }
            Some(AfterConflict::AwaitRoute) => reactor.sleep(ROUTE_RETRY).await,
            Some(AfterConflict::AnyPort) => break error,
            Some(AfterConflict::GiveUp) | None => return Err(error),
        }
    };
    let stream = connect(reactor, &own.from_any_port()).await?;
    worker.journal.on_port_replaced(&worker.shard, route, &conflict, reactor.now());
    Ok(stream)
}
