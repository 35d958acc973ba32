//! A backend's counters, and their transfer to the load: with them the load can check that nothing was lost.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::link::TIMEOUT;
use crate::place::Endpoints;

/// How long to wait for an answer before asking again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The counters of a backend. Its threads add to them when a connection ends, or once for a batch of
/// datagrams.
#[derive(Debug, Default)]
pub(super) struct Tally {
    read: AtomicU64,
    written: AtomicU64,
    wrong: AtomicU64,
    strangers: AtomicU64,
    sessions: AtomicU64,
}

/// The values of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes read.
    pub(crate) read: u64,
    /// Bytes that the kernel accepted from it.
    pub(crate) written: u64,
    /// Reads with wrong bytes.
    pub(crate) wrong: u64,
    /// Sessions that did not come from a claimed client.
    pub(crate) strangers: u64,
    /// Connections accepted, or datagrams received.
    pub(crate) sessions: u64,
}

impl Tally {
    pub(super) fn add(&self, more: Totals) {
        let pairs = [
            (&self.read, more.read),
            (&self.written, more.written),
            (&self.wrong, more.wrong),
            (&self.strangers, more.strangers),
            (&self.sessions, more.sessions),
        ];
        for (counter, value) in pairs {
            counter.fetch_add(value, Relaxed);
        }
    }

    fn encode(&self) -> [u8; 40] {
        let counters = [&self.read, &self.written, &self.wrong, &self.strangers, &self.sessions];
        let mut bytes = [0; 40];
        for (place, counter) in bytes.chunks_exact_mut(8).zip(counters) {
            place.copy_from_slice(&counter.load(Relaxed).to_be_bytes());
        }
        bytes
    }

    /// Answers each datagram to its port on the backend's address with the counters, on a separate thread.
    /// Not over TCP: a contestant that wraps this program may expect a header on every accepted
    /// connection.
    pub(super) fn publish(self: &Arc<Self>, backend: SocketAddr) -> anyhow::Result<()> {
        let socket = UdpSocket::bind(Endpoints::tally_on(backend.ip())).context("bind the tally")?;
        let tally = Arc::clone(self);
        thread::spawn(move || {
            while let Ok((_, asker)) = socket.recv_from(&mut [0; 1]) {
                // The asking load may have ended.
                let _ = socket.send_to(&tally.encode(), asker);
            }
        });
        Ok(())
    }
}

impl Totals {
    /// Asks the backend whose counters are at `tally`.
    pub(crate) fn ask(tally: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("bind")?;
        socket.connect(tally).context("connect to the tally")?;
        socket.set_read_timeout(Some(ASK_AGAIN))?;
        let deadline = Instant::now() + TIMEOUT;
        let mut bytes = [0; 40];
        loop {
            let answer = socket.send(&[0]).and_then(|_| socket.recv(&mut bytes));
            match answer {
                Ok(length) if length == bytes.len() => break,
                Ok(length) => anyhow::bail!("the tally is {length} bytes long"),
                // The backend is busy. Its answer to this question serves as well if it arrives after the
                // next one.
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    anyhow::bail!("the backend has ended")
                }
                Err(error) => return Err(error).context("the tally"),
            }
        }
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes));
        let mut next = || words.next().unwrap_or(0);
        Ok(Self { read: next(), written: next(), wrong: next(), strangers: next(), sessions: next() })
    }
}
