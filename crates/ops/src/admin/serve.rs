//! The admin thread: poll(2) over the listening sockets and a bounded number of connections.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::error;

use super::connection::{Connection, Orders};
use super::listen::Entrance;
use super::stop::Stopped;
use super::{Running, room};

/// So many connections are accepted before those that are open have their turn.
const AT_A_TIME: usize = 8;
/// The pause when a connection can't be accepted: the lack of descriptors persists, and an immediate retry
/// would spin.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is stopped.
pub(super) fn serve(entrances: &[Entrance], stopped: &Stopped, running: &Arc<dyn Running>) {
    let orders = Orders::new(Arc::clone(running), stopped.stopper());
    let mut connections: Vec<Connection> = Vec::new();
    while !stopped.is_due() {
        let now = Instant::now();
        connections.retain(|connection| connection.deadline() > now);
        let ready = match wait(entrances, stopped, &connections, now) {
            Ok(ready) => ready,
            Err(Errno::INTR) => continue,
            Err(errno) => return error!("admin: poll failed, nothing more is answered: {errno}"),
        };
        stopped.hear();
        let now = Instant::now();
        let mut place = 0;
        connections.retain_mut(|connection| {
            let is_ready = ready.connections[place];
            place += 1;
            !(is_ready || connection.is_waiting()) || connection.turn(&orders, now)
        });
        for (entrance, _) in entrances.iter().zip(&ready.entrances).filter(|(_, is_ready)| **is_ready) {
            for _ in 0..AT_A_TIME {
                match entrance.accept() {
                    Ok(Some(stream)) => {
                        admit(&mut connections, Connection::new(stream, entrance.is_whois(), now));
                    }
                    Ok(None) => break,
                    Err(_) => {
                        std::thread::sleep(PAUSE);
                        break;
                    }
                }
            }
        }
    }
}

fn admit(connections: &mut Vec<Connection>, newcomer: Option<Connection>) {
    let Some(newcomer) = newcomer else { return };
    let open = connections.iter().map(|connection| (connection.holder(), connection.deadline()));
    if let Some(place) = room::makes_way(newcomer.holder(), open) {
        drop(connections.remove(place));
    }
    connections.push(newcomer);
}

struct Ready {
    entrances: Vec<bool>,
    connections: Vec<bool>,
}

fn wait(
    entrances: &[Entrance],
    stopped: &Stopped,
    connections: &[Connection],
    now: Instant,
) -> Result<Ready, Errno> {
    let mut watched = vec![PollFd::from_borrowed_fd(stopped.bell(), PollFlags::IN)];
    for entrance in entrances {
        watched.push(PollFd::from_borrowed_fd(entrance.as_fd(), PollFlags::IN));
    }
    for connection in connections {
        watched.push(PollFd::from_borrowed_fd(connection.as_fd(), connection.awaited()));
    }
    let first = connections.iter().map(Connection::deadline).min();
    let left = first.and_then(|first| Timespec::try_from(first.saturating_duration_since(now)).ok());
    poll(&mut watched, left.as_ref())?;
    let ready: Vec<bool> = watched[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
    let (entrances, connections) = ready.split_at(entrances.len());
    Ok(Ready { entrances: entrances.to_vec(), connections: connections.to_vec() })
}
