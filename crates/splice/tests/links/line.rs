//! Five hosts in a line. The relay in the middle translates; a third host sends from a router.
//!
//! ```text
//! sender ── near ── relay ── far ── backend
//! ```

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::SockRef;
use truepeer_bpf::{Splices, Watched};
use truepeer_session::connect_as::{Upstream, connect_as};
use truepeer_splice::{
    Grace, Handover, Position, Progress, Sockets, StaysHere, Streams, Turn, Ways, arm, ask,
};
use truepeer_sys::repair::{connection, set_receive_buffer_fixed, stand};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Host, Topology, client, wait_for};

use crate::stand::{attach, without_rp_filter};

/// How long bytes and ends may be under way on a busy machine.
const STALL: Duration = Duration::from_secs(60);

pub(crate) struct Line {
    topology: Topology,
    splices: Arc<Splices>,
    grace: Grace,
    ways: Arc<Ways>,
}

impl Line {
    pub(crate) fn make(bed: &Bed) -> Result<Line> {
        Self::prepared(bed, &["near", "far", "lo"], |_| Ok(()))
    }

    /// With these devices of the relay, some of which `prepare` makes.
    pub(crate) fn prepared(
        bed: &Bed,
        devices: &[&str],
        prepare: impl FnOnce(&Topology) -> Result<()>,
    ) -> Result<Line> {
        let pins = crate::stand::pins(bed)?;
        let topology = Topology::line(&["sender", "near", "relay", "far", "backend"])?;
        prepare(&topology)?;
        for name in ["near", "relay", "far"] {
            without_rp_filter(topology.host(name))?;
        }
        let splices = attach(topology.host("relay"), &pins, devices)?;
        let ways = topology.host("relay").run(|| Arc::new(Ways::open()))?;
        Ok(Line { topology, splices, grace: Grace::start()?, ways })
    }

    pub(crate) fn host(&self, name: &str) -> &Host {
        self.topology.host(name)
    }

    /// Joins two connections.
    pub(crate) fn arm_sockets(&self, sockets: [&TcpStream; 2]) -> Result<Sockets, StaysHere> {
        arm(&self.splices, &self.grace, &self.ways, sockets.map(AsFd::as_fd))
    }

    /// As the sweeper of a process that watches the session.
    pub(crate) fn ask(&self, session: &ByHand, side: usize) -> Result<()> {
        let FlowOf::Watched(watched) = &session.flow else { anyhow::bail!("it has not left") };
        let question = watched.question(side);
        self.host("relay").run(|| ask(&self.splices, &question, 0))?;
        Ok(())
    }

    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let all = self.splices.counters()?;
        all.into_iter().find(|(other, _)| *other == name).map(|(_, count)| count).context("no such counter")
    }

    /// Sender and backend, joined by a relay whose each step the test takes.
    pub(crate) fn session(&self, v6: bool) -> Result<ByHand> {
        self.session_to(v6, Backend::default())
    }

    /// One that has left user space. Both ends have spoken, before and after that.
    pub(crate) fn spliced(&self, v6: bool) -> Result<ByHand> {
        let mut session = self.session(v6)?;
        self.offload(&mut session)?;
        session.say(0, b"spliced")?;
        session.say(1, b"both ways")?;
        Ok(session)
    }

    /// Makes a session leave user space.
    pub(crate) fn offload(&self, session: &mut ByHand) -> Result<()> {
        session.say(0, b"before")?;
        self.arm(session)?;
        session.say(0, b"heard")?;
        session.say(1, b"as well")?;
        session.offload()
    }

    pub(crate) fn session_to(&self, v6: bool, wanted: Backend) -> Result<ByHand> {
        let listen = |host: &Host, at: SocketAddr| -> Result<TcpListener> {
            Ok(host.run(move || TcpListener::bind(at))??)
        };
        let relay = self.host("relay");
        let loopback: IpAddr = if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let (entrance, serving) = if wanted.is_on_loopback {
            (listen(relay, relay.at(v6, 0))?, listen(relay, SocketAddr::new(loopback, 0))?)
        } else {
            let backend = self.host("backend");
            (listen(relay, relay.at(v6, 0))?, listen(backend, backend.at(v6, 0))?)
        };
        if let Some(size) = wanted.receive_buffer {
            SockRef::from(&serving).set_recv_buffer_size(size)?;
        }
        let (entrance_at, serving_at) = (entrance.local_addr()?, serving.local_addr()?);
        let sender = self.host("sender").run(|| client::connect(entrance_at))??;
        let (down, _) = entrance.accept()?;
        let path_mtu = connection(down.as_fd())?.path_mtu;
        // As a client of another host, whose address a backend on loopback sees.
        let upstream = Upstream {
            source: Some(SocketAddr::new(relay.at(v6, 0).ip(), 0)),
            backend: serving_at,
            mark: 0,
            path_mtu: wanted.has_short_segments.then_some(path_mtu),
        };
        let up = TcpStream::from(relay.run(|| connect_as(&upstream))??);
        up.set_nonblocking(false)?;
        let (backend, _) = serving.accept()?;
        for stream in [&sender, &backend, &down, &up] {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STALL))?;
            stream.set_write_timeout(Some(STALL))?;
        }
        let position = |socket: &TcpStream| -> Result<Option<Position>> {
            set_receive_buffer_fixed(socket.as_fd(), true)?;
            socket.set_nonblocking(true)?;
            Ok(stand(socket.as_fd())?.next_to_write.map(|next| Position::new(next, 0)))
        };
        let handover = Handover::knowing([position(&down)?, position(&up)?]);
        let tuples =
            [(sender.local_addr()?, sender.peer_addr()?), (backend.local_addr()?, backend.peer_addr()?)];
        Ok(ByHand {
            ends: [sender, backend],
            tuples,
            sockets: Some([down, up]),
            held: [Vec::new(), Vec::new()],
            handover,
            streams: Streams::default(),
            flow: FlowOf::Nobody,
        })
    }

    pub(crate) fn arm(&self, session: &mut ByHand) -> Result<()> {
        let [down, up] = session.sockets.as_ref().context("sockets")?;
        session.flow = FlowOf::Sockets(Box::new(self.arm_sockets([down, up])?));
        Ok(())
    }
}

/// The backend of a session, and how it is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backend {
    /// The backend is on the relay's host; otherwise on its own.
    pub(crate) is_on_loopback: bool,
    pub(crate) has_short_segments: bool,
    pub(crate) receive_buffer: Option<usize>,
}

impl Default for Backend {
    fn default() -> Self {
        Self { is_on_loopback: false, has_short_segments: true, receive_buffer: None }
    }
}

enum FlowOf {
    Nobody,
    Sockets(Box<Sockets>),
    Watched(Watched),
}

/// A session whose relay does nothing by itself.
pub(crate) struct ByHand {
    /// The sender's and the backend's.
    pub(crate) ends: [TcpStream; 2],
    /// Where each end is, and where it believes the other end.
    pub(crate) tuples: [(SocketAddr, SocketAddr); 2],
    sockets: Option<[TcpStream; 2]>,
    /// Read from the other side, to be written to this one.
    held: [Vec<u8>; 2],
    handover: Handover,
    streams: Streams,
    flow: FlowOf,
}

impl ByHand {
    /// Bytes of one end arrive at the other.
    pub(crate) fn say(&mut self, from: usize, bytes: &[u8]) -> Result<()> {
        self.ends[from].write_all(bytes)?;
        self.hear(1 - from, bytes)
    }

    pub(crate) fn hear(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let mut heard = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        self.ends[at].set_nonblocking(true)?;
        wait_for("the bytes", || {
            let relayed = self.relay();
            loop {
                match self.ends[at].read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => heard.extend_from_slice(&buffer[..read]),
                    Err(_) => break,
                }
            }
            relayed.is_err() || heard.len() >= bytes.len()
        })
        .with_context(|| format!("{} of {} bytes came", heard.len(), bytes.len()))?;
        self.ends[at].set_nonblocking(false)?;
        anyhow::ensure!(heard == bytes, "other bytes than were sent");
        Ok(())
    }

    /// Many bytes of one end, without a relay.
    pub(crate) fn carry(&self, from: usize, len: usize) -> Result<()> {
        let [sender, backend] = &self.ends;
        let (writing, mut reading) = if from == 0 { (sender, backend) } else { (backend, sender) };
        let mut bytes = vec![0; len];
        Pattern::default().fill(&mut bytes);
        let mut read = vec![0; len];
        std::thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(|| (&mut &*writing).write_all(&bytes));
            let outcome = reading.read_exact(&mut read).context("the bytes");
            if outcome.is_err() {
                writing.shutdown(Shutdown::Both)?;
            }
            let _ = writer.join();
            outcome
        })?;
        anyhow::ensure!(read == bytes, "other bytes than were sent");
        Ok(())
    }

    /// This end resets the connection.
    pub(crate) fn reset(&mut self, from: usize) -> Result<()> {
        SockRef::from(&self.ends[from]).set_linger(Some(Duration::ZERO))?;
        Ok(rustix::net::connect_unspec(&self.ends[from])?)
    }

    /// This end reads the other's end.
    pub(crate) fn hear_end(&mut self, at: usize) -> Result<()> {
        let read = self.ends[at].read(&mut [0; 10]).context("waiting for the end")?;
        anyhow::ensure!(read == 0, "bytes instead of the end");
        Ok(())
    }

    /// Relays the bytes in the relay's sockets.
    pub(crate) fn relay(&mut self) -> Result<()> {
        let Some(sockets) = &self.sockets else { return Ok(()) };
        let mut buffer = vec![0; 1 << 16];
        for to in 0..2 {
            if self.held[to].is_empty() {
                match (&sockets[1 - to]).read(&mut buffer) {
                    Ok(read) => self.held[to].extend_from_slice(&buffer[..read]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
            while !self.held[to].is_empty() {
                match (&sockets[to]).write(&self.held[to]) {
                    Ok(written) => {
                        self.held[to].drain(..written);
                        self.streams.written[to] += written as u64;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.streams.held[to] = self.held[to].len() as u64;
        }
        Ok(())
    }

    /// Bytes that the relay has written, to both sides.
    pub(crate) fn relayed_bytes(&self) -> u64 {
        self.streams.written.iter().sum()
    }

    /// Goes on until the hand-over is so far.
    pub(crate) fn go_to(&mut self, wanted: Progress) -> Result<()> {
        let mut failed = None;
        wait_for("the hand-over", || {
            if self.handover.progress() == wanted {
                return true;
            }
            failed = self.turn().err();
            failed.is_some()
        })
        .with_context(|| format!("{:?} {:?}", self.handover, self.entry()))?;
        failed.map_or(Ok(()), Err)
    }

    fn turn(&mut self) -> Result<Turn> {
        self.relay()?;
        let FlowOf::Sockets(flow) = &mut self.flow else { anyhow::bail!("nothing is armed") };
        let [down, up] = self.sockets.as_ref().context("no sockets")?;
        let turn = self.handover.turn(&mut flow.with([down.as_fd(), up.as_fd()]), &self.streams)?;
        anyhow::ensure!(!matches!(turn, Turn::StayHere(_)), "{turn:?}");
        Ok(turn)
    }

    /// Until the sockets are closed.
    pub(crate) fn offload(&mut self) -> Result<()> {
        let mut outcome = Ok(Turn::Wait);
        wait_for("the hand-over's end", || {
            outcome = self.turn();
            !matches!(outcome, Ok(Turn::Wait | Turn::Hold(_)))
        })?;
        outcome?;
        let FlowOf::Sockets(flow) = std::mem::replace(&mut self.flow, FlowOf::Nobody) else {
            anyhow::bail!("nothing is armed");
        };
        let [down, up] = self.sockets.take().context("no sockets")?;
        self.flow = FlowOf::Watched(flow.offload([down.as_fd(), up.as_fd()]));
        Ok(())
    }

    /// Turns for a while, without waiting for anything: whether the hand-over waits for wider windows.
    pub(crate) fn waits_for_windows(&mut self) -> Result<bool> {
        for _ in 0..20 {
            self.turn()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(self.handover.progress() == Progress::Armed && self.handover.waits_for_windows())
    }

    /// Closes both sockets, as if truepeer was killed.
    pub(crate) fn die(&mut self) {
        self.sockets = None;
    }

    /// The tables forget it: its packets are the kernel's.
    pub(crate) fn remove(&mut self) {
        self.flow = FlowOf::Nobody;
    }

    /// Segments of each peer that were translated, once the sockets are closed.
    pub(crate) fn segments(&self) -> Option<[u64; 2]> {
        if let FlowOf::Watched(watched) = &self.flow { Some(watched.segments()) } else { None }
    }

    /// The session's entry in the tables, the words of both faces one after the other, without counters,
    /// times and the last grace period that is `over`, which is the process's and not the session's.
    pub(crate) fn entry(&self) -> Vec<(String, u64)> {
        const CHANGES: [&str; 8] =
            ["bytes", "segments", "sent_ns", "asked_ns", "tsval", "since_ns", "place", "over"];
        let text = match &self.flow {
            FlowOf::Nobody => String::new(),
            FlowOf::Sockets(sockets) => format!("{sockets:?}"),
            FlowOf::Watched(watched) => format!("{watched:?}"),
        };
        let words = text.split([',', '{', '}', '[', ']']).filter_map(|word| {
            let (name, value) = word.trim().split_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        words.filter(|(name, _)| !CHANGES.contains(&name.as_str())).collect()
    }
}
