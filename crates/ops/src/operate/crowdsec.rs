//! `truepeer crowdsec`: follows the decisions of CrowdSec's local API, and bans as `truepeer ban --keep` does.
//!
//! The API answers with what is new since it was asked last. After a failure, here or there, all decisions
//! are asked for once more, and bans of ours that are none any more are lifted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::ToSocketAddrs as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use serde::Deserialize;
use truepeer_attach::{kept_bans, seconds_now};
use truepeer_config::spec::CrowdsecArgs;
use truepeer_config::spec::defaults::CROWDSEC_URL;
use truepeer_policy::BannedPrefix;
use truepeer_sys::tell;

use super::bans::{Places, Terms, lift, set};
use crate::admin::client::{connect, exchange, status};
use crate::units::Count;

/// How long the API may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked by default.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long after a failure everything is asked for again.
const AGAIN: Duration = Duration::from_secs(5);
/// Of all decisions at once, times are rounded up to this: fewer requests for the same bans. The API tells of
/// their end.
const ROUND: u64 = 600;
/// What the reason of each ban begins with.
const WHY: &str = "crowdsec: ";
/// The longest reason, in bytes.
const MOST_WHY: usize = 200;

/// Follows until the process ends.
pub fn crowdsec(args: &CrowdsecArgs) -> anyhow::Result<()> {
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
        let address = self.host.to_socket_addrs()?.next().context("no address")?;
        let stream = connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let fields = format!(
            "Host: {}\r\nX-Api-Key: {}\r\nUser-Agent: truepeer/{}\r\n",
            self.host,
            self.key,
            env!("CARGO_PKG_VERSION")
        );
        let (head, body) = exchange(stream, &format!("GET /v1/decisions/stream?startup={all}"), &fields)?;
        Ok((status(&head), body))
    }
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
    // Another one's ban of the same client has taken the place of ours.
    let ours = kept.iter().filter(|ban| ban.why.starts_with(WHY)).map(|ban| ban.clients);
    let ended: BTreeSet<BannedPrefix> = deleted.iter().filter_map(client).collect();
    let over: Vec<BannedPrefix> =
        ours.filter(|ours| !banned.contains(ours) && (is_all || ended.contains(ours))).collect();
    let places = || Places::find(&args.ask, args.pins.as_deref(), true);
    if !over.is_empty() {
        lift(places()?, &over, None)?;
    }
    for ((seconds, why), clients) in &new {
        let clients: Vec<BannedPrefix> = clients.iter().copied().collect();
        let time = Some(Duration::from_secs(*seconds));
        set(places()?, &clients, &Terms { time, port: None, why, keep: true })?;
    }
    if !banned.is_empty() || !over.is_empty() {
        tell!("{} clients banned, {} no longer", Count(banned.len() as u64), Count(over.len() as u64));
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
    let mut why: String = WHY.chars().chain(scenario.chars().filter(|char| !char.is_control())).collect();
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
fn seconds(text: &str) -> Option<u64> {
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let number = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let value: f64 = rest[..number].parse().ok()?;
        rest = &rest[number..];
        let unit = rest.find(|char: char| char.is_ascii_digit()).unwrap_or(rest.len());
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
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; casts saturate")]
    Some(f64::ceil(total) as u64)
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
    fn decisions_with_the_same_time_and_reason_are_one_request() {
        let text = r#"{"deleted":null,"new":[
            {"duration":"59m59.1s","id":1,"origin":"cscli","scenario":"ssh","scope":"Ip","type":"ban","value":"203.0.113.7"},
            {"duration":"59m58.9s","id":2,"origin":"CAPI","scenario":"ssh","scope":"Range","type":"ban","value":"2001:db8::/32"},
            {"duration":"-1s","id":3,"origin":"CAPI","scenario":"ssh","scope":"Ip","type":"ban","value":"203.0.113.8"},
            {"duration":"1h","id":4,"origin":"cscli","scenario":"s","scope":"Country","type":"ban","value":"DE"},
            {"duration":"1h","id":5,"origin":"cscli","scenario":"s","scope":"Ip","type":"captcha","value":"203.0.113.9"},
            {"duration":"2h","id":6,"origin":"cscli","scenario":"a\nb","scope":"ip","type":"ban","value":"203.0.113.10"}]}"#
            .replace("a\nb", "a\\nb");
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
