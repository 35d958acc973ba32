//! For `truepeer doctor`: what is attached in this network namespace.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};
use truepeer_bpf::{
    Place, PortStatus, Refusals, RulesInForce, Status, Traffic, covered_devices, find_pins, port_list, status,
};
use truepeer_config::spec::defaults;
use truepeer_config::spec::text::format_duration;
use truepeer_policy::{Dialect, HeaderRule, HeaderTimes};

use super::{devices, hints, listeners};

/// An attachment, and the devices of its network namespace.
pub struct Attached {
    /// The counters and rules of the kernel programs.
    pub status: Status,
    /// The devices whose packets come by the programs; empty where the kernel can't tell.
    pub covered: Vec<String>,
    /// Devices that are up, have an address, and no programs.
    pub uncovered: Vec<String>,
    place: Place,
}

/// Refusals of one sender for one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The sender.
    pub sender: IpAddr,
    /// The port that it sent to.
    pub port: u16,
    /// Datagrams.
    pub is_udp: bool,
    /// The name of its counter, and what it means.
    pub reason: (&'static str, &'static str),
    /// How many.
    pub count: u64,
    /// How long ago the last one was.
    pub ago: Duration,
}

/// `None`: nothing is attached.
pub fn attached_here() -> Result<Option<Attached>> {
    let place = Place::here(&find_pins())?;
    let Some(status) = status(&place)? else { return Ok(None) };
    let Some(numbers) = covered_devices(&place)? else {
        return Ok(Some(Attached { status, covered: Vec::new(), uncovered: Vec::new(), place }));
    };
    let existing = devices::numbered(&["all".to_owned()])?.into_iter();
    let covered = existing.filter(|(number, _)| numbers.contains(number)).map(|(_, device)| device.name);
    let (covered, uncovered) = (covered.collect(), devices::in_use_beside(&numbers)?);
    Ok(Some(Attached { status, covered, uncovered, place }))
}

impl Attached {
    /// The state of a port.
    pub fn port(&self, port: u16, is_udp: bool) -> Option<&PortStatus> {
        self.status.ports.iter().find(|one| one.ports.contains(&port) && is_of_udp(one) == is_udp)
    }

    /// The rules of a port.
    pub fn rules(&self, port: &PortStatus) -> Option<&RulesInForce> {
        self.status.rules.get(&port.attachment)
    }

    /// The senders that were refused within this time, the latest first. Reading removes them: `attach status
    /// --follow` does not show them again, and while it runs there are none.
    pub fn refused_lately(&self, within: Duration) -> Result<Vec<Refused>> {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default());
        let mut all: BTreeMap<_, Refused> = BTreeMap::new();
        let Some(mut refusals) = Refusals::open(&self.place)? else { return Ok(Vec::new()) };
        while let Some(refusal) = refusals.read() {
            let ago = now.saturating_sub(refusal.time);
            if ago > within {
                continue;
            }
            let key = (refusal.sender.ip(), refusal.port, refusal.is_udp, refusal.reason.name);
            let one = all.entry(key).or_insert(Refused {
                sender: refusal.sender.ip(),
                port: refusal.port,
                is_udp: refusal.is_udp,
                reason: (refusal.reason.name, refusal.reason.meaning),
                count: 0,
                ago,
            });
            one.count += u64::from(refusal.count);
            one.ago = one.ago.min(ago);
        }
        let mut all: Vec<_> = all.into_values().collect();
        all.sort_by_key(|one| one.ago);
        Ok(all)
    }

    /// The command that attaches a port again as it is. `None`: it can't be told in a few words.
    pub fn command(&self, port: &PortStatus) -> Option<String> {
        let rules = self.rules(port)?;
        if rules.senders.is_empty() || rules.senders.len() > MOST_WORDS || !rules.denied.is_empty() {
            return None;
        }
        let mut words = format!("truepeer attach add --replace --port {}", ports(port));
        for (prefix, rule) in &rules.senders {
            let prefix = bare(&prefix.to_string());
            match rule.as_ref()? {
                HeaderRule::Require => words.push_str(&format!(" --allow {prefix}")),
                rule => words.push_str(&format!(" --allow {prefix} --header {prefix}={rule}")),
            }
        }
        for claim in &rules.claims_allowed {
            words.push_str(&format!(" --allow-claims {}", bare(&claim.to_string())));
        }
        words.push_str(&others(port, rules));
        Some(words)
    }
}

/// So many senders are a line.
const MOST_WORDS: usize = 8;

fn is_of_udp(port: &PortStatus) -> bool {
    matches!(port.traffic, Traffic::Udp(..))
}

/// As `--port` takes them.
fn ports(port: &PortStatus) -> String {
    match port.traffic {
        Traffic::Tcp(_) => port_list(port.ports.iter().copied(), "").join(","),
        Traffic::Udp(udp, _) if port.ports.len() == 1 && udp.backend_port != port.port => {
            format!("{}:{}/udp", port.port, udp.backend_port)
        }
        Traffic::Udp(..) => port_list(port.ports.iter().copied(), "/udp").join(","),
    }
}

/// An address without the length of its prefix.
fn bare(prefix: &str) -> String {
    prefix
        .strip_suffix("/32")
        .filter(|address| !address.contains(':'))
        .or(prefix.strip_suffix("/128"))
        .unwrap_or(prefix)
        .to_owned()
}

/// Options that are not as usual.
fn others(port: &PortStatus, rules: &RulesInForce) -> String {
    let usual = HeaderTimes::default();
    let mut words = String::new();
    let mut add = |is_other: bool, option: &str, value: String| {
        if is_other {
            words.push_str(&format!(" --{option} {value}"));
        }
    };
    let is_tcp = !is_of_udp(port);
    add(
        is_tcp && rules.header_timeout != usual.timeout,
        "header-timeout",
        format_duration(&rules.header_timeout),
    );
    add(is_tcp && rules.header_wait != usual.wait, "header-wait", format_duration(&rules.header_wait));
    add(
        usize::try_from(rules.header_max).ok() != Some(defaults::HEADER_MAX),
        "header-max",
        rules.header_max.to_string(),
    );
    add(rules.refuse_unshowable, "unshowable", "refuse".to_owned());
    add(rules.shows_destination, "destination", "header".to_owned());
    if let Traffic::Udp(udp, _) = port.traffic {
        add(udp.dialect != Dialect::default(), "udp-dialect", udp.dialect.as_str().to_owned());
        add(
            rules.udp_silence != udp.dialect.default_silence(),
            "close-after",
            format_duration(&rules.udp_silence),
        );
    }
    words
}

/// Advice for counters of the port that are not 0.
pub fn hints_of(port: &PortStatus) -> Vec<String> {
    hints::of(port)
}

/// Warnings about the sockets that listen on this TCP port; one if there are none.
pub fn listener_warnings(port: u16, refuses_unshowable: bool) -> Vec<String> {
    let known = listeners::of_this_namespace().unwrap_or_default();
    listeners::warnings(&known, &[port].into(), refuses_unshowable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_typed_without_their_length() {
        for (prefix, typed) in [
            ("10.0.0.7/32", "10.0.0.7"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("2001:db8::7/128", "2001:db8::7"),
            ("2001:db8::/32", "2001:db8::/32"),
        ] {
            assert_eq!(bare(prefix), typed);
        }
    }
}
