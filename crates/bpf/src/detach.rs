//! Ending it: first without cutting anybody off, then for good.

use crate::place::LAST_RITES;
use crate::tables::Tables;
use crate::{AttachError, FlowCount, Place, Traffic, cut, links, status};

/// What becomes of new connections while a detachment waits for the old ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewConnections {
    /// They reach the backend as they are, with their header and unjudged: it fails open.
    Pass,
    /// Those of senders that must send a header are refused.
    Refuse,
}

/// Judges no new connection any more, and counts those that are still open. While there are any, the programs stay; with none left it is time
/// for [`detach_now`]. It may be called again after an interruption.
///
/// Datagrams are no longer judged at once: with them there is nothing to wait for.
pub fn drain(place: &Place, new: NewConnections) -> Result<FlowCount, AttachError> {
    // Without that hook nobody would tell of an end: there is no TCP, or a removal was interrupted.
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

/// Removes everything. Connections that can't do without us are cut off (see `cut`); those with a right guess only lose their client's name.
///
/// # Errors
/// If the kernel refuses a step. [`AttachError::Uncut`]: nothing was removed, but no new connection is judged.
pub fn detach_now(place: &Place, new: NewConnections) -> Result<(), AttachError> {
    if !place.exists()? {
        return Ok(());
    }
    let _lock = place.lock()?;
    // Tables that are not all there have been removed in part, and nothing is translated without them: the rest shall go, too.
    if Tables::are_all_there(place) {
        let mut tables = Tables::open(place)?;
        tables.drain(new)?;
        cut::cut_off(&tables)?;
    }
    remove_all(place)
}

/// The programs and the tables, whoever needs them.
pub(crate) fn remove_all(place: &Place) -> Result<(), AttachError> {
    if !links::has_tcx() {
        links::leave_clsact();
    }
    place.remove()
}
