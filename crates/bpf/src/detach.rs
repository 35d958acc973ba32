//! Detaches: first without ending open connections, then completely.

use crate::error::AttachError;
use crate::place::{LAST_RITES, Place};
use crate::rules::NewConnections;
use crate::status::{FlowCount, Traffic, status};
use crate::tables::Tables;
use crate::{cut, links};

/// Stops checking new connections, and returns how many are still open. The programs stay while there are any;
/// then call [`detach_now`]. It may be called again after an interruption.
///
/// Datagrams are no longer checked from now on: for them there is nothing to wait for.
pub fn drain(place: &Place, new: NewConnections) -> Result<FlowCount, AttachError> {
    // Without this hook nothing reports the ends of connections: either there is no TCP, or a removal was
    // interrupted.
    if !place.exists()? || !place.hook(LAST_RITES).exists() {
        return Ok(FlowCount::default());
    }
    Tables::open(place)?.drain(new)?;
    let ports = status(place)?.map(|status| status.ports).unwrap_or_default();
    let flows = ports.iter().filter_map(|port| match port.traffic {
        Traffic::Tcp(flows) => Some(flows),
        Traffic::Udp(..) => None,
    });
    Ok(flows.fold(FlowCount::default(), |sum, flows| FlowCount {
        untouched: sum.untouched + flows.untouched,
        translated: sum.translated + flows.translated,
        awaiting_header: sum.awaiting_header + flows.awaiting_header,
    }))
}

/// Removes everything. Connections that need the programs are ended (see `cut`). Those with a correct guess only
/// lose their client's name.
///
/// # Errors
/// The kernel refused a step. [`AttachError::Uncut`]: nothing was removed, but new connections are no longer
/// checked.
pub fn detach_now(place: &Place, new: NewConnections) -> Result<(), AttachError> {
    if !place.exists()? {
        return Ok(());
    }
    let _lock = place.lock()?;
    // If some tables are missing, a removal was interrupted. Nothing is translated without them, so remove the
    // rest, too.
    if Tables::are_all_there(place) {
        let mut tables = Tables::open(place)?;
        tables.drain(new)?;
        cut::cut_off(&tables)?;
    }
    remove_all(place)
}

/// Removes the programs and tables.
pub(crate) fn remove_all(place: &Place) -> Result<(), AttachError> {
    if !links::has_tcx() {
        links::leave_clsact();
    }
    place.remove()
}
