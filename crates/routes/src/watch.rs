//! Notices when another program changes rules or devices. systemd-networkd removes rules that it does not
//! know whenever it starts (`ManageForeignRoutingPolicyRules=`), and a loopback interface that goes down
//! takes its routes along.
//!
//! It doesn't subscribe to changes of routes, because a router's tables change all the time. So truepeer also
//! looks every `INTERVAL`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The longest time between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// The time from a change to the look: a program that removes rules adds its own right after that.
const SETTLING: Duration = Duration::from_millis(50);
/// The shortest time between two looks, however much changes.
const PAUSE: Duration = Duration::from_secs(1);
/// Linux' groups of messages (linux/rtnetlink.h): devices, rules of IPv4, rules of IPv6.
const GROUPS: [u32; 3] = [1, 8, 19];
/// The most messages that are read for one look; the rest is read after the next poll().
const MOST_MESSAGES: usize = 1000;

/// Tells when to look at rules and routes.
pub struct RoutesWatch {
    socket: Socket,
    looks: Looks,
    has_lost: bool,
}

impl RoutesWatch {
    /// Listens in the network namespace of the calling thread.
    ///
    /// # Errors
    /// A failed system call on the netlink socket.
    pub fn begin(now: Instant) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
        Ok(Self { socket, looks: Looks::from(now), has_lost: false })
    }

    /// When to call [`Self::is_due`] at the latest; earlier if the socket becomes readable.
    pub fn next_look(&self) -> Instant {
        self.looks.next
    }

    /// Whether to look now. Reads the socket's messages.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let has_noticed = self.has_noticed();
        self.looks.is_due(has_noticed, now)
    }

    /// Whether a rule, or the loopback interface's routes, were removed since this was asked last: by the
    /// time of the look another truepeer may have put them back.
    pub fn has_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    fn has_noticed(&mut self) -> bool {
        let mut count = 0;
        while count < MOST_MESSAGES {
            match self.socket.recv_from_full() {
                Ok((message, _)) => {
                    count += 1;
                    self.has_lost |= is_loss(&message);
                }
                // Messages were lost (ENOBUFS): something has changed.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    self.has_lost = true;
                    return true;
                }
                Err(_) => break,
            }
        }
        count > 0
    }
}

/// Whether a message (linux/netlink.h, struct nlmsghdr) says that a rule was removed, or that the loopback
/// interface has changed (linux/rtnetlink.h, struct ifinfomsg): its routes go when it goes down.
fn is_loss(message: &[u8]) -> bool {
    const RTM_NEWLINK: u16 = 16;
    const RTM_DELRULE: u16 = 33;
    const LOOPBACK: i32 = 1;
    let kind = message.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let device = message.get(20..24).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    kind == Some(RTM_DELRULE) || (kind == Some(RTM_NEWLINK) && device == Some(LOOPBACK))
}

/// The times of the looks.
#[derive(Debug)]
struct Looks {
    next: Instant,
    earliest: Instant,
}

impl Looks {
    fn from(now: Instant) -> Self {
        Self { next: now + INTERVAL, earliest: now }
    }

    fn is_due(&mut self, has_noticed: bool, now: Instant) -> bool {
        if has_noticed {
            self.next = self.next.min((now + SETTLING).max(self.earliest));
        }
        let is_due = now >= self.next;
        if is_due {
            *self = Self { next: now + INTERVAL, earliest: now + PAUSE };
        }
        is_due
    }
}

impl AsFd for RoutesWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_at_least_now_and_then() {
        let start = Instant::now();
        let mut looks = Looks::from(start);
        assert!(!looks.is_due(false, start) && looks.next == start + INTERVAL);
        assert!(looks.is_due(false, start + INTERVAL) && !looks.is_due(false, start + INTERVAL));
        assert_eq!(looks.next, start + 2 * INTERVAL);
    }

    #[test]
    fn a_change_is_looked_at_soon_and_a_stream_of_changes_once_a_pause() {
        let start = Instant::now();
        let mut looks = Looks::from(start);
        assert!(!looks.is_due(true, start) && looks.next == start + SETTLING);
        assert!(looks.is_due(true, start + SETTLING));
        for moment in [SETTLING, 2 * SETTLING, PAUSE] {
            assert!(!looks.is_due(true, start + moment), "{moment:?}");
            assert_eq!(looks.next, start + SETTLING + PAUSE);
        }
        assert!(looks.is_due(false, start + SETTLING + PAUSE));
    }
}
