//! Sockets before they serve: privileges, inherited sockets, and reasons why a socket can't be opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use tracing::warn;
use truepeer_policy::Source;
use truepeer_session::EngineError;
use truepeer_sys::socket;

use super::holder;
use crate::plan::CheckedListener;

/// Without the privilege every session would fail.
pub(super) fn check_privilege(listeners: &[Arc<CheckedListener>]) -> anyhow::Result<()> {
    if listeners.iter().all(|listener| listener.config.source() == Source::Any) {
        return Ok(()); // no client's address is used
    }
    let probe = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let answer = socket::tcp_socket(probe).and_then(|socket| socket::set_transparent(socket.as_fd(), probe));
    match answer {
        Err(error) if error.errno == Errno::PERM => Err(anyhow::Error::new(error).context(
            "backends can't be made to see clients: give truepeer CAP_NET_RAW or CAP_NET_ADMIN (root, setcap \
             cap_net_raw,cap_net_admin+ep, or AmbientCapabilities= of a unit)",
        )),
        _ => Ok(()),
    }
}

/// For a port in use, names the program that has it, if this user may see it.
pub(super) fn explain(error: EngineError, listener: &CheckedListener) -> anyhow::Error {
    let EngineError::Listen(failed) = &error else { return error.into() };
    if failed.error.errno != Errno::ADDRINUSE {
        return error.into();
    }
    let (address, transport) = (failed.address, listener.config.protocol.into());
    if let Some(own) = holder::own(address, transport) {
        return anyhow::anyhow!(
            "can't listen on {address}: this program has {own} open, which includes it; leave one of the two out. If the service \
             manager passed {own}, it needs BindIPv6Only=ipv6-only in the .socket unit"
        );
    }
    match holder::of(address, transport) {
        Some(holder) => anyhow::anyhow!(
            "can't listen on {address}: {holder} listens there; stop it, or choose another address with --listen"
        ),
        None => error.into(),
    }
}

/// Warns about inherited sockets without a listener: clients of a socket that the service manager keeps open
/// would wait forever.
pub(super) fn warn_of_unasked(left: &[OwnedFd]) {
    for socket in left {
        match socket::local_address(socket.as_fd()) {
            Ok(address) => warn!(
                "the service manager passed a socket on {address}, for which there is no listener here: it is closed; is --listen {address} missing?"
            ),
            Err(error) => warn!(
                "the service manager passed a descriptor that is no internet socket, which is closed: {error}"
            ),
        }
    }
}
