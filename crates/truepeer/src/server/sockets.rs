//! Sockets before they serve: privileges, those that a service manager passed, and why one can't be opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use tracing::warn;
use truepeer_policy::Source;
use truepeer_session::EngineError;
use truepeer_sys::socket;

use super::holder;
use crate::plan::{CheckedListener, Config};
use crate::routes::item::Transport;
use crate::spec::Protocol;

/// Without the privilege every session would fail, each when it comes.
pub(super) fn check_privilege(config: &Config) -> anyhow::Result<()> {
    if config.listeners.iter().all(|listener| listener.source() == Source::Any) {
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

/// A port in use is reported with the program that has it, where this user may see that.
pub(super) fn explain(error: EngineError, listener: &CheckedListener) -> anyhow::Error {
    let EngineError::Listen(failed) = &error else { return error.into() };
    let transport = match listener.config.protocol {
        Protocol::Tcp => Transport::Tcp,
        Protocol::Udp => Transport::Udp,
    };
    let is_in_use = failed.error.errno == Errno::ADDRINUSE;
    match is_in_use.then(|| holder::of(failed.address, transport)).flatten() {
        Some(holder) => anyhow::anyhow!(
            "can't listen on {}: {holder} listens there; stop it, or choose another address with --listen",
            failed.address
        ),
        None => error.into(),
    }
}

/// What no listener has taken: clients of a socket that the service manager holds open would wait for ever.
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
