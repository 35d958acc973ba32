//! HTTPS: `GET /1kb` over TLS 1.3 with one suite, from an origin with the same parameters. Every response is
//! checked: status, length, and each byte.

mod answer;
mod closed;
mod connection;
mod faults;
mod handshakes;
mod link;
mod rate;

use hdrhistogram::Histogram;

use self::connection::Connection;
use self::faults::HttpsFaults;
use super::conductor::Measured;
use super::idle;
use crate::clients::Clients;
use crate::contestant::Stand;
use crate::measure::latency;
use crate::metric::Sample;
use crate::suites::Scale;

pub(super) fn closed_loop(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    closed::run(stand, scale, connections)
}

pub(super) fn constant_rate(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    rate::run(stand, scale, connections)
}

pub(super) fn handshakes(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    handshakes::run(stand, scale, connections)
}

/// Connections that have received one page and are idle.
pub(super) fn idle(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    idle::measure(
        stand,
        scale.idle,
        |clients| {
            let mut connection = Connection::open(stand, clients)?;
            connection.exchange()?;
            Ok(connection)
        },
        |connection| connection.exchange().is_ok(),
    )
}

/// Connections, divided among the load's threads.
fn open_by_thread(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Vec<Vec<Connection>>> {
    let mut groups: Vec<Vec<Connection>> = (0..scale.threads).map(|_| Vec::new()).collect();
    let mut clients = Clients::share(0, 1);
    for number in 0..connections {
        let connection = Connection::open(stand, &mut clients)?;
        connection.stop_blocking()?;
        groups[number % scale.threads].push(connection);
    }
    Ok(groups)
}

fn put_latencies_and_faults(
    sample: &mut Sample,
    measured: &Measured<(Histogram<u64>, HttpsFaults)>,
) -> anyhow::Result<()> {
    latency::put(sample, measured.reports.iter().map(|(latencies, _)| latencies))?;
    latency::put_cpu(sample, measured.cpu, measured.counts.done);
    HttpsFaults::put(sample, measured.reports.iter().map(|(_, faults)| faults));
    Ok(())
}
