//! The checks of origins: a task for each address in each worker. The first task that is awake when a check
//! is due does it. So checks go on as long as any connection has the rules, and a busy worker leaves them to
//! the others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};
use truepeer_origin::{CHECK_LIMIT, ClientInfo, Health, HealthChange};
use truepeer_policy::{Backends, ClientAddr, OnConflict, Policy, Route, SenderAddr};
use truepeer_stream::reactor::Reactor;

use super::dialler::Dialler;
use crate::downstream::TlsListener;
use crate::exchange::{ProbeFailure, Service};

/// If this worker was held up for longer than this, a check that timed out says nothing about the origin.
const HELD_UP: Duration = Duration::from_millis(500);

/// Starts the tasks.
pub(super) fn watch_all(service: &Rc<Service<Dialler>>, listening: &TlsListener) {
    for number in 0..service.origins.count() {
        for health in service.origins.at(number).health.all() {
            let address = health.check().address;
            let Some(client_info) = own(&listening.policy, service, number, address.ip()) else { continue };
            let (reactor, weak) = (service.reactor.clone(), Rc::downgrade(service));
            let health = Arc::clone(health);
            // An attendant: a loop that drains doesn't wait for it.
            service.reactor.spawn_attendant(watch(reactor, weak, number, health, client_info));
        }
    }
}

/// truepeer as the client of `to`: connections come from its own address, and a PROXY header says LOCAL.
fn own(policy: &Policy, service: &Service<Dialler>, number: usize, to: IpAddr) -> Option<ClientInfo> {
    let Backends { ipv4, ipv6 } = policy.delivery.backends;
    let of_family = |client: IpAddr, backend| {
        let client = SocketAddr::from((client, 0));
        let route = Route {
            client: ClientAddr::new(client),
            origin: truepeer_policy::Origin::Local,
            backend,
            source: None,
            on_conflict: OnConflict::Ephemeral,
            send_proxy: policy.delivery.send_proxy,
            destination: None,
            special: None,
        };
        ClientInfo::own(SenderAddr::new(client), route)
    };
    let either = ipv4.or(ipv6)?;
    let families = [
        of_family(Ipv4Addr::LOCALHOST.into(), ipv4.unwrap_or(either)),
        of_family(Ipv6Addr::LOCALHOST.into(), ipv6.unwrap_or(either)),
    ];
    families.into_iter().find(|one| service.backend(number, one).ip() == to)
}

/// Checks until the listener's rules have changed and the last connection with them has ended.
async fn watch(
    reactor: Reactor,
    service: Weak<Service<Dialler>>,
    number: usize,
    health: Arc<Health>,
    client_info: ClientInfo,
) {
    loop {
        let Some(service) = service.upgrade() else { return };
        if let Err(wait) = health.take_turn(Instant::now()) {
            drop(service);
            // Timers begin at the start of the loop's turn, so this one may expire a little early.
            reactor.sleep(wait + Duration::from_millis(1)).await;
            continue;
        }
        let (checked, held_up) =
            with_delay(&reactor, check(&reactor, &service, number, &health, &client_info)).await;
        let is_up = match &checked {
            Ok(()) => Some(true),
            Err(ProbeFailure::Own(_)) => None,
            Err(failure) if failure.is_timeout() && held_up > HELD_UP => None,
            Err(_) => Some(false),
        };
        let (origin, serves) = (health.check().address, service.origins.name(number));
        match (health.note(is_up, Instant::now()), checked) {
            (Some(HealthChange::Down), Err(why)) => {
                warn!(%origin, requests = %serves, "an origin is down: {why}; its requests get 503 until a check succeeds");
            }
            (Some(HealthChange::Up), _) => info!(%origin, requests = %serves, "an origin is up again"),
            _ => {}
        }
    }
}

async fn check(
    reactor: &Reactor,
    service: &Service<Dialler>,
    number: usize,
    health: &Health,
    client_info: &ClientInfo,
) -> Result<(), ProbeFailure> {
    let rule = &health.check().rule;
    let check = service.probe(number, client_info, rule.path.as_deref(), &rule.host);
    reactor.timeout(CHECK_LIMIT, check).await.unwrap_or(Err(ProbeFailure::Timeout))
}

/// Runs `future`. Returns with it how late a timer was at most meanwhile: so long was this worker held up.
async fn with_delay<T>(reactor: &Reactor, future: impl Future<Output = T>) -> (T, Duration) {
    const STEP: Duration = Duration::from_millis(100);
    let mut future = std::pin::pin!(future);
    let mut longest = Duration::ZERO;
    loop {
        let began = Instant::now();
        let ended = reactor.timeout(STEP, future.as_mut()).await;
        longest = longest.max(began.elapsed().saturating_sub(STEP));
        if let Ok(ended) = ended {
            return (ended, longest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_was_held_up_knows_it() {
        let reactor = Reactor::new().unwrap();
        let own = reactor.clone();
        let delays = reactor.block_on(async move {
            let waits = with_delay(&own, own.sleep(Duration::from_millis(300))).await.1;
            let holds = async {
                own.sleep(Duration::from_millis(1)).await;
                std::thread::sleep(2 * HELD_UP);
                own.sleep(Duration::from_millis(1)).await;
            };
            (waits, with_delay(&own, holds).await.1)
        });
        let (waits, holds) = delays.unwrap();
        assert!(waits < HELD_UP && holds > HELD_UP, "{waits:?} {holds:?}");
    }
}
