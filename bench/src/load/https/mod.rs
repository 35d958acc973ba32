//! HTTPS: `GET /1kb` over TLS 1.3 with one suite, by HTTP/1.1 or HTTP/2, from an origin with the same
//! parameters. Every response is checked: status, length, and each byte.

mod answer;
mod connection;
mod handshakes;
mod link;
mod streams;

use self::connection::Connection;
use super::{closed, faults, idle, timetable};
use crate::clients::Clients;
use crate::contestant::Stand;
use crate::metric::{Metric, Sample};
use crate::suites::Scale;

pub(super) fn closed_loop(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    let measured = closed::run(stand, scale, open_by_thread(stand, scale, connections)?)?;
    let mut sample = Sample::default();
    sample.put(Metric::Requests, measured.per_second(measured.counts.done));
    faults::put_with_latencies(&mut sample, &measured)?;
    Ok(sample)
}

pub(super) fn constant_rate(stand: &Stand, scale: &Scale, connections: usize) -> anyhow::Result<Sample> {
    let threads = open_by_thread(stand, scale, connections)?;
    let (mut sample, measured) = timetable::run(stand, scale, scale.rate, threads)?;
    sample.put(Metric::Requests, measured.per_second(measured.counts.done));
    faults::put_with_latencies(&mut sample, &measured)?;
    Ok(sample)
}

/// By HTTP/2, `at_once` requests on each connection.
pub(super) fn streams(
    stand: &Stand,
    scale: &Scale,
    connections: usize,
    at_once: usize,
) -> anyhow::Result<Sample> {
    streams::run(stand, scale, connections, at_once)
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
    let mut clients = Clients::share(stand.at.entrance, 0, 1);
    for number in 0..connections {
        let connection = Connection::open(stand, &mut clients)?;
        connection.stop_blocking()?;
        groups[number % scale.threads].push(connection);
    }
    Ok(groups)
}
