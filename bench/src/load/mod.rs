//! Runs the loads: each uses the programs in the calling thread's network namespace and returns a sample.

mod closed;
mod conductor;
mod connections;
mod datagrams;
mod exchange;
mod faults;
mod flood;
mod flows;
mod https;
mod idle;
mod ping_pong;
mod timetable;

use crate::backend::Totals;
use crate::contestant::Stand;
use crate::metric::Sample;
use crate::suites::{FEW, Load, MANY, Scale};

/// The scale, with a longer warm-up where buffers fill slowly (fifty echoed streams hold hundreds of megabytes),
/// and where a proxy opens hundreds of connections to the origin.
fn adapt(load: Load, scale: &Scale) -> Scale {
    let factor = if load == Load::Streaming || load.is_http2() { 4 } else { 1 };
    Scale { warm_up: scale.warm_up * factor, ..*scale }
}

/// Runs the load on the programs in the calling thread's network namespace.
pub(crate) fn run(load: Load, stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    let scale = &adapt(load, scale);
    let mut sample = match load {
        Load::Streaming => flood::streaming(stand, scale),
        Load::BulkUp | Load::HostsBulkUp => flood::bulk_up(stand, scale),
        Load::BulkDown | Load::HostsBulkDown => flood::bulk_down(stand, scale),
        Load::PingPong | Load::HostsPingPong => ping_pong::run(stand, scale),
        Load::PingPongRate | Load::HostsPingPongRate => ping_pong::at_constant_rate(stand, scale),
        Load::Connections | Load::HostsConnections => connections::run(stand, scale),
        Load::Udp64 | Load::Udp1400 => datagrams::run(stand, scale, load.datagram_bytes()),
        Load::Idle => idle::run(stand, scale),
        Load::Https10 => https::closed_loop(stand, scale, FEW),
        Load::Https64 => https::closed_loop(stand, scale, MANY),
        Load::HttpsRate => https::constant_rate(stand, scale, MANY),
        Load::HttpsStreams1 | Load::HttpsStreams10 | Load::HttpsStreams50 => {
            https::streams(stand, scale, FEW, load.streams())
        }
        Load::Handshakes => https::handshakes(stand, scale, scale.connections),
        Load::HttpsIdle => https::idle(stand, scale),
        Load::HttpsStacks => anyhow::bail!("its parties stand on stacks of their own"),
    }?;
    if stand.header {
        let strangers = Totals::ask(stand.at.tally)?.strangers;
        if strangers > 0 {
            sample.flaw(format!("the backend did not see the client in {strangers} sessions"));
        }
    }
    Ok(sample)
}
