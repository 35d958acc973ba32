//! The output of `truepeer attach status`.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use serde::Serialize;
use truepeer_bpf::{AttachError, FlowCount, Memory, Place, PortStatus, Status, Traffic, port_list};
use truepeer_sys::netns::NetNs;

use super::all::Namespace;
use super::hints;
use super::in_force::{JsonRules, write_senders};

/// Text for people: only the counters that are not zero.
pub(crate) fn write(status: Option<&Status>, left_behind: usize, out: &mut dyn Write) -> Result<()> {
    match status {
        Some(status) => {
            let has_tcp = status.ports.iter().any(|port| matches!(port.traffic, Traffic::Tcp(_)));
            if has_tcp && !status.begins_again {
                writeln!(
                    out,
                    "handshakes that the kernel gives up before their header comes are lost \
                     (going on needs Linux 6.9 and net.ipv4.tcp_syncookies)"
                )?;
            }
            if status.is_cgroup_gone {
                writeln!(
                    out,
                    "the container's cgroup has ended, or was made anew: new connections are refused \
                     (refused_elsewhere); attach again"
                )?;
            }
            let attachments = attachments(status);
            for (id, ports) in attachments.iter().filter(|_| attachments.len() > 1) {
                writeln!(out, "attachment {id}: port {}", ports.join(", "))?;
            }
            for (id, ports) in &attachments {
                status.rules.get(id).map_or(Ok(()), |rules| write_senders(ports, rules, out))?;
            }
            status.ports.iter().try_for_each(|port| write_port(port, out))?;
            write_room(status, out)?;
            if status.refused_unread > 0 {
                writeln!(
                    out,
                    "dropped, too many IPv6 extension headers to find the port: {} packets (refused_unread)",
                    status.refused_unread
                )?;
            }
        }
        None => writeln!(out, "not attached")?,
    }
    write_left_behind(left_behind, out)
}

pub(crate) fn write_left_behind(count: usize, out: &mut dyn Write) -> Result<()> {
    if count > 0 {
        writeln!(
            out,
            "leftovers of network namespaces that no longer exist: {count}; the next attach or detach removes them"
        )?;
    }
    Ok(())
}

/// Instead of what another version has attached.
pub(super) fn write_version(place: &Place, out: &mut dyn Write) -> Result<()> {
    let path = place.path();
    let root = path.parent().unwrap_or(&path).display();
    writeln!(
        out,
        "attached by another version of truepeer, which alone can tell what, and detach it: {root}"
    )?;
    Ok(())
}

/// The ports of each, which have the same rules.
fn attachments(status: &Status) -> BTreeMap<u8, Vec<String>> {
    let mut all: BTreeMap<u8, Vec<String>> = BTreeMap::new();
    for port in &status.ports {
        let protocol = if matches!(port.traffic, Traffic::Udp(..)) { "/udp" } else { "" };
        all.entry(port.attachment).or_default().extend(port_list(port.ports.iter().copied(), protocol));
    }
    all
}

fn write_room(status: &Status, out: &mut dyn Write) -> Result<()> {
    let has = |is: fn(&Traffic) -> bool| status.ports.iter().any(|port| is(&port.traffic));
    let tcp =
        has(|traffic| matches!(traffic, Traffic::Tcp(_))).then_some((status.max_flows, "open connections"));
    let udp =
        has(|traffic| matches!(traffic, Traffic::Udp(..))).then_some((status.max_udp_flows, "UDP flows"));
    let room: Vec<String> =
        [tcp, udp].into_iter().flatten().map(|(count, of)| format!("{count} {of}")).collect();
    let Memory { tables, programs } = status.memory;
    let programs = programs.map_or(String::new(), |bytes| format!(", programs {} KiB", bytes.div_ceil(1024)));
    let room = if room.is_empty() { String::new() } else { format!("; room for {}", room.join(" and ")) };
    writeln!(out, "kernel memory: tables {} KiB{programs}{room}", tables.div_ceil(1024))?;
    Ok(())
}

/// `80`, or `40000-41000` for ports that are counted together.
fn name(port: &PortStatus) -> String {
    port_list(port.ports.iter().copied(), "").join(", ")
}

fn write_port(port: &PortStatus, out: &mut dyn Write) -> Result<()> {
    let state = if port.draining { "detached, draining" } else { "attached" };
    match port.traffic {
        Traffic::Tcp(flows) => writeln!(
            out,
            "port {}/tcp: {state}; open: {} untouched, {} translated; {} awaiting their header or accept()",
            name(port),
            flows.untouched,
            flows.translated,
            flows.awaiting_header
        )?,
        Traffic::Udp(rule, flows) => writeln!(
            out,
            "port {}/udp: {state}, {} to {}; {flows} flows",
            name(port),
            rule.dialect.as_str(),
            // Ports that lead elsewhere are shown apart, each by itself.
            if port.ports.len() > 1 && port.ports.contains(&rule.backend_port) {
                "the same ports".into()
            } else {
                format!("port {}", rule.backend_port)
            }
        )?,
    }
    match (port.draining, port.refusing) {
        (true, false) => writeln!(out, "  new connections pass unchecked (fail-open)")?,
        (true, true) => writeln!(out, "  new connections are refused if their sender must send a header")?,
        (false, _) => {}
    }
    for (counter, value) in port.counters.iter().filter(|(_, value)| *value > 0) {
        writeln!(out, "  {value:>10}  {} ({})", counter.meaning, counter.name)?;
    }
    for hint in hints::of(port) {
        writeln!(out, "  hint: {hint}")?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Json {
    attached: bool,
    netns_cookie: u64,
    netns: Option<u64>,
    attachments: Vec<JsonAttachment>,
    ports: Vec<JsonPort>,
    refused_unread: u64,
    begins_again: bool,
    /// The programs are those of this build.
    current: bool,
    cgroup_gone: bool,
    /// Another version of truepeer has attached it: that one alone can tell what.
    other_version: bool,
    max_flows: u32,
    max_udp_flows: u32,
    memory: JsonMemory,
}

/// The state of one network namespace, asked for by itself.
#[derive(Serialize)]
struct JsonOne {
    #[serde(flatten)]
    state: Json,
    left_behind: usize,
    /// Devices that are up, have an address, and no programs.
    uncovered: Vec<String>,
}

/// The state of all.
#[derive(Serialize)]
struct JsonAll {
    namespaces: Vec<JsonNamespace>,
    left_behind: usize,
}

#[derive(Serialize)]
struct JsonNamespace {
    pid: Option<u32>,
    #[serde(flatten)]
    state: Json,
}

#[derive(Serialize)]
struct JsonAttachment {
    id: u8,
    ports: Vec<String>,
    rules: Option<JsonRules>,
}

/// In bytes.
#[derive(Serialize)]
struct JsonMemory {
    tables: u64,
    programs: Option<u64>,
}

#[derive(Serialize)]
struct JsonPort {
    port: u16,
    /// All that are counted together.
    ports: String,
    protocol: &'static str,
    attachment: u8,
    draining: bool,
    refusing: bool,
    #[serde(flatten)]
    traffic: JsonTraffic,
    counters: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonTraffic {
    Tcp { untouched: usize, translated: usize, awaiting_header: usize },
    Udp { backend_port: u16, dialect: &'static str, flows: usize },
}

/// JSON for machines: every counter.
pub(crate) fn write_json(
    place: &Place,
    status: Option<&Status>,
    left_behind: usize,
    uncovered: Vec<String>,
    out: &mut dyn Write,
) -> Result<()> {
    print(&JsonOne { state: json(place, status), left_behind, uncovered }, out)
}

/// The same of all network namespaces.
pub(super) fn write_json_of_all(
    namespaces: &[Namespace],
    others: &[Place],
    left_behind: usize,
    out: &mut dyn Write,
) -> Result<()> {
    let one = |namespace: &Namespace| JsonNamespace {
        pid: namespace.process,
        state: json(&namespace.place, Some(&namespace.status)),
    };
    let of_another = |place: &Place| JsonNamespace { pid: None, state: json(place, None) };
    let namespaces = namespaces.iter().map(one).chain(others.iter().map(of_another));
    print(&JsonAll { namespaces: namespaces.collect(), left_behind }, out)
}

fn print(json: &impl Serialize, out: &mut dyn Write) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, json)?;
    writeln!(out)?;
    Ok(())
}

fn json(place: &Place, status: Option<&Status>) -> Json {
    let ports = status.map(|status| status.ports.as_slice()).unwrap_or_default();
    let attachments = status.map(attachments).unwrap_or_default().into_iter();
    let rules = |id| status.and_then(|status| status.rules.get(&id)).map(JsonRules::of);
    let other_version = matches!(place.check_version(), Err(AttachError::OtherLayout { .. }));
    let here =
        || place.is_here().ok().filter(|is_here| *is_here).and_then(|_| NetNs::current().ok()?.id().ok());
    let netns = status.map(|status| status.netns).filter(|inode| *inode > 0);
    Json {
        attached: status.is_some() || other_version,
        netns_cookie: place.netns_cookie(),
        netns: netns.or_else(|| here().filter(|_| other_version)),
        attachments: attachments.map(|(id, ports)| JsonAttachment { id, ports, rules: rules(id) }).collect(),
        ports: ports.iter().map(json_port).collect(),
        refused_unread: status.map_or(0, |status| status.refused_unread),
        begins_again: status.is_some_and(|status| status.begins_again),
        current: status.is_some_and(|status| status.has_current_programs),
        cgroup_gone: status.is_some_and(|status| status.is_cgroup_gone),
        other_version,
        max_flows: status.map_or(0, |status| status.max_flows),
        max_udp_flows: status.map_or(0, |status| status.max_udp_flows),
        memory: JsonMemory {
            tables: status.map_or(0, |status| status.memory.tables),
            programs: status.map_or(Some(0), |status| status.memory.programs),
        },
    }
}

fn json_port(port: &PortStatus) -> JsonPort {
    let (protocol, traffic) = match port.traffic {
        Traffic::Tcp(FlowCount { untouched, translated, awaiting_header }) => {
            ("tcp", JsonTraffic::Tcp { untouched, translated, awaiting_header })
        }
        Traffic::Udp(rule, flows) => {
            let dialect = rule.dialect.as_str();
            ("udp", JsonTraffic::Udp { backend_port: rule.backend_port, dialect, flows })
        }
    };
    JsonPort {
        port: port.port,
        ports: name(port),
        protocol,
        attachment: port.attachment,
        draining: port.draining,
        refusing: port.refusing,
        traffic,
        counters: port.counters.iter().map(|(counter, value)| (counter.name, *value)).collect(),
    }
}
