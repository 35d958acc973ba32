//! Ends the connections that can't continue without the programs, before those are removed.
//!
//! The kernel and the sender number the bytes of a translated connection differently. Without translation,
//! the sender's next segment would lie δ bytes too early (the kernel takes its first δ bytes for old ones,
//! and the backend never gets them) or too late (bytes in flight are delivered twice): silently wrong data.
//! The same holds while a header is awaited. So the kernel is told to end these connections while their
//! packets are still translated: the sender gets a RST, and the backend's calls fail with ECONNABORTED.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use truepeer_sys::CallError;
use truepeer_sys::sock_diag::{SockDiag, SocketId};

use crate::error::AttachError;
use crate::layout::{Address, FlowKey};
use crate::status;
use crate::tables::Tables;

/// Several rounds, for connections whose socket is created during a round.
const ROUNDS: usize = 10;
/// The pause between rounds: ended connections take a moment to disappear.
const PAUSE: Duration = Duration::from_millis(20);

/// Ends all of them. There must be no new ones (see [`Tables::drain`]).
pub(crate) fn cut_off(tables: &Tables) -> Result<(), AttachError> {
    let mut refused = io::Error::new(io::ErrorKind::TimedOut, "they are still there");
    let mut was_empty = false;
    for round in 0..ROUNDS {
        if round > 0 {
            std::thread::sleep(PAUSE);
        }
        let keys = dependants(tables);
        let failed = |error: CallError| AttachError::Uncut {
            count: keys_len(tables),
            what: "sock_diag",
            source: error.errno.into(),
        };
        if keys.is_empty() {
            return Ok(());
        }
        let mut kernel = SockDiag::open().map_err(failed)?;
        let connections = kernel.connections().map_err(failed)?;
        let ours: Vec<SocketId> =
            connections.into_iter().filter(|connection| keys.contains(&key(connection))).collect();
        // An entry without a socket can't deliver wrong bytes to anybody. Look twice: the kernel lists
        // sockets by their place, so one listing may miss a socket while others come and go.
        if ours.is_empty() && was_empty {
            return Ok(());
        }
        was_empty = ours.is_empty();
        for connection in &ours {
            // A connection that its owner is just closing gets into a state that older kernels can't end. It
            // needs no end.
            refused = kernel.destroy(connection).err().map_or(refused, |error| error.errno.into());
        }
    }
    Err(AttachError::Uncut { count: keys_len(tables), what: "SOCK_DESTROY", source: refused })
}

/// Connections with translated numbers, and those whose header is awaited.
fn dependants(tables: &Tables) -> BTreeSet<FlowKey> {
    // In this order: a connection becomes a flow before its entry in tp_pending is removed.
    let pending = status::live(tables.pending());
    let translated = tables.flows().into_iter().filter(|(_, flow)| flow.delta != 0).map(|(key, _)| key);
    translated.chain(pending).collect()
}

/// The name of a connection in the tables.
pub(crate) fn key(connection: &SocketId) -> FlowKey {
    let (local, sender) = (connection.local(), connection.sender());
    FlowKey {
        remote: address(sender),
        local: address(local),
        remote_port: sender.port().to_be_bytes(),
        local_port: local.port().to_be_bytes(),
    }
}

fn address(end: SocketAddr) -> Address {
    Address(match end.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    })
}

fn keys_len(tables: &Tables) -> usize {
    dependants(tables).len()
}
