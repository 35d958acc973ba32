//! A link between two hosts that damages, reorders, duplicates and loses packets. It needs no kernel module:
//! the frames pass through this program.
//!
//! ```text
//!  left ──veth── [ Mischief: a queue for each direction ] ──veth── right
//! ```

use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use truepeer_sys::netns::NetNs;
use truepeer_sys::packet::PacketSocket;

use crate::bed::Bed;
use crate::chance::Chance;
use crate::program::Program;
use crate::topology::{Host, ip_here};

/// Longer than any frame of a device without offloads.
const LONGEST: usize = 9000;
const RECV_BUFFER: usize = 32 << 20;
const LINK_HEADER: usize = 14;
/// The longest time that a frame is held back while others overtake it.
const LATEST: Duration = Duration::from_millis(5);

/// How many of 1000 TCP and UDP packets suffer each kind.
#[derive(Debug, Clone, Copy)]
pub struct Mischief {
    /// One byte is changed, or the end is missing. The checksum is not updated.
    pub damaged: usize,
    /// Held back while others overtake it.
    pub late: usize,
    /// Arrives twice.
    pub doubled: usize,
    /// Never arrives.
    pub lost: usize,
}

impl Mischief {
    /// The same rate for each kind.
    pub fn of_each(share: usize) -> Mischief {
        Mischief { damaged: share, late: share, doubled: share, lost: share }
    }
}

/// The link's counters.
#[derive(Debug, Default)]
pub struct Deeds {
    /// Frames received.
    pub carried: AtomicU64,
    /// Of these: damaged.
    pub damaged: AtomicU64,
    /// Of these: held back.
    pub late: AtomicU64,
    /// Of these: duplicated.
    pub doubled: AtomicU64,
    /// Of these: lost.
    pub lost: AtomicU64,
}

/// The link. Dropping it ends its thread.
pub struct BadLink {
    /// The host at 10.77.0.1 and fd77::1; its device is called `wire`.
    pub left: Host,
    /// The host at 10.77.0.2 and fd77::2; its device is called `wire`.
    pub right: Host,
    /// The counters.
    pub deeds: Arc<Deeds>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl BadLink {
    /// Creates both hosts and connects them. The same seed makes the same decisions.
    pub fn make(bed: &Bed, mischief: Mischief, seed: u64) -> Result<BadLink> {
        let middle = NetNs::create()?;
        middle.run(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").context("disable_ipv6")
        })??;
        let left = end(bed, &middle, "left", 1)?;
        let right = end(bed, &middle, "right", 2)?;
        let sockets = middle.run(|| -> Result<_> {
            let sockets = [PacketSocket::open("left")?, PacketSocket::open("right")?];
            sockets.iter().for_each(|socket| socket.grow_recv_buffer(RECV_BUFFER));
            Ok(sockets)
        })??;
        let (deeds, ends) = (Arc::new(Deeds::default()), Arc::new(AtomicBool::new(false)));
        let mut carrier = Carrier {
            sockets,
            mischief,
            chance: Chance::new(seed),
            held: BinaryHeap::new(),
            count: 0,
            deeds: Arc::clone(&deeds),
        };
        let until = Arc::clone(&ends);
        let carry = move || {
            while !until.load(Ordering::Relaxed) {
                carrier.turn()?;
            }
            Ok(())
        };
        let thread = thread::Builder::new().name("bad link".into()).spawn(carry)?;
        Ok(BadLink { left, right, deeds, ends, thread: Some(thread) })
    }
}

impl Drop for BadLink {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the link failed: {error:#}");
        }
    }
}

/// A host with its end of the link and without offloads: each packet is complete, with its checksums, as on a
/// wire.
fn end(bed: &Bed, middle: &NetNs, name: &str, place: u8) -> Result<Host> {
    let host = Host {
        name: name.to_owned(),
        netns: NetNs::create()?,
        v4: Ipv4Addr::new(10, 77, 0, place),
        v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, place.into()),
    };
    host.run(|| ip_here(&["link set lo up"]))??;
    let other = format!("/proc/{}/fd/{}", std::process::id(), host.netns.as_fd().as_raw_fd());
    middle.run(|| {
        ip_here(&[
            &format!("link add {name} type veth peer name wire netns {other}"),
            &format!("link set {name} up"),
        ])
    })??;
    // Set the neighbour: the test concerns the transport, so no neighbour discovery.
    let other = 3 - place;
    host.ip(&[
        &format!("link set wire address 02:00:00:00:00:0{place}"),
        "link set wire up",
        &format!("addr add {}/32 dev wire", host.v4),
        &format!("addr add {}/128 dev wire nodad", host.v6),
        &format!("route add default via 10.77.0.{other} dev wire onlink"),
        &format!("route add default via fd77::{other} dev wire onlink"),
        &format!("neigh add 10.77.0.{other} lladdr 02:00:00:00:00:0{other} dev wire"),
        &format!("neigh add fd77::{other} lladdr 02:00:00:00:00:0{other} dev wire"),
    ])?;
    let off = ["-K", "wire", "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
    Program::new("ethtool").args(off).in_netns(&host.netns).run(bed)?;
    Ok(host)
}

/// A frame that others overtake. The heap returns the one that is due first.
struct Held {
    due: Instant,
    number: u64,
    to: usize,
    frame: Vec<u8>,
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.number == other.number
    }
}

impl Eq for Held {}

struct Carrier {
    sockets: [PacketSocket; 2],
    mischief: Mischief,
    chance: Chance,
    held: BinaryHeap<Held>,
    count: u64,
    deeds: Arc<Deeds>,
}

impl Carrier {
    /// Waits for a moment, and carries the frames that there are.
    fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        let due = self.held.peek().map_or(LATEST * 4, |held| held.due.saturating_duration_since(now));
        let timeout = Timespec::try_from(due).context("a time")?;
        {
            let [left, right] = &self.sockets;
            let mut fds = [PollFd::new(left, PollFlags::IN), PollFd::new(right, PollFlags::IN)];
            poll(&mut fds, Some(&timeout)).context("poll")?;
        }
        let mut buffer = [0; LONGEST];
        for from in 0..2 {
            // Limited, because the other direction waits.
            for _ in 0..64 {
                let Some(len) = self.sockets[from].try_recv(&mut buffer)? else { break };
                self.carry(&buffer[..len.min(LONGEST)], 1 - from)?;
            }
        }
        let now = Instant::now();
        while self.held.peek().is_some_and(|held| held.due <= now) {
            if let Some(held) = self.held.pop() {
                self.send(held.to, &held.frame);
            }
        }
        Ok(())
    }

    fn carry(&mut self, frame: &[u8], to: usize) -> Result<()> {
        if !is_transport(frame) {
            self.send(to, frame);
            return Ok(());
        }
        self.deeds.carried.fetch_add(1, Ordering::Relaxed);
        let Mischief { damaged, late, doubled, lost } = self.mischief;
        if self.happens(lost) {
            self.deeds.lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let mut frame = frame.to_vec();
        if self.happens(damaged) {
            self.deeds.damaged.fetch_add(1, Ordering::Relaxed);
            self.damage(&mut frame);
        }
        if self.happens(doubled) {
            self.deeds.doubled.fetch_add(1, Ordering::Relaxed);
            self.hold(frame.clone(), to);
        }
        if self.happens(late) {
            self.deeds.late.fetch_add(1, Ordering::Relaxed);
            self.hold(frame, to);
        } else {
            self.send(to, &frame);
        }
        Ok(())
    }

    fn happens(&mut self, of_1000: usize) -> bool {
        self.chance.below(1000) < of_1000
    }

    /// One byte only: two changes might cancel out in the checksum, and the hosts would rightly accept the
    /// packet.
    fn damage(&mut self, frame: &mut Vec<u8>) {
        let place = LINK_HEADER + self.chance.below(frame.len() - LINK_HEADER);
        // IPv6 has no checksum over its own header: a changed next header or hop limit is no damage that a
        // host could detect.
        if frame[12] == 0x86 && (20..22).contains(&place) {
            return frame.truncate(place);
        }
        if self.chance.below(8) == 0 {
            frame.truncate(place.max(LINK_HEADER + 1));
        } else {
            frame[place] ^= 1 << self.chance.below(8);
        }
    }

    fn hold(&mut self, frame: Vec<u8>, to: usize) {
        let latest = usize::try_from(LATEST.as_micros()).unwrap_or(usize::MAX);
        let wait = Duration::from_micros(self.chance.below(latest) as u64);
        self.count += 1;
        self.held.push(Held { due: Instant::now() + wait, number: self.count, to, frame });
    }

    /// A full queue loses frames, as real links do.
    fn send(&self, to: usize, frame: &[u8]) {
        let _ = self.sockets[to].send(frame);
    }
}

/// Neighbour discovery is not disturbed: the test concerns the transport.
fn is_transport(frame: &[u8]) -> bool {
    let protocol = match frame.get(12..14) {
        Some([0x08, 0x00]) => frame.get(23),
        Some([0x86, 0xdd]) => frame.get(20),
        _ => None,
    };
    matches!(protocol, Some(6 | 17))
}
