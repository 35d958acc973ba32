//! Carrying out a configuration: limits, sockets, routes, the relay, and signals until the end.

mod holder;
mod signals;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Handle;
use tracing::{error, info, warn};
use truepeer_https::downstream;
use truepeer_https::{Https, HttpsRules};
use truepeer_policy::{HeaderTimes, Source};
use truepeer_proto::{Limits, Versions};
use truepeer_relay::Relay;
use truepeer_session::budget::{Budget, Budgets};
use truepeer_session::counters::Counter;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{Engine as _, EngineError, Health, Journal, ListenerId, ListenerRules};
use truepeer_sys::inherit::PassedSockets;
use truepeer_sys::{limits, socket};

use crate::plan::{Checked, CheckedListener, Config, HttpConfig};
use crate::routes::item::Transport;
use crate::routes::{self, guard::RoutesGuard};
use crate::spec::Protocol;
use signals::Signals;

/// Serves until SIGTERM or SIGINT, after which sessions with TLS may go on for a while; a second one ends them at once.
/// SIGUSR1 logs the counters, SIGHUP reads certificates and keys again.
///
/// # Errors
/// Whatever keeps it from serving at all; once it serves, nothing that a sender, client or backend does ends it. A worker
/// that has ended by itself does: what is left would serve a part of the connections only.
pub(crate) fn run(config: &Config, checked: Checked) -> anyhow::Result<()> {
    // First of all: inherited descriptors have fixed numbers, and nothing else may have taken them.
    let inherited = PassedSockets::take()?.into_listening();
    check_privilege(config)?;
    // Before the threads: a signal that comes while they start must not be lost.
    let signals = Signals::hear(&signals_of(config)).context("can't wait for signals")?;
    let routes =
        RoutesGuard::establish(config.routes.mode, &routes::options::of_plan(config, &checked).setup()?)?;
    let waiting = signals.handle();
    let mut serving = start(config, &checked, inherited, routes.upstream_mark(), &waiting)?;
    for address in &serving.listening {
        info!("listening on {address}");
    }
    let mut is_draining = false;
    // Ends also when nobody waits for signals any more: the last worker has ended, or one before its time.
    for signal in signals {
        match signal {
            SIGUSR1 => serving.report(),
            SIGHUP => serving.reload(),
            _ if !is_draining && serving.drain(config.drain, &waiting) => is_draining = true,
            _ => break,
        }
    }
    serving.end()
}

/// Without TLS there is nothing to reload, so SIGHUP keeps its default action and kills the process.
fn signals_of(config: &Config) -> Vec<i32> {
    let mut signals = vec![SIGTERM, SIGINT, SIGUSR1];
    if config.listeners.iter().any(|listener| listener.speaks_tls()) {
        signals.push(SIGHUP);
    }
    signals
}

/// What runs: the relay for listeners without TLS, https for those with it.
struct Serving {
    relay: Option<Relay>,
    https: Option<Https>,
    listening: Vec<SocketAddr>,
    journal: Arc<Journal>,
    budgets: Budgets,
}

impl Serving {
    /// Begins to end, if there is something that may take its time; sessions without TLS end at once. After `limit` nobody
    /// waits for `signals` any more.
    fn drain(&mut self, limit: Duration, signals: &Handle) -> bool {
        let Some(https) = self.https.as_mut().filter(|_| !limit.is_zero()) else { return false };
        self.relay = None;
        https.drain();
        info!(
            "stopping: no more connections are taken, {} sessions have {} s to end",
            self.budgets.sessions.used(),
            limit.as_secs_f32()
        );
        let signals = signals.clone();
        let wait = move || {
            thread::sleep(limit);
            signals.close();
        };
        // Without a thread to wait there is no waiting.
        thread::Builder::new().name("drain".to_owned()).spawn(wait).is_ok()
    }

    /// Ends what is left.
    fn end(self) -> anyhow::Result<()> {
        let health = [self.relay.as_ref().map(Relay::health), self.https.as_ref().map(Https::health)];
        for health in health.into_iter().flatten() {
            if let Health::Broken(reason) = health {
                anyhow::bail!(
                    "a worker has ended by itself ({reason}): the others would serve a part of the connections only"
                );
            }
        }
        info!("stopping with {} sessions open", self.budgets.sessions.used());
        Ok(())
    }

    fn reload(&self) {
        match self.https.as_ref().map(Https::reload) {
            Some(Ok(())) => info!("certificates and keys were read again"),
            Some(Err(error)) => {
                error!("not all certificates can be read again, and stay as they were: {error}")
            }
            None => {}
        }
    }

    fn report(&self) {
        let counters = &self.journal.counters;
        let totals: Vec<_> = Counter::ALL
            .iter()
            .map(|&counter| format!("{}={}", counter.name(), counters.total(counter)))
            .collect();
        let refusals: Vec<_> =
            counters.refusals().iter().map(|(reason, count)| format!("{reason}={count}")).collect();
        let sessions = self.budgets.sessions.used();
        info!(sessions, refusals = refusals.join(" "), "counters: {}", totals.join(" "));
    }
}

/// Every session would fail without it, and only when it comes.
fn check_privilege(config: &Config) -> anyhow::Result<()> {
    if config.listeners.iter().all(|listener| listener.source() == Source::Any) {
        return Ok(()); // no client's address is used
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

/// Nobody waits for `signals` any more once an engine's workers have ended by themselves or after a drain.
fn start(
    config: &Config,
    checked: &Checked,
    mut inherited: Vec<OwnedFd>,
    mark: Option<u32>,
    signals: &Handle,
) -> anyhow::Result<Serving> {
    let open_files = limits::raise_open_files().unwrap_or_else(|error| {
        warn!("{error}: going on with the limit of open files as it is");
        limits::open_files()
    });
    let (encrypted, plain): (Vec<_>, Vec<_>) =
        checked.listeners.iter().partition(|listener| listener.config.speaks_tls());
    let workers = config.workers.map_or_else(cores, std::num::NonZeroUsize::get);
    let budgets = budgets(config, usize::try_from(open_files).unwrap_or(usize::MAX));
    let journal = Arc::<Journal>::default();
    let mut listening = Vec::new();
    let mut ids = (0..).map(ListenerId::new);
    let on_end = || {
        let signals = signals.clone();
        move || signals.close()
    };
    let mut relay = None;
    if !plain.is_empty() {
        let mut engine = Relay::start(workers, &budgets, &journal, on_end())?;
        for (listener, id) in plain.into_iter().zip(&mut ids) {
            let opened = engine.open(id, rules(listener, mark), &mut inherited);
            listening.extend(opened.map_err(|error| explain(error, listener))?);
        }
        relay = Some(engine);
    }
    let mut https = None;
    if !encrypted.is_empty() {
        let mut engine = Https::start(workers, &budgets, &journal, on_end())?;
        for (listener, id) in encrypted.into_iter().zip(&mut ids) {
            let opened = engine.open(id, https_rules(listener, mark), &mut inherited);
            listening.extend(opened.map_err(|error| explain(error, listener))?);
        }
        https = Some(engine);
    }
    warn_of_unasked(&inherited);
    Ok(Serving { relay, https, listening, journal, budgets })
}

/// A port in use is reported with the program that has it, where this user may see that.
fn explain(error: EngineError, listener: &CheckedListener) -> anyhow::Error {
    let EngineError::Listen(failed) = &error else { return error.into() };
    let transport = match listener.config.protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
    };
    let is_in_use = failed.error.errno == Errno::ADDRINUSE;
    match is_in_use.then(|| holder::of(failed.address, transport)).flatten() {
        Some(holder) => anyhow::anyhow!(
            "can't listen on {}: {holder} listens there; stop it, or choose another address with --listen",
            failed.address
        ),
        None => error.into(),
    }
}

/// What no listener has taken: clients of a socket that the service manager holds open would wait for ever.
fn warn_of_unasked(left: &[OwnedFd]) {
    for socket in left {
        match socket::local_address(socket.as_fd()) {
            Ok(address) => warn!(
                "the service manager passed a socket on {address}, for which there is no listener here: it is closed; is --listen {address} missing?"
            ),
            Err(error) => warn!(
                "the service manager passed a descriptor that is no internet socket, which is closed: {error}"
            ),
        }
    }
}

/// A listener that speaks TLS with clients, backends or both.
fn https_rules(listener: &CheckedListener, mark: Option<u32>) -> HttpsRules {
    let ListenerRules { settings, policy } = rules(listener, mark);
    let (tls, handshake_timeout) = (listener.tls.clone(), listener.config.handshake_timeout());
    let config = &listener.config;
    let per_client = downstream::PerClient {
        // Where TLS is only put on, clients are programs of the operator's own, which may have as many as they like.
        most: config.max_per_client.or(config.tls.is_none().then_some(0)),
        shared: config.http.as_ref().map(|http| http.trusted.clone()).unwrap_or_default(),
    };
    let listening = downstream::TlsListener { settings, policy, tls, handshake_timeout, per_client };
    let http = config.http.as_ref().map(HttpConfig::options);
    HttpsRules { listening, origin: listener.origin.clone(), http }
}

fn budgets(config: &Config, open_files: usize) -> Budgets {
    if config.listeners.iter().all(|listener| listener.http.is_some()) {
        return Budgets::for_http(open_files);
    }
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
    thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// `mark` is what the routes look for; a listener's own comes first.
fn rules(listener: &CheckedListener, mark: Option<u32>) -> ListenerRules {
    let config = &listener.config;
    let settings = ListenerSettings {
        address: config.bind,
        sockets: usize::from(config.sockets.get()),
        transparent: config.transparent,
        mark: if config.mark == 0 { mark.unwrap_or_default() } else { config.mark },
        header_times: HeaderTimes { timeout: config.header.timeout, wait: config.header.wait },
        header_limits: Limits { max_len: config.header.max_bytes, versions: Versions::BOTH },
        connect_timeout: config.timeouts.connect,
        idle_timeout: config.timeouts.idle,
        udp: (config.protocol == Protocol::Udp).then(|| config.udp.settings(config.send_proxy)),
    };
    ListenerRules { settings, policy: Arc::clone(&listener.policy) }
}
