//! The listening sockets: opened or inherited, and divided among the workers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::SocketType;
use truepeer_session::ListenerId;
use truepeer_session::listening::{ListenError, ListenOptions, listen, prepare, take_inherited};
use truepeer_session::settings::ListenerSettings;
use truepeer_sys::socket::local_address;

use crate::udp::downstream::{self, DownstreamSocket};
use crate::udp::tuples::Tuples;

/// One worker's listening sockets.
#[derive(Debug, Default)]
pub(crate) struct ListenerSockets {
    pub(crate) tcp: Vec<Arc<OwnedFd>>,
    pub(crate) udp: Vec<DownstreamSocket>,
}

/// An open listener.
#[derive(Debug)]
pub(crate) struct Opened {
    /// All its sockets.
    pub(crate) sockets: Vec<Arc<OwnedFd>>,
    /// The same, one entry for each worker.
    pub(crate) by_worker: Vec<ListenerSockets>,
}

impl Opened {
    /// The addresses of all sockets without duplicates. Port 0 is replaced by the port that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let addresses = self.sockets.iter().filter_map(|socket| local_address(socket.as_fd()).ok());
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }
}

/// Opens a listener for `workers`, or takes it from `inherited`.
///
/// # Errors
/// The first socket that can't be opened.
pub(crate) fn open(
    id: ListenerId,
    settings: &ListenerSettings,
    workers: usize,
    inherited: &mut Vec<OwnedFd>,
    tuples: &Tuples,
) -> Result<Opened, ListenError> {
    let mut by_worker: Vec<_> = (0..workers).map(|_| ListenerSockets::default()).collect();
    let kind = if settings.udp.is_some() { SocketType::DGRAM } else { SocketType::STREAM };
    let ours = take_inherited(inherited, settings.address, kind);
    let sockets = match &settings.udp {
        Some(udp) => {
            let downstreams = downstream::open(id, settings, udp, ours, workers, tuples)?;
            let sockets = downstreams.iter().map(|downstream| Arc::clone(&downstream.socket)).collect();
            for downstream in downstreams {
                by_worker[downstream.number % workers].udp.push(downstream);
            }
            sockets
        }
        None => {
            let sockets = listen_or_inherit(settings, ours)?;
            share(&sockets, &mut by_worker);
            sockets
        }
    };
    Ok(Opened { sockets, by_worker })
}

/// The sockets of one TCP listener: inherited or new.
fn listen_or_inherit(
    settings: &ListenerSettings,
    inherited: Vec<OwnedFd>,
) -> Result<Vec<Arc<OwnedFd>>, ListenError> {
    let sockets = if inherited.is_empty() { listen_on(settings)? } else { inherited };
    sockets.iter().for_each(prepare);
    Ok(sockets.into_iter().map(Arc::new).collect())
}

fn listen_on(settings: &ListenerSettings) -> Result<Vec<OwnedFd>, ListenError> {
    let ListenerSettings { sockets, transparent, v6_only, .. } = *settings;
    let options = ListenOptions { reuse_port: sockets > 1, transparent, v6_only };
    (0..settings.sockets.max(1)).map(|_| listen(settings.address, options)).collect()
}

/// With at least as many sockets as workers, each socket belongs to one worker. With fewer, several workers
/// share a socket, and the kernel wakes one of them for each connection.
fn share(sockets: &[Arc<OwnedFd>], by_worker: &mut [ListenerSockets]) {
    let workers = by_worker.len();
    let pairs = (0..sockets.len().max(workers)).map(|turn| (turn % sockets.len(), turn % workers));
    for (socket, worker) in pairs {
        by_worker[worker].tcp.push(Arc::clone(&sockets[socket]));
    }
}
