//! Where senders come in: the listening sockets, opened or inherited, and divided among the workers.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::SocketType;
use truepeer_session::listening::{ListenError, ListenOptions, listen, prepare, take_inherited};
use truepeer_session::settings::ListenerSettings;
use truepeer_sys::socket::local_address;

use crate::relay::Listening;
use crate::udp::gate::{self, Gate};
use crate::udp::tuples::Tuples;

/// A listening socket that a worker accepts from.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) listener: u16,
    pub(crate) socket: Arc<OwnedFd>,
}

/// Where one worker's work comes in.
#[derive(Debug, Default)]
pub(crate) struct Entrances {
    pub(crate) doors: Vec<Door>,
    pub(crate) gates: Vec<Gate>,
}

impl Entrances {
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let doors = self.doors.iter().map(|door| &door.socket);
        let sockets = doors.chain(self.gates.iter().map(|gate| &gate.socket));
        sockets.filter_map(|socket| local_address(socket.as_fd()).ok())
    }
}

/// The addresses of all entrances, each once, with the ports that the kernel chose for port 0.
pub(crate) fn addresses(entrances: &[Entrances]) -> Vec<SocketAddr> {
    let mut addresses: Vec<_> = entrances.iter().flat_map(Entrances::addresses).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Opens every listener, or takes it from `inherited`; one entry for each of `workers`.
///
/// # Errors
/// The first socket that can't be opened.
pub(crate) fn open(
    listeners: &[Listening],
    workers: usize,
    mut inherited: Vec<OwnedFd>,
) -> Result<Vec<Entrances>, ListenError> {
    let mut entrances: Vec<_> = (0..workers).map(|_| Entrances::default()).collect();
    let tuples = Tuples::default();
    for (number, Listening { settings, .. }) in (0_u16..).zip(listeners) {
        let kind = if settings.udp.is_some() { SocketType::DGRAM } else { SocketType::STREAM };
        let ours = take_inherited(&mut inherited, settings.address, kind);
        match &settings.udp {
            Some(udp) => {
                let gates = gate::open(number, settings, udp, ours, workers, &tuples)?;
                for (gate, worker) in gates.into_iter().zip((0..workers).cycle()) {
                    entrances[worker].gates.push(gate);
                }
            }
            None => share(number, &doors(settings, ours)?, &mut entrances),
        }
    }
    Ok(entrances)
}

/// The sockets of one TCP listener: those it inherits, or new ones.
fn doors(settings: &ListenerSettings, inherited: Vec<OwnedFd>) -> Result<Vec<Arc<OwnedFd>>, ListenError> {
    let sockets = if inherited.is_empty() { listen_on(settings)? } else { inherited };
    sockets.iter().for_each(prepare);
    Ok(sockets.into_iter().map(Arc::new).collect())
}

fn listen_on(settings: &ListenerSettings) -> Result<Vec<OwnedFd>, ListenError> {
    let options = ListenOptions { reuse_port: settings.sockets > 1, transparent: settings.transparent };
    (0..settings.sockets.max(1)).map(|_| listen(settings.address, options)).collect()
}

/// As many sockets as workers or more: each has one worker. Fewer: each is shared by several workers, of which the
/// kernel wakes one per connection.
fn share(listener: u16, sockets: &[Arc<OwnedFd>], entrances: &mut [Entrances]) {
    let workers = entrances.len();
    let pairs = (0..sockets.len().max(workers)).map(|turn| (turn % sockets.len(), turn % workers));
    for (socket, worker) in pairs {
        entrances[worker].doors.push(Door { listener, socket: Arc::clone(&sockets[socket]) });
    }
}
