//! Connections that can't do without us are cut off before the programs go.
//!
//! To the kernel the bytes of a translated connection have other numbers than to their sender. Untranslated, the sender's next segment would
//! lie δ bytes too early (the kernel takes its first δ bytes for old ones, and the backend never sees them) or too late (what was
//! in flight comes twice): wrong bytes, and nobody would notice. Likewise where a header is still awaited. So the kernel is asked to end these
//! connections while their packets are still translated: the sender is sent a RST, the backend's calls fail with ECONNABORTED.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use crate::layout::FlowKey;
use crate::sock_diag::{Connection, SockDiag};
use crate::tables::Tables;
use crate::{AttachError, status};

/// Once is enough but for those whose socket is made while we look.
const ROUNDS: usize = 10;
/// Between them: what has been ended takes a moment to go.
const PAUSE: Duration = Duration::from_millis(20);

/// Ends them all; there must be no new ones (see [`Tables::drain`]).
pub(crate) fn cut_off(tables: &Tables) -> Result<(), AttachError> {
    let mut refused = io::Error::new(io::ErrorKind::TimedOut, "they are still there");
    for round in 0..ROUNDS {
        if round > 0 {
            std::thread::sleep(PAUSE);
        }
        let keys = dependants(tables);
        let failed = |what| move |source| AttachError::Uncut { count: keys_len(tables), what, source };
        if keys.is_empty() {
            return Ok(());
        }
        let mut kernel = SockDiag::open().map_err(failed("sock_diag"))?;
        let connections = kernel.connections().map_err(failed("sock_diag"))?;
        let ours: Vec<Connection> =
            connections.into_iter().filter(|connection| keys.contains(&connection.key())).collect();
        // What is in our tables without a socket has nobody who could be given wrong bytes.
        if ours.is_empty() {
            return Ok(());
        }
        for connection in &ours {
            // One that its owner closes just now becomes what older kernels can't end, and no concern of ours.
            refused = kernel.destroy(connection).err().unwrap_or(refused);
        }
    }
    Err(AttachError::Uncut { count: keys_len(tables), what: "SOCK_DESTROY", source: refused })
}

/// Those with translated numbers, and those whose header is awaited.
fn dependants(tables: &Tables) -> BTreeSet<FlowKey> {
    // In this order: a connection becomes a flow before it ceases to be an embryo.
    let embryos = status::live(tables.embryos());
    let translated = tables.flows().into_iter().filter(|(_, flow)| flow.delta != 0).map(|(key, _)| key);
    translated.chain(embryos).collect()
}

fn keys_len(tables: &Tables) -> usize {
    dependants(tables).len()
}
