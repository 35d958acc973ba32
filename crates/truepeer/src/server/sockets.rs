//! Sockets before they serve: privileges, inherited sockets, and reasons why a socket can't be opened.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};
use tracing::{info, warn};
use truepeer_policy::Source;
use truepeer_session::EngineError;
use truepeer_sys::socket;

use super::{holder, notify};
use truepeer_config::plan::{Change, CheckedListener, passed};
use truepeer_config::spec::Protocol;

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
    let address = failed.address;
    let (transport, v6_only) = (listener.config.protocol.into(), listener.v6_only);
    let wanted = holder::Wanted { address, transport, v6_only };
    if let Some(own) = holder::own(wanted) {
        return anyhow::anyhow!(
            "can't listen on {address}: this program has {own} open, which includes it; leave one of the two out. If the service \
             manager passed {own}, it needs BindIPv6Only=ipv6-only in the .socket unit"
        );
    }
    match holder::of(wanted) {
        Some(holder) => anyhow::anyhow!(
            "can't listen on {address}: {holder} listens there; stop it, or choose another address"
        ),
        None => error.into(),
    }
}

/// Closes sockets that the service manager has kept for listeners which are gone or have another shape: they
/// would be in the way of others, and clients would wait for an answer. Returns their addresses.
pub(super) fn take_stale(
    inherited: &mut Vec<OwnedFd>,
    listeners: &[Arc<CheckedListener>],
) -> Vec<(Protocol, SocketAddr)> {
    let stored = |socket: &OwnedFd| {
        let (protocol, address) = identity(socket)?;
        let kept = passed::names().get(&notify::name(protocol, address))?;
        kept.contains(&address).then_some((protocol, address))
    };
    let serves =
        |listener: &CheckedListener, socket: &OwnedFd, (protocol, address): (Protocol, SocketAddr)| {
            let is_shared = address.is_ipv6() && !sockopt::ipv6_v6only(socket).unwrap_or(true);
            (listener.key.protocol, listener.key.address) == (protocol, address)
                && !(listener.v6_only && is_shared)
        };
    let mut stale = Vec::new();
    inherited.retain(|socket| {
        let Some(kept) = stored(socket) else { return true };
        if listeners.iter().any(|listener| serves(listener, socket, kept)) {
            return true;
        }
        info!(
            "the service manager has kept a socket on {}, which no listener here has: it is closed",
            kept.1
        );
        stale.push(kept);
        false
    });
    stale
}

/// What names a socket in the service manager's store.
fn identity(socket: &OwnedFd) -> Option<(Protocol, SocketAddr)> {
    let address = socket::local_address(socket.as_fd()).ok()?;
    let protocol = match sockopt::socket_type(socket).ok()? {
        SocketType::DGRAM => Protocol::Udp,
        _ => Protocol::Tcp,
    };
    Some((protocol, address))
}

/// Closes sockets of the old process that no listener here has, also in the service manager's store: there
/// they would stay open for nobody, and clients would wait for an answer. Those of socket units are left.
pub(super) fn let_go(sockets: &mut Vec<OwnedFd>) {
    sockets.retain(|socket| {
        let Some((protocol, address)) = identity(socket) else { return false };
        let name = notify::name(protocol, address);
        if passed::names().iter().any(|(unit, passed)| *unit != name && passed.contains(&address)) {
            return true;
        }
        info!("the old process had a socket on {address}, which no listener here has: it is closed");
        notify::remove(&name);
        false
    });
}

/// The service manager's own sockets stay open whatever this process does.
///
/// # Errors
/// One of them would be in the way of a listener.
pub(super) fn refuse_beside_passed(changes: &[Change]) -> anyhow::Result<()> {
    let closed = changes.iter().take_while(|change| matches!(change, Change::Close(_))).map(Change::key);
    for old in closed {
        let is_unit = |(name, sockets): &(&String, &BTreeSet<SocketAddr>)| {
            sockets.contains(&old.address) && **name != notify::name(old.protocol, old.address)
        };
        let Some((unit, _)) = passed::names().iter().find(is_unit) else { continue };
        let opened = changes.iter().filter(|change| matches!(change, Change::Open(_))).map(Change::key);
        if let Some(new) = opened.into_iter().find(|new| new.conflicts(&old)) {
            anyhow::bail!(
                "can't listen on {new}: the service manager keeps {old} open ({unit}); expected: the new address in ListenStream= of \
                 the socket unit, then systemctl daemon-reload, and a restart of it and of truepeer"
            );
        }
    }
    Ok(())
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
