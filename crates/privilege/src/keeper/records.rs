//! Needs and outcomes as they are sent. A record is checked when it becomes a [`Need`].

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use truepeer_routes::apply::chain;
use truepeer_routes::apply::{ApplyOutcome, RoutesError};
use truepeer_routes::found::Tag;
use truepeer_routes::item::{IpFamily, IpTransport, Item, LocalRoute, Need, Rule, Switch};

/// The longest description of a failure, and the most of them in one answer.
const MOST_WORDS: usize = 300;
const MOST_DESCRIPTIONS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum NeedRecord {
    Rule {
        family: Family,
        from: Option<(IpAddr, u8)>,
        sent_here: bool,
        mark: Option<u32>,
        transport: Option<Transport>,
        ports: Option<(u16, u16)>,
        table: u32,
    },
    Route {
        family: Family,
        table: u32,
        source: Option<IpAddr>,
    },
    /// Its position in [`Switch::ALL`].
    Switch(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Family {
    #[serde(rename = "4")]
    V4,
    #[serde(rename = "6")]
    V6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Transport {
    Tcp,
    Udp,
}

/// The outcome of one need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum OutcomeRecord {
    Added,
    /// It was there; the protocol number names who added it.
    Present(u8),
    /// It does not apply on this host.
    Skipped,
    Failed {
        words: String,
        errno: i32,
    },
}

impl From<&Need> for NeedRecord {
    fn from(need: &Need) -> Self {
        match need {
            Need::Rule(rule) => Self::Rule {
                family: rule.family.into(),
                from: rule.from.map(|net| (net.addr(), net.prefix_len())),
                sent_here: rule.sent_here,
                mark: rule.mark,
                transport: rule.transport.map(|transport| match transport {
                    IpTransport::Tcp => Transport::Tcp,
                    IpTransport::Udp => Transport::Udp,
                }),
                ports: rule.source_ports.as_ref().map(|ports| (*ports.start(), *ports.end())),
                table: rule.table,
            },
            Need::LocalRoute(route) => {
                Self::Route { family: route.family.into(), table: route.table, source: route.source }
            }
            Need::Switch(switch) => {
                let position = Switch::ALL.iter().position(|one| one == switch);
                Self::Switch(position.and_then(|position| position.try_into().ok()).unwrap_or(u8::MAX))
            }
        }
    }
}

impl From<IpFamily> for Family {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::V4,
            IpFamily::V6 => Self::V6,
        }
    }
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}

impl TryFrom<NeedRecord> for Need {
    type Error = String;

    fn try_from(record: NeedRecord) -> Result<Self, String> {
        Ok(match record {
            NeedRecord::Rule { family, from, sent_here, mark, transport, ports, table } => {
                let from = from.map(|(address, length)| {
                    IpNet::new(address, length).map_err(|_| format!("there is no {address}/{length}"))
                });
                let transport = transport.map(|transport| match transport {
                    Transport::Tcp => IpTransport::Tcp,
                    Transport::Udp => IpTransport::Udp,
                });
                if let Some((first, last)) = ports.filter(|(first, last)| *first == 0 || first > last) {
                    return Err(format!("there are no ports {first}-{last}"));
                }
                let source_ports = ports.map(|(first, last)| first..=last);
                let from = from.transpose()?;
                Self::Rule(Rule {
                    family: family.into(),
                    from,
                    sent_here,
                    mark,
                    transport,
                    source_ports,
                    table,
                })
            }
            NeedRecord::Route { family, table, source } => {
                Self::LocalRoute(LocalRoute { family: family.into(), table, source })
            }
            NeedRecord::Switch(position) => Self::Switch(
                *Switch::ALL
                    .get(usize::from(position))
                    .ok_or_else(|| format!("there is no switch {position}"))?,
            ),
        })
    }
}

/// The outcome of each item, in order.
pub(super) fn outcomes(items: &[Item], outcome: &ApplyOutcome) -> Vec<OutcomeRecord> {
    let mut described = 0;
    let one = |item: &Item| {
        if let Some((_, tag)) = outcome.present.iter().find(|(present, _)| present.need == item.need) {
            return OutcomeRecord::Present(tag.protocol());
        }
        if outcome.skipped.iter().any(|(skipped, _)| skipped.need == item.need) {
            return OutcomeRecord::Skipped;
        }
        let Some((_, error)) = outcome.failed.iter().find(|(failed, _)| failed.need == item.need) else {
            return OutcomeRecord::Added;
        };
        described += 1;
        let words = if described > MOST_DESCRIPTIONS { String::new() } else { limited(&chain(error)) };
        let errno = error.answer().and_then(io::Error::raw_os_error).unwrap_or_default();
        OutcomeRecord::Failed { words, errno }
    };
    items.iter().map(one).collect()
}

pub(super) fn limited(words: &str) -> String {
    words.chars().take(MOST_WORDS).collect()
}

/// The outcome of `items`; `None` if these are not their records.
pub(super) fn of_records(items: &[Item], records: Vec<OutcomeRecord>) -> Option<ApplyOutcome> {
    let mut outcome = ApplyOutcome::default();
    if records.len() != items.len() {
        return None;
    }
    for (item, record) in items.iter().cloned().zip(records) {
        match record {
            OutcomeRecord::Added => outcome.added.push(item),
            OutcomeRecord::Present(protocol) => outcome.present.push((item, Tag::of(protocol))),
            OutcomeRecord::Skipped => outcome.skipped.push((item, "it does not apply here")),
            OutcomeRecord::Failed { words, errno } => {
                let answer = io::Error::from_raw_os_error(errno);
                outcome.failed.push((item, RoutesError::Told { words, answer }));
            }
        }
    }
    Some(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use truepeer_routes::plan::{RoutePlan, Setup};

    #[test]
    fn needs_and_outcomes_survive_the_way() {
        let local = ["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()];
        let mut setup = Setup::new(200, 7);
        for backend in ["127.0.0.1:80", "10.9.0.1:80", "10.5.5.2:80", "[::1]:80", "[fd00:9::1]:80"] {
            for transport in [IpTransport::Tcp, IpTransport::Udp] {
                setup.backend(backend.parse().unwrap(), transport, &local);
            }
        }
        let plan = RoutePlan::for_setup(&setup);
        assert!(plan.items.len() > 10, "{plan:?}");
        for item in &plan.items {
            let record = NeedRecord::from(&item.need);
            let text = serde_json::to_string(&record).unwrap();
            let again: NeedRecord = serde_json::from_str(&text).unwrap();
            assert_eq!(Need::try_from(again).unwrap(), item.need);
        }
        let mut outcome = ApplyOutcome::default();
        outcome.present.push((plan.items[1].clone(), Tag::Pinned));
        outcome.skipped.push((plan.items[2].clone(), "why"));
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        outcome.failed.push((plan.items[3].clone(), RoutesError::Sysctl { name: "x", source: refused }));
        let again = of_records(&plan.items, outcomes(&plan.items, &outcome)).unwrap();
        assert_eq!(again.added.len(), plan.items.len() - 3);
        assert_eq!(again.present, outcome.present);
        assert_eq!(again.skipped[0].0, plan.items[2]);
        assert_eq!(again.failed[0].0, plan.items[3]);
        assert!(again.failed[0].1.is_missing_privilege());
        assert_eq!(chain(&again.failed[0].1), chain(&outcome.failed[0].1));
        assert!(of_records(&plan.items, Vec::new()).is_none());
    }

    #[test]
    fn impossible_values_become_no_need() {
        let rule = |from, ports| NeedRecord::Rule {
            family: Family::V4,
            from,
            sent_here: false,
            mark: None,
            transport: None,
            ports,
            table: 123,
        };
        Need::try_from(rule(Some(("192.0.2.1".parse().unwrap(), 33)), None)).unwrap_err();
        Need::try_from(rule(None, Some((0, 80)))).unwrap_err();
        Need::try_from(rule(None, Some((81, 80)))).unwrap_err();
        Need::try_from(NeedRecord::Switch(3)).unwrap_err();
        Need::try_from(rule(Some(("192.0.2.1".parse().unwrap(), 32)), Some((80, 80)))).unwrap();
    }
}
