//! The rules of an attachment in `truepeer attach status`: what the kernel has, not what was typed.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use truepeer_bpf::RulesInForce;

/// Text for people shows this many prefixes of senders.
const MAX_SHOWN: usize = 16;

/// `senders of port 80: 10.0.0.7/32 require`.
pub(super) fn write_senders(ports: &[String], rules: &RulesInForce, out: &mut dyn Write) -> Result<()> {
    let name = |(prefix, rule): &(_, Option<_>)| match rule {
        Some(rule) => format!("{prefix} {rule}"),
        None => format!("{prefix} none"),
    };
    let mut shown: Vec<String> = rules.senders.iter().take(MAX_SHOWN).map(name).collect();
    if shown.is_empty() {
        shown.push("none".to_owned());
    }
    if rules.senders.len() > MAX_SHOWN {
        shown.push(format!("{} more (--json lists them)", rules.senders.len() - MAX_SHOWN));
    }
    writeln!(out, "senders of port {}: {}", ports.join(", "), shown.join(", "))?;
    for (prefix, kind) in rules.required_tlvs.iter().take(MAX_SHOWN) {
        writeln!(out, "  {prefix} must prove itself by TLV {kind:#04x}")?;
    }
    Ok(())
}

/// For machines: all of them.
#[derive(Serialize)]
pub(super) struct JsonRules {
    senders: Vec<JsonSender>,
    required_tlvs: Vec<JsonTlv>,
    claims_allowed: Vec<String>,
    claims_refused: Vec<String>,
    denied: Vec<String>,
    header_timeout_ms: u64,
    header_wait_ms: u64,
    header_max: u32,
    unshowable: &'static str,
    destination: Option<&'static str>,
    close_after_s: u64,
}

#[derive(Serialize)]
struct JsonTlv {
    prefix: String,
    tlv: u8,
}

#[derive(Serialize)]
struct JsonSender {
    prefix: String,
    /// `require`, `optional` or `none`: of a narrower prefix in a wider one, whose packets pass.
    header: String,
}

impl JsonRules {
    pub(super) fn of(rules: &RulesInForce) -> Self {
        let text = |prefixes: &[_]| prefixes.iter().map(ToString::to_string).collect();
        let sender = |(prefix, rule): &(_, Option<_>)| JsonSender {
            prefix: ToString::to_string(prefix),
            header: rule.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        };
        let tlv = |(prefix, tlv): &(_, _)| JsonTlv { prefix: ToString::to_string(prefix), tlv: *tlv };
        Self {
            senders: rules.senders.iter().map(sender).collect(),
            required_tlvs: rules.required_tlvs.iter().map(tlv).collect(),
            claims_allowed: text(&rules.claims_allowed),
            claims_refused: text(&rules.claims_refused),
            denied: text(&rules.denied),
            header_timeout_ms: milliseconds(rules.header_timeout),
            header_wait_ms: milliseconds(rules.header_wait),
            header_max: rules.header_max,
            unshowable: if rules.refuse_unshowable { "refuse" } else { "show-sender" },
            destination: rules.shows_destination.then_some("header"),
            close_after_s: rules.udp_silence.as_secs(),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
