//! Converts a checked listener to its engine's rules.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use truepeer_https::challenges::Challenges;
use truepeer_https::downstream::{ListenerTls, TlsListener};
use truepeer_https::gateway::RequestRules;
use truepeer_https::sites::{SiteNames, SitesTls, UnknownHost};
use truepeer_https::{HttpsRules, SessionRules, SiteRules, SitesRules};
use truepeer_policy::{HeaderTimes, Source};
use truepeer_proto::Limits;
use truepeer_session::budget::{Budget, Budgets};
use truepeer_session::clients::PerClient;
use truepeer_session::settings::ListenerSettings;
use truepeer_session::{ListenerId, ListenerRules};

use truepeer_config::plan::{CheckedListener, ListenerConfig, ListenerKey};
use truepeer_config::spec::{Protocol, SpliceLinger};
use truepeer_origin::HealthTable;

/// The marks of upstream connections that the rules and routes match, by listener.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks(BTreeMap<ListenerKey, u32>);

impl Marks {
    pub(super) fn set(&mut self, listener: &CheckedListener, mark: Option<u32>) {
        match mark {
            Some(mark) => _ = self.0.insert(listener.key, mark),
            None => _ = self.0.remove(&listener.key),
        }
    }

    pub(super) fn of(&self, listener: &CheckedListener) -> Option<u32> {
        self.0.get(&listener.key).copied()
    }
}

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

/// What the listeners of a process share.
pub(super) struct Common<'a> {
    pub(super) health: &'a HealthTable,
    pub(super) challenges: &'a Arc<Challenges>,
}

/// If clients don't use TLS, they are not limited by default: many of them may share an address.
fn per_client(config: &ListenerConfig) -> PerClient {
    let is_limited = config.tls.is_some() || config.http.is_some();
    PerClient {
        most: config.max_per_client.or((!is_limited).then_some(0)),
        shared: config.http.as_ref().map(|http| http.trusted.clone()).unwrap_or_default(),
    }
}

/// A listener that speaks TLS with clients, backends or both. `ids`: the counters of each of its sites.
pub(super) fn https(
    listener: &CheckedListener,
    marks: &Marks,
    common: &Common<'_>,
    ids: &[ListenerId],
) -> HttpsRules {
    let mut listening = downstream(listener, marks, common);
    if let Some((sites, tls)) = sites(listener, marks, common, ids) {
        // Until a client has named its site: no site's destination can refuse it.
        let mut policy = (*listening.policy).clone();
        policy.delivery.source = Source::Any;
        let trusted = listener.further.iter().filter_map(|site| site.config.http.as_ref());
        trusted.for_each(|http| listening.settings.per_client.shared.extend(&http.trusted));
        let tls = Some(ListenerTls::Sites(Arc::new(tls)));
        let listening = TlsListener { policy: Arc::new(policy), tls, ..listening };
        return HttpsRules { listening, sessions: SessionRules::Sites(Box::new(sites)) };
    }
    let tunnels = || SessionRules::Tunnels(listener.origin.tls.clone());
    let requests = requests(listener, &listening, common);
    let sessions = requests.map_or_else(tunnels, |requests| SessionRules::Requests(Box::new(requests)));
    HttpsRules { listening, sessions }
}

/// The sites of a listener, if clients choose among them by name.
fn sites(
    listener: &CheckedListener,
    marks: &Marks,
    common: &Common<'_>,
    ids: &[ListenerId],
) -> Option<(SitesRules, SitesTls)> {
    let sites = listener.sites()?;
    let unknown = if listener.refuses_unknown_hosts() { UnknownHost::Refuse } else { UnknownHost::First };
    let names = Arc::new(SiteNames::new(sites.iter().map(|site| site.names.as_slice()), unknown));
    let mut rules = sites.into_iter().zip(ids).map(|(site, &id)| {
        let listening = downstream(site, marks, common);
        let requests = requests(site, &listening, common)?;
        Some((SiteRules { id, listening, requests }, site.tls.clone()?))
    });
    let (first, first_tls) = rules.next()??;
    let (others, tls) = rules.flatten().unzip();
    Some((SitesRules { names: Arc::clone(&names), first, others }, SitesTls::new(names, first_tls, tls)))
}

fn downstream(listener: &CheckedListener, marks: &Marks, common: &Common<'_>) -> TlsListener {
    let ListenerRules { settings, policy } = relay(listener, marks.of(listener));
    let tls = listener.tls.clone().map(ListenerTls::One);
    let challenges = Arc::clone(common.challenges);
    TlsListener { settings, policy, tls, challenges, handshake_timeout: listener.config.tls_timeout }
}

fn requests(
    listener: &CheckedListener,
    listening: &TlsListener,
    common: &Common<'_>,
) -> Option<RequestRules> {
    let (origin, others, mark) = (&listener.origin, &listener.origins, listening.settings.mark);
    let http = listener.config.http.as_ref()?.options(origin, others, mark, common.health);
    // The authority asks by HTTP without TLS.
    let challenges = listener.tls.is_none().then(|| Arc::clone(common.challenges));
    Some(RequestRules { origin: origin.tls.clone(), http, challenges })
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
