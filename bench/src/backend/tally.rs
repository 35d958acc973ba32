//! What a backend has seen, and telling it to the load: the other end's half of "nothing was lost".

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::link::PATIENCE;
use crate::place::TALLY;

/// Counters of a backend; its threads add to them when a connection ends, or once for a batch of datagrams.
#[derive(Debug, Default)]
pub(super) struct Tally {
    read: AtomicU64,
    written: AtomicU64,
    wrong: AtomicU64,
    strangers: AtomicU64,
    sessions: AtomicU64,
}

/// What the counters say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Bytes that it has read.
    pub(crate) read: u64,
    /// Bytes that the kernel has taken from it.
    pub(crate) written: u64,
    /// Reads that were not what should have come.
    pub(crate) wrong: u64,
    /// Sessions that came from somebody else than a claimed client.
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

    /// Answers each connection to [`TALLY`] with the counters, on a thread of its own.
    pub(super) fn publish(self: &Arc<Self>) -> anyhow::Result<()> {
        let listener = TcpListener::bind(TALLY).context("bind the tally")?;
        let tally = Arc::clone(self);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                // Whoever asks and doesn't listen is not owed anything.
                let _ = stream.write_all(&tally.encode());
            }
        });
        Ok(())
    }
}

impl Totals {
    /// Asks the backend of the calling thread's network.
    pub(crate) fn ask() -> anyhow::Result<Self> {
        let mut stream = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        stream.connect_timeout(&SockAddr::from(TALLY), PATIENCE).context("connect to the tally")?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let mut bytes = [0; 40];
        stream.read_exact(&mut bytes).context("the tally")?;
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes));
        let mut next = || words.next().unwrap_or(0);
        Ok(Self { read: next(), written: next(), wrong: next(), strangers: next(), sessions: next() })
    }
}
