//! A running truepeer whose every name, file, reason and tag is hostile.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use truepeer_config::spec::Protocol;
use truepeer_ops::admin::{AttachmentDoc, BanChange, BanFailure, ListenerView, Running, SpliceDoc, State};
use truepeer_policy::{Ban, Bans, ClientAddr, SenderAddr};
use truepeer_session::complaints::{RecentComplaint, Subject};
use truepeer_session::counters::{Counter, Counters, Shard};
use truepeer_session::registry::{Page, PageStart, SessionStage, SessionTable};
use truepeer_session::table::Key;
use truepeer_session::{ListenerId, OpenSession, Reason, SessionFilter, SessionId, SessionList, Tags};

/// Ends attributes, elements and comments, runs a script in several ways, and has a word without a break.
pub(crate) const HOSTILE: &str = "\"'--></script><script>window.hacked=1</script>\
    <img src=x onerror=window.hacked=2><svg onload=window.hacked=3>javascript:window.hacked=4//\
    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

const ID: ListenerId = ListenerId::new(7);
/// More than the page lists.
pub(crate) const SESSIONS: u32 = 300;

pub(crate) struct Hostile {
    counters: Counters,
    shard: Arc<Shard>,
    bans: Bans,
}

impl Hostile {
    pub(crate) fn new() -> Self {
        let counters = Counters::default();
        let shard = counters.shard(ID);
        let bans = Bans::default();
        let ban = |client: &str| Ban {
            clients: client.parse().expect("a prefix"),
            port: None,
            since: 1_700_000_000,
            until: None,
            by: None,
            why: HOSTILE.chars().take(200).collect::<String>().into(),
        };
        bans.set(vec![ban("198.51.100.0/24"), ban("2001:db8:1234:5678::/64")]).expect("bans");
        shard.on_open();
        Reason::ALL.into_iter().for_each(|reason| shard.refuse(reason));
        shard.stay("sack");
        Self { counters, shard, bans }
    }

    /// Something has happened since the last time.
    pub(crate) fn go_on(&self, times: u64) {
        self.shard.add(Counter::Accepted, 10 * times);
        self.shard.refuse(Reason::V1Port);
        self.shard.add_bytes(5000 * times, 2_000_000 * times);
    }
}

impl Running for Hostile {
    fn state(&self) -> State {
        State::Broken(HOSTILE.to_owned())
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn listeners(&self) -> Vec<ListenerView> {
        let addresses = vec![SocketAddr::from(([0, 0, 0, 0], 443))];
        let site = Some(HOSTILE.to_owned());
        vec![ListenerView { id: ID, entry: "https", protocol: Protocol::Tcp, addresses, site, is_open: true }]
    }

    fn missing(&self) -> Vec<String> {
        vec![HOSTILE.to_owned()]
    }

    fn sessions(&self) -> Vec<Arc<dyn SessionList>> {
        vec![Arc::new(Sessions)]
    }

    fn splice(&self) -> Option<SpliceDoc> {
        Some(SpliceDoc { reason: Some(HOSTILE.to_owned()), found: Some(HOSTILE.to_owned()) })
    }

    fn attachments(&self) -> Vec<AttachmentDoc> {
        let counters: HashMap<&str, u64> = [("refused_banned", 3), (HOSTILE, 4)].into();
        let port = json!({"port": 25, "protocol": "tcp", "draining": true, "open": 4, "counters": counters});
        let places = json!([
            {"netns": HOSTILE, "attached": true, "uncovered": [HOSTILE], "ports": [port]},
            {"netns": HOSTILE, "attached": false, "ports": []},
        ]);
        serde_json::from_value(places).expect("attachments")
    }

    fn complaints(&self) -> Vec<RecentComplaint> {
        let about = ["203.0.113.99", "2001:db8::99"].map(|ip| ip.parse().ok());
        let all = about.into_iter().zip([Reason::V1Port, Reason::ClaimRefused]);
        let complaint = |(about, reason)| RecentComplaint {
            subject: Subject { reason, listener: ID, about },
            count: 4,
            ago: Duration::from_secs(61),
        };
        all.map(complaint).collect()
    }

    fn bans(&self) -> &Bans {
        &self.bans
    }

    fn change_bans(&self, _: BanChange) -> Result<usize, BanFailure> {
        Err(BanFailure::Upgrading)
    }

    fn reload(&self) -> Result<String, String> {
        Err(HOSTILE.to_owned())
    }

    fn upgrade(&self, _: UnixStream) {}
}

struct Sessions;

impl SessionList for Sessions {
    fn page(&self, filter: &SessionFilter, _: Option<PageStart>) -> Page {
        let session = |number: u32| {
            let client = SocketAddr::from(([203, 0, 113, (number % 250) as u8], 40_000));
            let client = if number.is_multiple_of(3) {
                "[2001:db8:1234:5678:9abc:def0:1234:5678]:49152".parse().expect("an address")
            } else {
                client
            };
            OpenSession {
                id: SessionId { table: SessionTable::Tls, worker: 0, key: Key::new(number, 1) },
                listener: ID,
                stage: SessionStage::Relaying,
                sender: SenderAddr::new(SocketAddr::from(([10, 0, 0, 7], 40_112))),
                client: Some(ClientAddr::new(client)),
                origin: None,
                source: None,
                backend: None,
                bytes_up: 10_000,
                bytes_down: 20_000_000,
                age: Duration::from_secs(u64::from(number)),
                tags: Tags::of_pairs(vec![("unique_id".to_owned(), HOSTILE.to_owned())]),
            }
        };
        let all = (1..=SESSIONS).map(session);
        let is_wanted = |one: &OpenSession| {
            let ip = one.client.map(|client| client.ip());
            filter.clients.as_ref().is_none_or(|clients| ip.is_some_and(|ip| clients.contains(ip)))
        };
        Page { sessions: all.filter(|one| is_wanted(one)).collect(), next: None }
    }

    fn end(&self, _: SessionId) -> bool {
        false
    }

    fn end_banned(&self) {}
}
