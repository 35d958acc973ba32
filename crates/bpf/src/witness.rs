//! How to ask the kernel whether a network namespace still exists.
//!
//! Namespaces can't be listed completely: one may be held by a process in another process namespace, by a
//! mount, or by a descriptor in transit through a socket. But a link attached in a namespace neither keeps it
//! alive nor misses its end: the namespace's devices disappear with it, and their links become empty. Other
//! devices come and go; the loopback device can't be removed or moved and disappears only with its namespace.
//! So a link on it is the *witness*. Any of truepeer's programs on it serves; if there is none, a program
//! that does nothing is attached.

use std::path::{Path, PathBuf};

use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, Program, ProgramError, SchedClassifier, SkLookup, TcAttachType};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::device::Device;
use crate::error::{AttachError, Cause};
use crate::links::{device_of_pin, has_tcx, is_empty};
use crate::load::{Loaded, Loader};
use crate::pinned_link::{Holds, holds};
use crate::place::{Place, entries, unlink};
use crate::programs::WITNESS;

/// The loopback's index in every network namespace (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;
/// The name of its pin among the links.
const PIN: &str = "witness";

/// Sets up a witness, unless a lasting one exists. Call it before creating any other link: leftovers of an
/// interrupted attachment can then be recognised, too. A witness that was detached by force looks like an
/// ended namespace, so it is replaced.
pub(crate) fn stand(place: &Place, devices: &[Device], loader: &mut Loader<'_>) -> Result<(), AttachError> {
    let pin = place.hook(PIN);
    let is_attested = has_link_on_loopback(&place.links())? && is_among(devices);
    if is_attested || is_live(&pin) {
        return Ok(());
    }
    unlink([pin.clone()])?;
    let mut loaded = loader.load(WITNESS)?;
    let link = if has_tcx() { on_loopback(&mut loaded) } else { on_namespace(&mut loaded) };
    let pinned = link.and_then(|link| Ok(link.pin(&pin).map(drop)?));
    pinned.map_err(AttachError::attach(WITNESS.name, "the network namespace"))
}

/// Remove the witness if other links serve: each program costs time for each packet.
pub(crate) fn leave_if_attested(place: &Place, devices: &[Device]) -> Result<(), AttachError> {
    let pin = place.hook(PIN);
    let is_attested = is_among(devices) && has_link_on_loopback(&place.links())?;
    if is_attested { unlink([pin]) } else { Ok(()) }
}

/// Whether the network namespace of these pins is certainly gone: a witness says so, and no other link is
/// attached to a device. (Links can be detached by force, as `bpftool link detach` does. Before tcx, devices
/// have no links, so a witness detached by force is believed until the next attachment here: see `stand`.)
pub(crate) fn is_gone(pins: &[PathBuf]) -> bool {
    let states = pins.iter().map(|pin| holds(pin).map(|state| (state, is_witness(pin))));
    let Ok(states) = states.collect::<std::io::Result<Vec<_>>>() else { return false };
    states.contains(&(Holds::Nothing, true)) && states.iter().all(|(state, _)| *state != Holds::Something)
}

/// Whether this pin's link ends exactly when its network namespace does.
pub(crate) fn is_witness(pin: &Path) -> bool {
    pin.file_name().is_some_and(|name| name == PIN) || device_of_pin(pin) == Some(LOOPBACK)
}

/// Removes the links of devices that are gone, except those that are witnesses.
pub(crate) fn leave_gone(place: &Place) -> Result<(), AttachError> {
    let pins = entries(&place.links())?.into_iter();
    unlink(pins.filter(|pin| device_of_pin(pin).is_some() && !is_witness(pin) && is_empty(pin)))
}

fn has_link_on_loopback(links: &Path) -> Result<bool, AttachError> {
    Ok(entries(links)?.iter().any(|pin: &PathBuf| device_of_pin(pin) == Some(LOOPBACK) && is_live(pin)))
}

/// Whether there is a link and it is attached.
fn is_live(pin: &Path) -> bool {
    holds(pin).is_ok_and(|state| state == Holds::Something)
}

fn is_among(devices: &[Device]) -> bool {
    loopback().is_ok_and(|name| devices.iter().any(|device| device.name == name))
}

fn loopback() -> rustix::io::Result<String> {
    netdevice::index_to_name(socket(AddressFamily::INET, SocketType::DGRAM, None)?, LOOPBACK)
}

fn on_loopback(loaded: &mut Loaded) -> Result<FdLink, Cause> {
    let program: &mut SchedClassifier = program(loaded, "witness_lo")?;
    program.load()?;
    let order = TcAttachOptions::TcxOrder(LinkOrder::default());
    let link = program.attach_with_options(&loopback()?, TcAttachType::Egress, order)?;
    Ok(program.take_link(link)?.try_into()?)
}

fn on_namespace(loaded: &mut Loaded) -> Result<FdLink, Cause> {
    let program: &mut SkLookup = program(loaded, "witness_netns")?;
    program.load()?;
    let link = program.attach(std::fs::File::open("/proc/thread-self/ns/net")?)?;
    Ok(program.take_link(link)?.into())
}

fn program<'a, P>(loaded: &'a mut Loaded, name: &'static str) -> Result<P, ProgramError>
where
    P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    loaded.program(name).try_into()
}
