//! Checks whether a header claims an address of this host. It uses a socket of each family that is open from
//! the start: if the program has no free descriptor, the connection that it has just accepted must not be
//! refused for that.

use core::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};

use rustix::io::Errno;
use truepeer_sys::host;

use crate::movable::{Movable, alone};
use crate::ours;

/// For IPv4 and IPv6.
static PROBES: [Movable; 2] = [Movable::nobody(), Movable::nobody()];

/// Call it while the library is loaded.
pub(crate) fn open() {
    for (probe, is_ipv6) in PROBES.iter().zip([false, true]) {
        if let Ok(opened) = open_one(is_ipv6) {
            probe.hold(opened);
        }
    }
}

fn open_one(is_ipv6: bool) -> Result<OwnedFd, Errno> {
    ours::keep(host::open_probe(is_ipv6)?, false)
}

/// The check of [`host::is_own_address_once`].
pub(crate) fn is_own_address(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let probe = &PROBES[usize::from(ip.is_ipv6())];
    match probe.with(|probe| Ok(host::is_own_address_by(probe, ip))) {
        Ok(Some(false)) => false,
        said => {
            renew(probe, ip.is_ipv6());
            said == Ok(Some(true)) || host::is_own_address_once(ip)
        }
    }
}

/// After a yes the socket is bound and can't be asked again, so it is replaced. If no descriptor is free, the
/// next claim tries again.
fn renew(probe: &Movable, is_ipv6: bool) {
    let _ = alone(|| {
        probe.replace(open_one(is_ipv6)?);
        Ok(())
    });
}

/// If one of the sockets has this number, moves it to another.
///
/// # Errors
/// Those of [`Movable::move_from`].
pub(crate) fn move_from(taken: RawFd) -> Result<bool, Errno> {
    Ok(PROBES[0].move_from(taken)? || PROBES[1].move_from(taken)?)
}

/// Call it in a forked child.
pub(crate) fn on_fork() {
    PROBES.iter().for_each(Movable::on_fork);
}
