//! Carrying out a configuration: limits, sockets, routes, the relay, and signals until the end.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use anyhow::Context as _;
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{info, warn};
use truepeer_proto::{Limits, Versions};
use truepeer_relay::budget::{Budget, Budgets};
use truepeer_relay::counters::Counter;
use truepeer_relay::settings::ListenerSettings;
use truepeer_relay::{Listening, Relay};
use truepeer_sys::{inherit, limits, socket};

use crate::config::{Config, ListenerConfig, Protocol};
use crate::routes::{self, guard::RoutesGuard};

/// Serves until SIGTERM or SIGINT. SIGUSR1 logs the counters.
///
/// # Errors
/// Whatever keeps it from serving at all; once it serves, nothing that a sender, client or backend does ends it.
pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    // First of all: inherited descriptors have fixed numbers, and nothing else may have taken them.
    let inherited = inherit::take_listening_sockets();
    check_privilege(config)?;
    // Before the threads: a signal that comes while they start must not be lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1]).context("can't wait for signals")?;
    let routes = RoutesGuard::establish(config.routes.mode, &routes::options::of_config(config)?.setup()?)?;
    let relay = start(config, inherited, routes.upstream_mark())?;
    for address in relay.listening() {
        info!("listening on {address}");
    }
    for signal in signals.forever() {
        if signal == SIGUSR1 {
            report(&relay);
            continue;
        }
        info!("stopping with {} sessions open", relay.sessions());
        break;
    }
    Ok(())
}

/// Every session would fail without it, and only when it comes.
fn check_privilege(config: &Config) -> anyhow::Result<()> {
    if config.listeners.iter().all(|listener| listener.send_proxy.is_some()) {
        return Ok(()); // nobody's address is used
    }
    let probe = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let answer = socket::tcp_socket(probe).and_then(|socket| socket::set_transparent(socket.as_fd(), probe));
    match answer {
        Err(error) if error.errno == Errno::PERM => Err(anyhow::Error::new(error).context(
            "backends can't be made to see clients: give truepeer CAP_NET_RAW or CAP_NET_ADMIN (root, setcap \
             cap_net_raw,cap_net_admin+ep, or AmbientCapabilities= of a unit)",
        )),
        _ => Ok(()),
    }
}

fn start(config: &Config, inherited: Vec<OwnedFd>, mark: Option<u32>) -> anyhow::Result<Relay> {
    let open_files = limits::raise_open_files().unwrap_or_else(|error| {
        warn!("{error}: going on with the limit of open files as it is");
        limits::open_files()
    });
    let listeners = config
        .listeners
        .iter()
        .map(|listener| listening(config, listener, mark))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let workers = config.workers.map_or_else(cores, std::num::NonZeroUsize::get);
    let budgets = budgets(config, usize::try_from(open_files).unwrap_or(usize::MAX));
    Ok(Relay::start(listeners, workers, inherited, budgets)?)
}

fn budgets(config: &Config, open_files: usize) -> Budgets {
    let carries = |protocol| config.listeners.iter().any(|listener| listener.protocol == protocol);
    let mut budgets = Budgets::for_open_files(open_files, carries(Protocol::Tcp), carries(Protocol::Udp));
    if config.listeners.iter().any(|listener| listener.protocol == Protocol::Udp && listener.transparent) {
        // A flow that came by TPROXY may need a second socket, to answer from the port that was sent to.
        budgets.flows = Budget::new(budgets.flows.limit() / 2);
    }
    if let Some(most) = config.max_flows {
        budgets.flows = Budget::new(most.get().min(budgets.flows.limit()));
    }
    budgets
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// `mark` is what the routes look for; a listener's own comes first.
fn listening(config: &Config, listener: &ListenerConfig, mark: Option<u32>) -> anyhow::Result<Listening> {
    let settings = ListenerSettings {
        address: listener.bind,
        sockets: usize::from(listener.sockets.get()),
        transparent: listener.transparent,
        mark: if listener.mark == 0 { mark.unwrap_or_default() } else { listener.mark },
        header_timeout: listener.header.timeout,
        header_limits: Limits { max_len: listener.header.max_bytes, versions: Versions::BOTH },
        connect_timeout: listener.timeouts.connect,
        idle_timeout: listener.timeouts.idle,
        udp: (listener.protocol == Protocol::Udp).then(|| listener.udp.settings(listener.send_proxy)),
    };
    Ok(Listening { settings, policy: Arc::new(listener.policy(&config.binds())?) })
}

fn report(relay: &Relay) {
    let counters = relay.counters();
    let totals: Vec<_> = Counter::ALL
        .iter()
        .map(|&counter| format!("{}={}", counter.name(), counters.total(counter)))
        .collect();
    let refusals: Vec<_> =
        counters.refusals().iter().map(|(reason, count)| format!("{reason}={count}")).collect();
    info!(sessions = relay.sessions(), refusals = refusals.join(" "), "counters: {}", totals.join(" "));
}
