//! The listening sockets: opened or inherited, and divided among the workers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::SocketType;
use truepeer_session::ListenerId;
use truepeer_session::listening::{ListenError, ListenOptions, listen, prepare, take_inherited};
use truepeer_session::settings::ListenerSettings;
use truepeer_sys::socket::local_address;

use crate::udp::gate::{self, Gate};
use crate::udp::tuples::Tuples;

/// One worker's listening sockets.
#[derive(Debug, Default)]
pub(crate) struct Entrances {
    pub(crate) doors: Vec<Arc<OwnedFd>>,
    pub(crate) gates: Vec<Gate>,
}

/// An open listener.
#[derive(Debug)]
pub(crate) struct Opened {
    /// All its sockets.
    pub(crate) sockets: Vec<Arc<OwnedFd>>,
    /// The same, one entry for each worker.
    pub(crate) by_worker: Vec<Entrances>,
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
    let mut by_worker: Vec<_> = (0..workers).map(|_| Entrances::default()).collect();
    let kind = if settings.udp.is_some() { SocketType::DGRAM } else { SocketType::STREAM };
    let ours = take_inherited(inherited, settings.address, kind);
    let sockets = match &settings.udp {
        Some(udp) => {
            let gates = gate::open(id, settings, udp, ours, workers, tuples)?;
            let sockets = gates.iter().map(|gate| Arc::clone(&gate.socket)).collect();
            for gate in gates {
                by_worker[gate.number % workers].gates.push(gate);
            }
            sockets
        }
        None => {
            let sockets = doors(settings, ours)?;
            share(&sockets, &mut by_worker);
            sockets
        }
    };
    Ok(Opened { sockets, by_worker })
}

/// The sockets of one TCP listener: inherited or new.
fn doors(settings: &ListenerSettings, inherited: Vec<OwnedFd>) -> Result<Vec<Arc<OwnedFd>>, ListenError> {
    let sockets = if inherited.is_empty() { listen_on(settings)? } else { inherited };
    sockets.iter().for_each(prepare);
    Ok(sockets.into_iter().map(Arc::new).collect())
}

fn listen_on(settings: &ListenerSettings) -> Result<Vec<OwnedFd>, ListenError> {
    let ListenerSettings { sockets, transparent, v6_only, .. } = *settings;
    let options = ListenOptions { reuse_port: sockets > 1, transparent, v6_only };
    (0..settings.sockets.max(1)).map(|_| listen(settings.address, options)).collect()
}

/// With at least as many sockets as workers, each socket belongs to one worker. With fewer, several workers share
/// a socket, and the kernel wakes one of them for each connection.
fn share(sockets: &[Arc<OwnedFd>], entrances: &mut [Entrances]) {
    let workers = entrances.len();
    let pairs = (0..sockets.len().max(workers)).map(|turn| (turn % sockets.len(), turn % workers));
    for (socket, worker) in pairs {
        entrances[worker].doors.push(Arc::clone(&sockets[socket]));
    }
}
