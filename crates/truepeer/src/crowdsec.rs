//! `truepeer crowdsec`: follows the decisions of CrowdSec's local API, and bans as `truepeer ban --keep`
//! does.
//!
//! The API answers with what is new since it was asked last. After a failure, here or there, all decisions
//! are asked for once more, and bans of ours that are none any more are lifted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use truepeer_attach::{kept_bans, seconds_now};
use truepeer_config::spec::CrowdsecArgs;
use truepeer_config::spec::defaults::CROWDSEC_URL;
use truepeer_ops::{BanPlaces, BanTerms, ban_clients, unban_clients};
use truepeer_policy::{BannedPrefix, Lifted};
use truepeer_sys::tell;

/// How long the API may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer: some million decisions.
const MOST_BYTES: u64 = 256 << 20;
/// How often it is asked by default.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long after a failure everything is asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// Of all decisions at once, times are rounded up to this: fewer requests for the same bans. The API tells of
/// their end.
const ROUND: u64 = 600;
/// The longest ban, ten years.
const MOST_SECONDS: f64 = 315_360_000.0;
/// What the reason of each ban begins with.
const WHY: &str = "crowdsec: ";
/// The longest reason, in bytes.
const MOST_WHY: usize = 200;

/// Follows until the process ends.
pub(crate) fn crowdsec(args: &CrowdsecArgs) -> anyhow::Result<()> {
    let api = Api::of(args)?;
    let (mut knows_all, mut complaint) = (false, None);
    loop {
        let followed = match api.ask(!knows_all)? {
            Ok(decisions) => follow(args, decisions, !knows_all),
            Err(failure) => Err(failure),
        };
        knows_all = followed.is_ok();
        match followed.map_err(|failure| format!("{failure:#}")) {
            Ok(()) if complaint.take().is_some() => tell!("{} is followed again", api.name),
            Ok(()) => {}
            // The same one once.
            Err(text) if complaint.as_ref() == Some(&text) => {}
            Err(text) => {
                tell!("warning: {text}");
                complaint = Some(text);
            }
        }
        let interval = args.interval.unwrap_or(INTERVAL);
        thread::sleep(if knows_all { interval } else { interval.max(AGAIN) });
    }
}

/// CrowdSec's local API.
struct Api {
    name: String,
    host: String,
    key: String,
}

/// An answer of `/v1/decisions/stream`.
#[derive(Debug, Default, Deserialize)]
struct Decisions {
    new: Option<Vec<Decision>>,
    deleted: Option<Vec<Decision>>,
}

#[derive(Debug, Deserialize)]
struct Decision {
    duration: String,
    scenario: String,
    scope: String,
    #[serde(rename = "type")]
    kind: String,
    value: String,
}

impl Api {
    fn of(args: &CrowdsecArgs) -> anyhow::Result<Self> {
        let host = match &args.url {
            Some(url) => url.plain().context(
                "--url: expected http://HOST:PORT; reach another host's local API by a tunnel of its own",
            )?,
            None => CROWDSEC_URL.trim_start_matches("http://").to_owned(),
        };
        let key = fs::read_to_string(&args.key)
            .with_context(|| format!("--key: can't read {}", args.key.display()))?;
        let key = key.trim().to_owned();
        ensure!(
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()),
            "{}: expected a key in one line, as cscli bouncers add truepeer -o raw prints it",
            args.key.display()
        );
        Ok(Self { name: format!("CrowdSec's local API at http://{host}"), host, key })
    }

    /// `Err` inside: there is no answer now.
    ///
    /// # Errors
    /// The key is refused.
    fn ask(&self, all: bool) -> anyhow::Result<anyhow::Result<Decisions>> {
        match self.answer(all) {
            Ok((Some(401 | 403), _)) => {
                bail!("{} refuses the key; type: cscli bouncers add truepeer -o raw > FILE", self.name)
            }
            Ok((Some(200), body)) => {
                Ok(serde_json::from_str(&body).with_context(|| format!("{}: {body:.80}", self.name)))
            }
            Ok((_, body)) => Ok(Err(anyhow!("{}: no decisions: {body:.200}", self.name))),
            Err(failure) => Ok(Err(failure.context(format!("{} does not answer", self.name)))),
        }
    }

    fn answer(&self, all: bool) -> anyhow::Result<(Option<u16>, String)> {
        let mut stream = connect(self.host.to_socket_addrs()?)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // In HTTP/1.0 the answer ends with the connection.
        let request = format!(
            "GET /v1/decisions/stream?startup={all} HTTP/1.0\r\nHost: {}\r\nX-Api-Key: {}\r\n\
             User-Agent: truepeer/{}\r\n\r\n",
            self.host,
            self.key,
            env!("CARGO_PKG_VERSION")
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.take(MOST_BYTES).read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("the answer is incomplete")?;
        Ok((head.split(' ').nth(1).and_then(|status| status.parse().ok()), body.to_owned()))
    }
}

/// To the first address that takes a connection: `localhost` may be ::1 as well, where no API listens.
fn connect(addresses: impl Iterator<Item = SocketAddr>) -> anyhow::Result<TcpStream> {
    let mut failure = anyhow!("the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

/// Sets and lifts what is said. `is_all`: nothing else is banned.
fn follow(args: &CrowdsecArgs, decisions: Decisions, is_all: bool) -> anyhow::Result<()> {
    let (new, deleted) = (decisions.new.unwrap_or_default(), decisions.deleted.unwrap_or_default());
    if new.is_empty() && deleted.is_empty() && !is_all {
        return Ok(());
    }
    let new = by_terms(&new, if is_all { ROUND } else { 1 });
    let banned: BTreeSet<BannedPrefix> = new.values().flatten().copied().collect();
    let kept = kept_bans(seconds_now())?;
    let ours = kept.iter().filter(|ban| ban.why.starts_with(WHY));
    let ended: BTreeSet<BannedPrefix> = deleted.iter().filter_map(client).collect();
    // By their reasons: another one's ban of the same client stays.
    let mut over: BTreeMap<&str, Vec<BannedPrefix>> = BTreeMap::new();
    for ban in ours.filter(|ban| !banned.contains(&ban.clients) && (is_all || ended.contains(&ban.clients))) {
        over.entry(&ban.why).or_default().push(ban.clients);
    }
    let places = || BanPlaces::find(&args.ask, args.pins.as_deref(), true);
    for (why, clients) in &over {
        unban_clients(places()?, clients, Lifted { port: None, why: Some(why) })?;
    }
    for ((seconds, why), clients) in &new {
        let clients: Vec<BannedPrefix> = clients.iter().copied().collect();
        let time = Some(Duration::from_secs(*seconds));
        ban_clients(places()?, &clients, &BanTerms { time, port: None, why, keep: true })?;
    }
    if !banned.is_empty() || !over.is_empty() {
        let over: usize = over.values().map(Vec::len).sum();
        tell!("{} clients banned, {over} no longer", banned.len());
    }
    Ok(())
}

/// The clients of decisions with the same time, in seconds, and reason.
fn by_terms(decisions: &[Decision], round: u64) -> BTreeMap<(u64, String), BTreeSet<BannedPrefix>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for decision in decisions {
        // What has ended is told as deleted.
        let Some(seconds) = seconds(&decision.duration).filter(|seconds| *seconds > 0) else { continue };
        if let Some(client) = client(decision) {
            let key = (seconds.next_multiple_of(round), why(&decision.scenario));
            all.entry(key).or_default().insert(client);
        }
    }
    all
}

fn why(scenario: &str) -> String {
    let mut why: String = WHY.chars().chain(scenario.chars().filter(|c| !c.is_control())).collect();
    why.truncate(why.floor_char_boundary(MOST_WHY));
    why
}

/// Whom a decision is about; `None`: it is no ban, or nobody can be banned so.
fn client(decision: &Decision) -> Option<BannedPrefix> {
    let is_address = ["ip", "range"].iter().any(|scope| decision.scope.eq_ignore_ascii_case(scope));
    if !is_address || decision.kind != "ban" {
        return None;
    }
    let client = decision.value.parse::<BannedPrefix>();
    client.inspect_err(|error| tell!("warning: not banned: {error}")).ok()
}

/// A duration as Go writes it, `3h59m58.5s`, in seconds, rounded up. `None`: it is over, or none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and limited")]
fn seconds(text: &str) -> Option<u64> {
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let value: f64 = rest[..number].parse().ok()?;
        rest = &rest[number..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        total += value
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "µs" | "us" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Some(f64::ceil(total).min(MOST_SECONDS) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, expected) in [
            ("59m59.123121458s", Some(3600)),
            ("167h59m59s", Some(604_799)),
            ("4h0m0s", Some(14_400)),
            ("300ms", Some(1)),
            ("1.5µs", Some(1)),
            ("99999999999999999999h", Some(315_360_000)),
            ("0s", Some(0)),
            ("-50.032427ms", None),
            ("", Some(0)),
            ("1d", None),
            ("5", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn an_address_where_the_api_does_not_listen_is_passed_over() {
        let api = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let there = api.local_addr().unwrap();
        let nobody = SocketAddr::from(([127, 0, 0, 2], there.port()));
        assert_eq!(connect([nobody, there].into_iter()).unwrap().peer_addr().unwrap(), there);
        assert!(connect([nobody].into_iter()).unwrap_err().to_string().contains("refused"));
        assert_eq!(connect([].into_iter()).unwrap_err().to_string(), "the name has no address");
    }

    #[test]
    fn decisions_with_the_same_time_and_reason_are_one_request() {
        let new = [
            ("59m59.1s", "ssh", "Ip", "ban", "203.0.113.7"),
            ("59m58.9s", "ssh", "Range", "ban", "2001:db8::/32"),
            ("-1s", "ssh", "Ip", "ban", "203.0.113.8"),
            ("1h", "s", "Country", "ban", "DE"),
            ("1h", "s", "Ip", "captcha", "203.0.113.9"),
            ("2h", "a\\nb", "ip", "ban", "203.0.113.10"),
        ];
        let new = new.map(|(duration, scenario, scope, kind, value)| {
            format!(
                r#"{{"duration":"{duration}","id":1,"origin":"cscli","scenario":"{scenario}",
                "scope":"{scope}","type":"{kind}","value":"{value}"}}"#
            )
        });
        let text = format!(r#"{{"deleted":null,"new":[{}]}}"#, new.join(","));
        let decisions: Decisions = serde_json::from_str(&text).unwrap();
        let all = by_terms(&decisions.new.unwrap(), ROUND);
        let all: Vec<_> = all
            .iter()
            .map(|((seconds, why), clients)| {
                (*seconds, why.as_str(), clients.iter().map(ToString::to_string).collect::<Vec<_>>())
            })
            .collect();
        let expected = [
            (3600, "crowdsec: ssh", vec!["203.0.113.7".to_owned(), "2001:db8::/32".to_owned()]),
            (7200, "crowdsec: ab", vec!["203.0.113.10".to_owned()]),
        ];
        assert_eq!(all, expected);
    }
}
