//! A UDP server that the test runs step by step, and a capture of the host's datagrams.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_sys::netns::NetNs;
use truepeer_sys::packet::PacketSocket;
use truepeer_testbed::packets::{Datagram, Packet, Wire};
use truepeer_testbed::wait_for;

/// How long a step may take on a busy machine.
const STALL: Duration = Duration::from_secs(60);
const LONGEST: usize = 70_000;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// A datagram that a server has read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) from: SocketAddr,
    pub(crate) payload: Vec<u8>,
    /// A socket that is connected to the client has read it.
    pub(crate) by_connection: bool,
}

/// A server for both families.
pub(crate) struct Server {
    netns: NetNs,
    port: u16,
    socket: Option<UdpSocket>,
    connections: Vec<UdpSocket>,
}

impl Server {
    pub(crate) fn open(netns: &NetNs, port: u16) -> Result<Server> {
        let socket = Some(bind(netns, port)?);
        Ok(Server { netns: netns.clone(), port, socket, connections: Vec::new() })
    }

    /// Connects a separate socket to this client, as some servers do.
    pub(crate) fn connect(&mut self, client: SocketAddr) -> Result<()> {
        let is_connected =
            |socket: &UdpSocket| socket.peer_addr().is_ok_and(|peer| canonical(peer) == client);
        if self.connections.iter().any(is_connected) {
            return Ok(());
        }
        let socket = bind(&self.netns, self.port)?;
        let mapped = match client.ip() {
            IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), client.port()),
            IpAddr::V6(_) => client,
        };
        socket.connect(mapped).context("connect")?;
        socket.set_nonblocking(true)?;
        self.connections.push(socket);
        Ok(())
    }

    pub(crate) fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    pub(crate) fn forget_connections(&mut self) {
        self.connections.clear();
    }

    /// Closes all sockets, and waits until they are gone. A process that another test has just forked holds
    /// copies of them until it executes its program.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.connections.clear();
        self.socket = None;
        let (netns, port) = (self.netns.clone(), self.port);
        wait_for("nobody to have the closed sockets", || {
            netns.run(|| UdpSocket::bind(("::", port)).is_ok()).unwrap_or(false)
        })
    }

    /// Reads all datagrams up to a marker, and answers each. Of the unconnected socket's datagrams, the
    /// marker is the last.
    pub(crate) fn serve(&self) -> Result<Vec<Read>> {
        let socket = self.socket.as_ref().context("it is closed")?;
        let mut all = Vec::new();
        let mut buffer = vec![0; LONGEST];
        loop {
            let (len, from) = socket.recv_from(&mut buffer).context("the marker")?;
            socket.send_to(&answer_to(&buffer[..len]), from).context("an answer")?;
            if buffer[..len] == *b"marker" {
                break;
            }
            all.push(Read { from: canonical(from), payload: buffer[..len].to_vec(), by_connection: false });
        }
        for socket in &self.connections {
            let from = canonical(socket.peer_addr()?);
            loop {
                match socket.recv(&mut buffer) {
                    Ok(len) => {
                        socket.send(&answer_to(&buffer[..len])).context("a connection's answer")?;
                        all.push(Read { from, payload: buffer[..len].to_vec(), by_connection: true });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error).context("a connection"),
                }
            }
        }
        Ok(all)
    }
}

/// An answer of another length, sometimes empty.
fn answer_to(payload: &[u8]) -> Vec<u8> {
    if payload.len() % 7 == 3 {
        return Vec::new();
    }
    payload.iter().rev().chain(b"!").copied().collect()
}

fn bind(netns: &NetNs, port: u16) -> Result<UdpSocket> {
    netns.run(|| {
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
        socket.set_only_v6(false)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(SocketAddr::new("::".parse()?, port)))?;
        socket.set_read_timeout(Some(STALL))?;
        Ok(socket.into())
    })?
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A datagram that the host has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) payload: Vec<u8>,
}

/// Captures the host's datagrams.
pub(crate) struct Ear {
    socket: PacketSocket,
    /// Captured packets that the test has not asked for yet.
    inbox: Vec<Vec<u8>>,
}

impl Ear {
    pub(crate) fn on(wire: &Wire) -> Result<Ear> {
        let socket = wire.another_socket()?;
        socket.grow_recv_buffer(8 << 20);
        Ok(Ear { socket, inbox: Vec::new() })
    }

    /// The next `count` datagrams from `from`, in order.
    pub(crate) fn hear(&mut self, from: &SocketAddr, count: usize) -> Result<Vec<Heard>> {
        let mut heard = Vec::new();
        while heard.len() < count {
            let wanted = |packet: &[u8]| Datagram::parse(packet).filter(|datagram| datagram.from == *from);
            let packet = self
                .next(|packet| wanted(packet).is_some())?
                .with_context(|| format!("{count} answers from {from} were to come, and {heard:?} came"))?;
            ensure!(Packet::of(&packet).has_right_sums(), "an answer with a wrong sum: {packet:02x?}");
            let Datagram { from, to, payload } = wanted(&packet).context("as just now")?;
            heard.push(Heard { from, to, payload });
        }
        Ok(heard)
    }

    /// Whether the kernel sends this sender an ICMP error (port unreachable) that quotes its datagram.
    pub(crate) fn hears_unreachable(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
    ) -> Result<()> {
        let wanted = |packet: &[u8]| {
            quoted(packet).is_some_and(|quoted| quoted.starts_with(&start_of(from, to, payload)))
        };
        self.next(wanted)?.with_context(|| format!("no ICMP error for {from} → {to}"))?;
        Ok(())
    }

    /// Fails if a captured packet was not asked for.
    pub(crate) fn nothing_is_left(&mut self) -> Result<()> {
        self.read()?;
        let unasked = |packet: &&Vec<u8>| Datagram::parse(packet).is_some() || quoted(packet).is_some();
        let left = self.inbox.iter().find(unasked);
        ensure!(left.is_none(), "the host has also sent {left:02x?}");
        self.inbox.clear();
        Ok(())
    }

    /// Sends the host an ICMP error: an answer reached no socket.
    pub(crate) fn refuse(&self, wire: &Wire, answer: &Heard) -> Result<()> {
        let Heard { from, to, payload } = answer.clone();
        wire.send(&Datagram { from, to, payload }.packet().unreachable())
    }

    fn read(&mut self) -> Result<()> {
        let mut buffer = vec![0; LONGEST];
        while let Some(len) = self.socket.try_recv(&mut buffer)? {
            self.inbox.extend(buffer.get(14..len).map(<[u8]>::to_vec));
        }
        Ok(())
    }

    /// The first packet for which `wanted` is true.
    fn next(&mut self, wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + STALL;
        loop {
            self.read()?;
            if let Some(place) = self.inbox.iter().position(|packet| wanted(packet)) {
                return Ok(Some(self.inbox.remove(place)));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&Timespec::try_from(left)?))?;
        }
    }
}

/// The packet that an ICMP error quotes, from its transport header on.
fn quoted(packet: &[u8]) -> Option<&[u8]> {
    match packet.first()? >> 4 {
        4 if packet.get(9) == Some(&ICMP) && packet.get(20..22)? == [3, 3] => packet.get(20 + 8 + 20..),
        6 if packet.get(6) == Some(&ICMPV6) && packet.get(40..42)? == [1, 4] => packet.get(40 + 8 + 40..),
        _ => None,
    }
}

/// The UDP header and the first bytes behind it.
fn start_of(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let packet = Datagram { from, to, payload: payload.to_vec() }.packet();
    packet.bytes()[packet.payload_at()..].iter().take(8 + 64).copied().collect()
}
