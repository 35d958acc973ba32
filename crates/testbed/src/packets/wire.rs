//! A cable with the test at its near end.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use truepeer_sys::netns::NetNs;
use truepeer_sys::packet::PacketSocket;

use super::packet::Packet;
use super::segment::Segment;
use crate::bed::Bed;
use crate::program::Program;
use crate::topology::{Host, ip_here};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOSTS: [u8; 6] = [2, 0, 0, 0, 0, 2];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// How long an answer may take on a busy machine.
const STALL: Duration = Duration::from_secs(10);
/// More than any frame of a device without offloads.
const LONGEST: usize = 70_000;
/// A sweep over all ports leaves many answers to read.
const RECV_BUFFER: usize = 64 << 20;

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub ethertype: u16,
    /// 0: only a priority.
    pub id: u16,
}

/// A veth pair between the test and a host. Everything that the host sends arrives here.
pub struct Wire {
    /// Its device at this end is called `wire`.
    pub host: Host,
    near: NetNs,
    socket: PacketSocket,
    /// Segments that arrived while waiting for another one.
    inbox: Mutex<VecDeque<Segment>>,
}

impl Wire {
    /// Creates the host, at 10.77.0.2 and fd77::2.
    pub fn make() -> Result<Wire> {
        let near = NetNs::create()?;
        let host = Host {
            name: "host".into(),
            netns: NetNs::create()?,
            v4: Ipv4Addr::new(10, 77, 0, 2),
            v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
        };
        host.run(|| ip_here(&["link set lo up"]))??;
        near.run(|| {
            // This end must send nothing by itself.
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").context("disable_ipv6")
        })??;
        join(&near, &host, "wire", 100, [OURS, HOSTS])?;
        host.ip(&[
            "addr add 10.77.0.2/32 dev wire",
            "addr add fd77::2/128 dev wire nodad",
            "route add default via 10.77.0.1 dev wire onlink",
            "route add default via fd77::1 dev wire onlink",
            "neigh add 10.77.0.1 lladdr 02:00:00:00:00:01 dev wire",
            "neigh add fd77::1 lladdr 02:00:00:00:00:01 dev wire",
        ])?;
        let socket = near.run(|| PacketSocket::open("host"))??;
        socket.grow_recv_buffer(RECV_BUFFER);
        Ok(Wire { host, near, socket, inbox: Mutex::default() })
    }

    /// Opens another socket at the near end, for a second thread.
    pub fn another_socket(&self) -> Result<PacketSocket> {
        Ok(self.near.run(|| PacketSocket::open("host"))??)
    }

    /// Adds another device to the same host, without an address, and opens a socket at its near end.
    pub fn another_device(&self, name: &str) -> Result<PacketSocket> {
        join(&self.near, &self.host, name, 102, [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]])?;
        Ok(self.near.run(|| PacketSocket::open(&format!("{name}-near")))??)
    }

    /// Runs a command at the near end, where the device is called `host`.
    pub fn run_near(&self, bed: &Bed, name: &str, args: &[&str]) -> Result<String> {
        Program::new(name).args(args).in_netns(&self.near).run(bed)
    }

    /// The frame that carries a packet to the host, with these tags, the outer one first.
    pub fn frame(packet: &Packet, tags: &[Tag]) -> Vec<u8> {
        Wire::frame_to(HOSTS, packet, tags)
    }

    /// The same, to another link address.
    pub fn frame_to(to: [u8; 6], packet: &Packet, tags: &[Tag]) -> Vec<u8> {
        let mut frame = [to, OURS].concat();
        for tag in tags {
            frame.extend(tag.ethertype.to_be_bytes());
            frame.extend(tag.id.to_be_bytes());
        }
        frame.extend(if packet.is_ipv6() { IPV6 } else { IPV4 });
        frame.extend(packet.bytes());
        frame
    }

    /// Sends a packet to the host.
    pub fn send(&self, packet: &Packet) -> Result<()> {
        self.send_frame(&Wire::frame(packet, &[]))
    }

    /// Sends any bytes to the host. If a busy host's queue is full (net.core.netdev_max_backlog), waits for
    /// room.
    pub fn send_frame(&self, frame: &[u8]) -> Result<()> {
        let deadline = Instant::now() + STALL;
        loop {
            match self.socket.send(frame) {
                Err(error) if error.errno == Errno::NOBUFS && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Waits for the first matching segment. The others are kept for later calls.
    pub fn hear(&self, what: &str, wanted: impl Fn(&Segment) -> bool) -> Result<Segment> {
        self.hear_within(STALL, wanted)?.with_context(|| format!("{what} was not heard"))
    }

    /// The same; `None` if it has not arrived in time.
    pub fn hear_within(&self, time: Duration, wanted: impl Fn(&Segment) -> bool) -> Result<Option<Segment>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = inbox.iter().position(&wanted) {
            return Ok(inbox.remove(place));
        }
        let deadline = Instant::now() + time;
        let mut buffer = vec![0; LONGEST];
        loop {
            while let Some(len) = self.socket.try_recv(&mut buffer)? {
                // After the link header. Packets other than TCP are dropped.
                let Some(segment) = buffer.get(14..len).and_then(Segment::parse) else { continue };
                if wanted(&segment) {
                    return Ok(Some(segment));
                }
                inbox.push_back(segment);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let timeout = Timespec::try_from(left).context("a time")?;
            poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)).context("poll")?;
        }
    }

    /// The host's counters of IPv6 and UDP, and of the packets of its devices, that are not 0: for the
    /// message of a test that hears nothing.
    pub fn counters(&self) -> Result<String> {
        self.host.run(|| {
            let mut all = String::new();
            for file in ["snmp6", "snmp", "softnet_stat", "dev"] {
                let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
                let is_told = |line: &&str| {
                    let last = line.split_whitespace().next_back();
                    file == "dev" || file != "snmp6" || last != Some("0")
                };
                text.lines().filter(is_told).for_each(|line| all.extend([line, "\n"]));
            }
            Ok(all)
        })?
    }

    /// Discards all segments received so far.
    pub fn forget(&self) -> Result<()> {
        self.hear_within(Duration::ZERO, |_| false)?;
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }
}

/// Connects the two by a veth pair. The near end, called like the host (`wire`) or `NAME-near`, has no
/// address. The ends have the indexes `index` and the one after it: if both had the same, they would come up
/// a second later (linkwatch_urgent_event in net/core/link_watch.c), and drop frames until then.
fn join(near: &NetNs, host: &Host, name: &str, index: u32, link: [[u8; 6]; 2]) -> Result<()> {
    use std::os::fd::{AsFd, AsRawFd};
    let own = if name == "wire" { host.name.clone() } else { format!("{name}-near") };
    let text = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let other = format!("/proc/{}/fd/{}", std::process::id(), host.netns.as_fd().as_raw_fd());
    near.run(|| {
        ip_here(&[&format!(
            "link add {own} index {index} address {} type veth peer name {name} index {} address {} netns {other}",
            text(link[0]),
            index + 1,
            text(link[1])
        )])
    })??;
    // The end that comes up last is ready at once.
    host.ip(&[&format!("link set {name} up")])?;
    near.run(|| ip_here(&[&format!("link set {own} up")]))??;
    host.await_device(name)
}
