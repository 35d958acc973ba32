//! Ending it: first without cutting anybody off, then for good.

use crate::tables::Tables;
use crate::{AttachError, FlowCount, Place, Traffic, links, status};

/// Lets no new connection in, and says how many are still open. Programs stay until [`detach_now`].
///
/// New connections reach the backend as they are: with their header. So do datagrams, at once: there is nothing to wait for.
pub fn drain(place: &Place) -> Result<FlowCount, AttachError> {
    if !place.exists() {
        return Ok(FlowCount::default());
    }
    Tables::open(place)?.drain()?;
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
