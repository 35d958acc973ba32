//! Detaches: first without ending open connections, then completely.

use crate::error::AttachError;
use crate::place::{LAST_RITES, Place};
use crate::rules::NewConnections;
use crate::status::{FlowCount, Traffic, status};
use crate::tables::Tables;
use crate::{cut, links};

/// Stops checking new connections, and returns how many are still open. The programs stay while there are
/// any: ask [`still_open`], and then [`finish`]. It may be called again after an interruption.
///
/// Datagrams are no longer checked from now on: for them there is nothing to wait for.
pub fn drain(place: &Place, new: NewConnections) -> Result<FlowCount, AttachError> {
    // Without this hook nothing reports the ends of connections: either there is no TCP, or a removal was
    // interrupted.
    if Tables::are_all_there(place) {
        Tables::open(place)?.drain(new)?;
    }
    if !place.exists()? || !place.hook(LAST_RITES).exists() {
        return Ok(FlowCount::default());
    }
    count(place)
}

/// How many connections keep it attached. `None`: somebody has attached here again since [`drain`].
pub fn still_open(place: &Place) -> Result<Option<FlowCount>, AttachError> {
    if !place.exists()? {
        return Ok(Some(FlowCount::default()));
    }
    // `attach add` replaces tables that are too small: without the lock, one of them could be missing at this
    // moment.
    let Some(_lock) = place.lock()? else { return Ok(Some(FlowCount::default())) };
    if Tables::are_all_there(place) && is_attached(&Tables::open(place)?)? {
        return Ok(None);
    }
    if !place.hook(LAST_RITES).exists() {
        return Ok(Some(FlowCount::default()));
    }
    count(place).map(Some)
}

fn is_attached(tables: &Tables) -> Result<bool, AttachError> {
    Ok(!tables.judged_ports()?.is_empty() || !tables.udp_ports()?.is_empty())
}

fn count(place: &Place) -> Result<FlowCount, AttachError> {
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

/// Removes everything after [`drain`], unless somebody has attached here again: then it returns false.
pub fn finish(place: &Place, new: NewConnections) -> Result<bool, AttachError> {
    end(place, new, true)
}

/// Removes everything. Connections that need the programs are ended (see `cut`). Those with a correct guess
/// only lose their client's name.
///
/// # Errors
/// The kernel refused a step. [`AttachError::Uncut`]: nothing was removed, but new connections are no longer
/// checked.
pub fn detach_now(place: &Place, new: NewConnections) -> Result<(), AttachError> {
    end(place, new, false).map(drop)
}

fn end(place: &Place, new: NewConnections, only_drained: bool) -> Result<bool, AttachError> {
    if !place.exists()? {
        return Ok(true);
    }
    if !place.is_here()? {
        return Err(AttachError::OtherNetns);
    }
    let Some(_lock) = place.lock()? else { return Ok(true) };
    // If some tables are missing, a removal was interrupted. Nothing is translated without them, so remove
    // the rest, too.
    if Tables::are_all_there(place) {
        let mut tables = Tables::open(place)?;
        if only_drained && is_attached(&tables)? {
            return Ok(false);
        }
        tables.drain(new)?;
        cut::cut_off(&tables)?;
    }
    remove_all(place).map(|()| true)
}

/// Removes the programs and tables.
pub(crate) fn remove_all(place: &Place) -> Result<(), AttachError> {
    if !links::has_tcx() {
        links::detach_clsact(&links::STAGES);
    }
    place.remove()
}
