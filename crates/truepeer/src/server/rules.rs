//! Converts a checked listener to its engine's rules.

use std::num::NonZeroUsize;
use std::sync::Arc;

use truepeer_https::origin::HealthTable;
use truepeer_https::{HttpsRules, downstream};
use truepeer_policy::HeaderTimes;
use truepeer_proto::Limits;
use truepeer_session::ListenerRules;
use truepeer_session::budget::{Budget, Budgets};
use truepeer_session::clients::PerClient;
use truepeer_session::settings::ListenerSettings;

use truepeer_config::plan::{CheckedListener, ListenerConfig};
use truepeer_config::spec::{Protocol, SpliceLinger};

/// `mark` is the one that the routes match; a listener's own takes precedence.
pub(super) fn relay(listener: &CheckedListener, mark: Option<u32>) -> ListenerRules {
    let config = &listener.config;
    let settings = ListenerSettings {
        address: config.bind,
        sockets: usize::from(config.sockets.get()),
        transparent: config.transparent,
        v6_only: listener.v6_only,
        mark: if config.mark == 0 { mark.unwrap_or_default() } else { config.mark },
        header_times: HeaderTimes { timeout: config.header.timeout, wait: config.header.wait },
        header_limits: Limits { max_len: config.header.max_bytes, versions: config.senders.versions() },
        connect_timeout: config.timeouts.connect,
        idle_timeout: config.timeouts.idle,
        per_client: per_client(config),
        splice_after: config.splice_after(),
        leaves_spliced: config.splice.linger == SpliceLinger::Leave,
        udp: (config.protocol == Protocol::Udp).then(|| config.udp.settings(config.send_proxy)),
    };
    ListenerRules { settings, policy: Arc::clone(&listener.policy) }
}

/// If clients don't use TLS, they are not limited by default: many of them may share an address.
fn per_client(config: &ListenerConfig) -> PerClient {
    let is_limited = config.tls.is_some() || config.http.is_some();
    PerClient {
        most: config.max_per_client.or((!is_limited).then_some(0)),
        shared: config.http.as_ref().map(|http| http.trusted.clone()).unwrap_or_default(),
    }
}

/// A listener that speaks TLS with clients, backends or both.
pub(super) fn https(listener: &CheckedListener, mark: Option<u32>, table: &HealthTable) -> HttpsRules {
    let ListenerRules { settings, policy } = relay(listener, mark);
    let (tls, handshake_timeout) = (listener.tls.clone(), listener.config.handshake_timeout());
    let mark = settings.mark;
    let listening = downstream::TlsListener { settings, policy, tls, handshake_timeout };
    let (origin, others) = (&listener.origin, &listener.origins);
    let http = listener.config.http.as_ref().map(|http| http.options(origin, others, mark, table));
    HttpsRules { listening, origin: origin.tls.clone(), http }
}

/// The limits of all sessions, flows and pipes of these listeners together.
pub(super) fn budgets(
    listeners: &[Arc<CheckedListener>],
    max_flows: Option<NonZeroUsize>,
    open_files: usize,
) -> Budgets {
    let mut configs = listeners.iter().map(|listener| &listener.config);
    if configs.clone().all(|config| config.http.is_some()) {
        return Budgets::for_http(open_files);
    }
    let carries = |protocol| configs.clone().any(|config| config.protocol == protocol);
    let mut budgets = Budgets::for_open_files(open_files, carries(Protocol::Tcp), carries(Protocol::Udp));
    if configs.any(|config| config.protocol == Protocol::Udp && config.transparent) {
        // A flow from TPROXY may need a second socket, to answer from the port that was used.
        budgets.flows = Budget::new(budgets.flows.limit() / 2);
    }
    if let Some(most) = max_flows {
        budgets.flows = Budget::new(most.get().min(budgets.flows.limit()));
    }
    budgets
}
