//! What `truepeer attach status` says.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use serde::Serialize;
use truepeer_bpf::{FlowCount, PortStatus, Status, Traffic};

/// For people: what has happened, not what hasn't.
pub(crate) fn write(status: Option<&Status>, out: &mut dyn Write) -> Result<()> {
    let Some(status) = status else {
        writeln!(out, "not attached")?;
        return Ok(());
    };
    for port in &status.ports {
        write_port(port, out)?;
    }
    Ok(())
}

fn write_port(port: &PortStatus, out: &mut dyn Write) -> Result<()> {
    let state = if port.draining { "detached, draining" } else { "attached" };
    match port.traffic {
        Traffic::Tcp(flows) => writeln!(
            out,
            "port {}/tcp: {state}; open: {} untouched, {} translated; {} awaiting their header or accept()",
            port.port, flows.untouched, flows.translated, flows.awaiting_header
        )?,
        Traffic::Udp(gate, flows) => writeln!(
            out,
            "port {}/udp: {state}, {} to port {}; {flows} flows",
            port.port,
            gate.dialect.as_str(),
            gate.backend_port
        )?,
    }
    for (counter, value) in port.counters.iter().filter(|(_, value)| *value > 0) {
        writeln!(out, "  {value:>10}  {} ({})", counter.meaning, counter.name)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Json {
    attached: bool,
    ports: Vec<JsonPort>,
}

#[derive(Serialize)]
struct JsonPort {
    port: u16,
    protocol: &'static str,
    draining: bool,
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

/// For machines: everything.
pub(crate) fn write_json(status: Option<&Status>, out: &mut dyn Write) -> Result<()> {
    let ports = status.map(|status| status.ports.as_slice()).unwrap_or_default();
    let json = Json { attached: status.is_some(), ports: ports.iter().map(json_port).collect() };
    serde_json::to_writer_pretty(&mut *out, &json)?;
    writeln!(out)?;
    Ok(())
}

fn json_port(port: &PortStatus) -> JsonPort {
    let (protocol, traffic) = match port.traffic {
        Traffic::Tcp(FlowCount { untouched, translated, awaiting_header }) => {
            ("tcp", JsonTraffic::Tcp { untouched, translated, awaiting_header })
        }
        Traffic::Udp(gate, flows) => {
            let dialect = gate.dialect.as_str();
            ("udp", JsonTraffic::Udp { backend_port: gate.backend_port, dialect, flows })
        }
    };
    JsonPort {
        port: port.port,
        protocol,
        draining: port.draining,
        traffic,
        counters: port.counters.iter().map(|(counter, value)| (counter.name, *value)).collect(),
    }
}
