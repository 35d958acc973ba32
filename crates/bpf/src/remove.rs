//! Takes ports out of what is attached.

use std::collections::BTreeSet;

use crate::attach::SEND_HOOKS;
use crate::error::AttachError;
use crate::links;
use crate::place::Place;
use crate::tables::{Tables, names_of};

/// Takes these ports out; open connections continue. Returns whether any port is left.
///
/// # Errors
/// [`AttachError::NotAttached`]: a port is not attached, and nothing was changed.
pub fn remove(place: &Place, tcp: &BTreeSet<u16>, udp: &BTreeSet<u16>) -> Result<bool, AttachError> {
    let lock = if place.exists()? { place.lock()? } else { None };
    if lock.is_none() || !Tables::are_all_there(place) {
        return Err(AttachError::NotAttached { ports: names_of(tcp.iter().copied(), udp.iter().copied()) });
    }
    let mut tables = Tables::open(place)?;
    let (ports, udp_ports) = (tables.judged_ports()?, tables.udp_ports()?);
    let strange_tcp = tcp.iter().copied().filter(|port| !ports.contains(port));
    let strange_udp = udp.iter().copied().filter(|port| !udp_ports.contains_key(port));
    let strange = names_of(strange_tcp, strange_udp);
    if !strange.is_empty() {
        return Err(AttachError::NotAttached { ports: strange });
    }
    tables.leave(tcp, udp)?;
    let has_udp = !tables.udp_ports()?.is_empty();
    if !has_udp {
        links::detach_stages(place, &[links::TCP_INGRESS, links::TCP_EGRESS])?;
        SEND_HOOKS.iter().try_for_each(|name| links::detach_hook(place, name))?;
    }
    Ok(has_udp || !tables.judged_ports()?.is_empty())
}
