//! Ending it: first without cutting anybody off, then for good.

use crate::tables::Tables;
use crate::{AttachError, FlowCount, Place, links, status};

/// Lets no new connection in, and says how many are still open. Programs stay until [`detach_now`].
///
/// New connections reach the backend as they are: with their header.
pub fn drain(place: &Place) -> Result<FlowCount, AttachError> {
    if !place.exists() {
        return Ok(FlowCount::default());
    }
    Tables::open(place)?.drain()?;
    let ports = status(place)?.map(|status| status.ports).unwrap_or_default();
    Ok(ports.iter().fold(FlowCount::default(), |sum, port| FlowCount {
        untouched: sum.untouched + port.flows.untouched,
        translated: sum.translated + port.flows.translated,
        awaiting_header: sum.awaiting_header + port.flows.awaiting_header,
    }))
}

/// Removes everything. Translated connections break; those with a right guess only lose their client's name.
pub fn detach_now(place: &Place) -> Result<(), AttachError> {
    if !place.exists() {
        return Ok(());
    }
    let _lock = place.lock()?;
    Tables::open(place)?.drain()?;
    if !links::has_tcx() {
        links::leave_clsact();
    }
    place.remove()
}
