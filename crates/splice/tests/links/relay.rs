//! A minimal relay, with a thread for each session: these tests are about the hand-over.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use truepeer_bpf::Splices;
use truepeer_splice::{Grace, Handover, Position, Progress, Sockets, Streams, Turn, Ways, arm};
use truepeer_sys::repair::{set_receive_buffer_fixed, stand};
use truepeer_testbed::NetNs;
use truepeer_testbed::chance::Chance;

use crate::fates::Fates;

/// The next look at a hand-over that waits.
const LOOK: Duration = Duration::from_millis(4);
const BUFFER: usize = 64 << 10;
/// The longest time that bytes are held back. The real relay has the same limit.
const PATIENCE: Duration = Duration::from_secs(2);
/// So long an ended flow still translates what is sent again.
const LINGER: Duration = Duration::from_secs(1);
/// Longer than a peer waits at most until it repeats a segment or asks for a window again (TCP_RTO_MAX, 120
/// s): a slow reader keeps the window closed until that wait is long, and the segment that opens it at last
/// may be lost.
const ENDS: Duration = Duration::from_secs(150);

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) sessions: usize,
    pub(crate) armed: usize,
    pub(crate) cut: usize,
    pub(crate) offload: usize,
    pub(crate) stayed: usize,
    pub(crate) reset: usize,
    pub(crate) ended: usize,
}

pub(crate) struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    tally: Mutex<Tally>,
    open: Mutex<Vec<(usize, String)>>,
    splices: Arc<Splices>,
    grace: Grace,
    ways: Arc<Ways>,
    fates: Fates,
}

impl Relay {
    pub(crate) fn start(
        netns: &NetNs,
        entrance: TcpListener,
        backend: SocketAddr,
        splices: &Arc<Splices>,
        fates: &Fates,
    ) -> Result<Relay> {
        let shared = Arc::new(Shared {
            tally: Mutex::default(),
            open: Mutex::default(),
            splices: Arc::clone(splices),
            grace: Grace::start()?,
            ways: netns.run(|| Arc::new(Ways::open()))?,
            fates: fates.clone(),
        });
        let (serving, netns) = (Arc::clone(&shared), netns.clone());
        thread::spawn(move || -> Result<()> {
            netns.enter()?;
            for number in 0.. {
                serving.splices.sweep(Instant::now(), LINGER, true);
                let (down, sender) = entrance.accept()?;
                serving.fates.begin(sender.port());
                let shared = Arc::clone(&serving);
                thread::spawn(move || {
                    shared.count(|tally| tally.sessions += 1);
                    let failed = relay(&shared, number, down, backend).err();
                    shared.fates.decide(sender.port());
                    if failed.is_some() {
                        shared.count(|tally| tally.reset += 1);
                    }
                    shared.note(number, failed.map(|error| format!("{error:#}")));
                });
            }
            Ok(())
        });
        Ok(Relay { shared })
    }

    /// Waits until the flows that were let go have ended: both ends are acknowledged, or one side has reset.
    /// Slow readers take as long as they like, as long as something moves.
    pub(crate) fn wait_for_ends(&self) -> Result<()> {
        let (mut until, mut before) = (Instant::now() + ENDS, Vec::new());
        while self.shared.splices.sweep(Instant::now(), LINGER, true).open > 0 {
            let unended = self.shared.splices.unended();
            if unended != before {
                (until, before) = (Instant::now() + ENDS, unended);
            }
            ensure!(Instant::now() < until, "flows that never end:\n{before:#?}");
            thread::sleep(LOOK * 25);
        }
        Ok(())
    }

    pub(crate) fn tally(&self) -> Tally {
        *self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sessions that are still open or have failed, and the flows that were let go and have not ended.
    pub(crate) fn describe(&self) -> String {
        let open = self.shared.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.iter().map(|(number, what)| format!("session {number}: {what}\n"));
        open.chain(self.shared.splices.unended().into_iter().map(|flow| format!("let go: {flow}\n")))
            .collect()
    }
}

impl Shared {
    fn count(&self, count: impl FnOnce(&mut Tally)) {
        count(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note(&self, number: usize, what: Option<String>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(other, _)| *other != number);
        open.extend(what.map(|what| (number, what)));
    }
}

struct Session {
    /// The sender's.
    port: u16,
    sockets: [TcpStream; 2],
    /// Read from the other side, to be written to this one.
    held: [Vec<u8>; 2],
    streams: Streams,
    hold: Option<usize>,
}

/// Errors are resets: dropped sockets would otherwise say an orderly end.
fn relay(shared: &Shared, number: usize, down: TcpStream, backend: SocketAddr) -> Result<()> {
    let port = down.peer_addr()?.port();
    let up = connect_as_neighbour_of(port, backend)?;
    for socket in [&down, &up] {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        set_receive_buffer_fixed(socket.as_fd(), true)?;
    }
    let (sockets, held, streams) = ([down, up], Default::default(), Streams::default());
    let mut session = Session { port, sockets, held, streams, hold: None };
    let outcome = session.run(shared, number);
    match outcome {
        Ok(Some(spliced)) => {
            drop(spliced.offload(session.fds()));
            shared.count(|tally| tally.offload += 1);
            Ok(())
        }
        Ok(None) => {
            shared.count(|tally| tally.ended += 1);
            Ok(())
        }
        Err(error) => {
            for socket in &session.sockets {
                socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO))?;
            }
            Err(error)
        }
    }
}

/// From the sender's port: the kernel takes the port of a socket that was closed silently for free, while the
/// peer's connection still lives.
fn connect_as_neighbour_of(port: u16, backend: SocketAddr) -> Result<TcpStream> {
    let own = if backend.is_ipv4() { "10.78.0.1".parse()? } else { "fd78::1".parse()? };
    truepeer_testbed::client::connect_from(SocketAddr::new(own, port), backend)
}

impl Session {
    /// The session's end; with its flow, if it goes on without us.
    fn run(&mut self, shared: &Shared, number: usize) -> Result<Option<Sockets>> {
        let mut chance = Chance::new(number as u64);
        let after = chance.below(20_000) as u64 >> chance.below(12);
        let mut handover: Option<(Handover, Sockets)> = None;
        let mut held_since = None;
        let positions = self.positions(number)?;
        let mut stays = false;
        loop {
            self.wait(handover.is_some())?;
            self.pump(0)?;
            self.pump(1)?;
            if handover.is_none() && self.streams.end_written == [true, true] {
                return Ok(None);
            }
            if handover.is_none() && !stays && self.streams.written.iter().sum::<u64>() > after {
                match arm(&shared.splices, &shared.grace, &shared.ways, self.fds()) {
                    Ok(sockets) => {
                        shared.count(|tally| tally.armed += 1);
                        handover = Some((Handover::knowing(positions), sockets));
                    }
                    Err(_) => stays = true,
                }
            }
            let Some((steps, spliced)) = &mut handover else { continue };
            let was = steps.progress();
            let mut streams = self.streams;
            streams.held = [0, 1].map(|side| self.held[side].len() as u64);
            let fds = [self.sockets[0].as_fd(), self.sockets[1].as_fd()];
            let turn = steps.turn(&mut spliced.with(fds), &streams)?;
            if was == Progress::Held && steps.progress() == Progress::Tail {
                shared.count(|tally| tally.cut += 1);
            }
            shared.note(number, Some(format!("{steps:?} {streams:?} {turn:?} {spliced:?}")));
            self.hold = None;
            match turn {
                Turn::Wait => {}
                Turn::Hold(side) if held_since.get_or_insert_with(Instant::now).elapsed() < PATIENCE => {
                    self.hold = Some(side);
                }
                Turn::Hold(_) | Turn::StayHere(_) => {
                    shared.count(|tally| tally.stayed += 1);
                    shared.fates.decide(self.port);
                    (handover, stays) = (None, true);
                    for socket in self.fds() {
                        set_receive_buffer_fixed(socket, false)?;
                    }
                }
                Turn::Offload => return Ok(handover.map(|(_, spliced)| spliced)),
            }
        }
    }

    /// Most relays ask at the beginning; some when it is too late, and must hold bytes back.
    fn positions(&self, number: usize) -> Result<[Option<Position>; 2]> {
        if number % 4 == 3 {
            return Ok([None; 2]);
        }
        let position = |socket: &TcpStream| -> Result<Option<Position>> {
            Ok(stand(socket.as_fd())?.next_to_write.map(|next| Position::new(next, 0)))
        };
        Ok([position(&self.sockets[0])?, position(&self.sockets[1])?])
    }

    fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.sockets[0].as_fd(), self.sockets[1].as_fd()]
    }

    fn wait(&self, is_busy: bool) -> Result<()> {
        let events = [0, 1].map(|side: usize| {
            let other = 1 - side;
            let mut events = PollFlags::empty();
            if self.held[other].is_empty() && !self.streams.ended[side] {
                events |= PollFlags::IN;
            }
            if !self.held[side].is_empty() && self.hold != Some(side) {
                events |= PollFlags::OUT;
            }
            events
        });
        let mut fds = [PollFd::new(&self.sockets[0], events[0]), PollFd::new(&self.sockets[1], events[1])];
        let timeout = Timespec::try_from(LOOK)?;
        poll(&mut fds, is_busy.then_some(&timeout))?;
        Ok(())
    }

    /// What comes from this side.
    fn pump(&mut self, from: usize) -> Result<()> {
        let to = 1 - from;
        loop {
            if self.hold == Some(to) {
                return Ok(());
            }
            if !self.held[to].is_empty() {
                match (&self.sockets[to]).write(&self.held[to]) {
                    Ok(written) => {
                        self.streams.written[to] += written as u64;
                        self.held[to].drain(..written);
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) => return Err(error).context("write"),
                }
            }
            if self.streams.ended[from] {
                if !self.streams.end_written[from] {
                    self.sockets[to].shutdown(Shutdown::Write).context("shutdown")?;
                    self.streams.end_written[from] = true;
                }
                return Ok(());
            }
            let mut buffer = [0; BUFFER];
            match (&self.sockets[from]).read(&mut buffer) {
                Ok(0) => self.streams.ended[from] = true,
                Ok(read) => self.held[to].extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("read"),
            }
        }
    }
}
