//! The connection to a backend, as the client: with the patience that a tuple in use deserves.

use std::time::Duration;

use truepeer_policy::{OnConflict, Origin, Route};
use truepeer_relay::CloseReason;
use truepeer_relay::io::{ConnectError, Upstream};

use crate::downstream::House;
use crate::reactor::{Reactor, TcpStream, connect};

/// Between attempts to get the client's own tuple, which its earlier connection may still be leaving.
const CONFLICT_RETRY: Duration = Duration::from_millis(20);
const CONFLICT_RETRIES: u8 = 2;

/// Connects to the backend of `route` within `limit`. A tuple that stays in use is given up for another port, or for
/// good, as the route says.
///
/// # Errors
/// The relay's own reasons: ConnectFailed or ConnectTimeout.
pub async fn dial(
    reactor: &Reactor,
    house: &House,
    route: &Route,
    mark: u32,
    limit: Duration,
) -> Result<TcpStream, CloseReason> {
    match reactor.timeout(limit, attempts(reactor, house, route, mark)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(CloseReason::ConnectFailed { route: Box::new(*route), error }),
        Err(_) => Err(CloseReason::ConnectTimeout { route: Box::new(*route), waited: limit }),
    }
}

async fn attempts(
    reactor: &Reactor,
    house: &House,
    route: &Route,
    mark: u32,
) -> Result<TcpStream, ConnectError> {
    let own = Upstream { source: route.source, backend: route.backend.get(), mark };
    // A sender that speaks for itself from this machine is using its tuple: waiting would not free it.
    let retries = if route.origin == Origin::Header { CONFLICT_RETRIES } else { 0 };
    for attempt in 0..=retries {
        if attempt > 0 {
            reactor.sleep(CONFLICT_RETRY).await;
        }
        match connect(reactor, &own).await {
            Err(ConnectError::TupleInUse) => {}
            done => return done,
        }
    }
    if route.on_conflict == OnConflict::Refuse {
        return Err(ConnectError::TupleInUse);
    }
    let any_port = route.source.map(|mut source| {
        source.set_port(0);
        source
    });
    let stream = connect(reactor, &Upstream { source: any_port, ..own }).await?;
    house.journal.on_port_replaced(&house.shard, route, reactor.now());
    Ok(stream)
}
