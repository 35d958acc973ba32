//! A TLS connection of the load, with rustls' unbuffered interface: incoming bytes are decrypted in place in
//! one buffer, outgoing ones are encrypted into another.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context;
use rustix::io::Errno;
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};

use super::answer::{Answer, REQUEST};
use crate::credentials::HOST;

/// The initial size of a read: a response, or all of a server's handshake messages.
const ROOM: usize = 4096;
/// The size of the longest record with its overhead; always enough.
const ROOM_MAX: usize = 18 * 1024;
/// More than the overhead of encrypting a request (5 bytes before it, 17 after it).
const OVERHEAD: usize = 64;

/// Takes what a server sends, as it comes.
pub(super) trait Reader {
    fn take(&mut self, bytes: &[u8]);
}

impl Reader for Answer {
    fn take(&mut self, bytes: &[u8]) {
        Answer::take(self, bytes);
    }
}

/// A connection, from before its handshake.
pub(super) struct TlsLink {
    socket: OwnedFd,
    tls: UnbufferedClientConnection,
    /// Incomplete records are in the first `filled` bytes.
    incoming: Vec<u8>,
    filled: usize,
    /// Bytes to be written.
    outgoing: Vec<u8>,
    is_open: bool,
}

impl TlsLink {
    /// Prepares the first bytes of the handshake; [`TlsLink::flush`] sends them.
    pub(super) fn new(socket: OwnedFd, config: &Arc<ClientConfig>) -> anyhow::Result<Self> {
        let name = ServerName::try_from(HOST).context("a name")?;
        let tls = UnbufferedClientConnection::new(Arc::clone(config), name)?;
        let (incoming, outgoing) = (vec![0; ROOM], Vec::new());
        let mut link = Self { socket, tls, incoming, filled: 0, outgoing, is_open: false };
        link.process(&mut Answer::default())?;
        Ok(link)
    }

    /// Whether the handshake is over on this side.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Reads once and passes the contents to `answer`. Returns whether there was anything to read.
    ///
    /// # Errors
    /// The end of the connection, whoever ended it.
    pub(super) fn read(&mut self, answer: &mut impl Reader) -> anyhow::Result<bool> {
        if self.filled == self.incoming.len() {
            anyhow::ensure!(self.filled < ROOM_MAX, "a record that is too long");
            self.incoming.resize(ROOM_MAX, 0);
        }
        match rustix::io::read(&self.socket, &mut self.incoming[self.filled..]) {
            Ok(0) => anyhow::bail!("closed"),
            Ok(read) => self.filled += read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error).context("read"),
        }
        self.process(answer)?;
        Ok(true)
    }

    /// Requests the page, after everything that is still to be written.
    pub(super) fn ask(&mut self) -> anyhow::Result<()> {
        self.send(REQUEST)
    }

    /// Adds these bytes to what is still to be written.
    pub(super) fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut self.incoming[..self.filled]);
        let ConnectionState::WriteTraffic(mut traffic) = state? else { anyhow::bail!("asked too early") };
        let start = self.outgoing.len();
        self.outgoing.resize(start + bytes.len() + OVERHEAD, 0);
        let written = traffic.encrypt(bytes, &mut self.outgoing[start..])?;
        self.outgoing.truncate(start + written);
        Ok(())
    }

    /// Sends close_notify.
    pub(super) fn say_goodbye(&mut self) -> anyhow::Result<()> {
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut self.incoming[..self.filled]);
        let ConnectionState::WriteTraffic(mut traffic) = state? else { anyhow::bail!("ended too early") };
        let start = self.outgoing.len();
        self.outgoing.resize(start + OVERHEAD, 0);
        let written = traffic.queue_close_notify(&mut self.outgoing[start..])?;
        self.outgoing.truncate(start + written);
        Ok(())
    }

    /// Writes pending bytes. Returns whether all are written.
    pub(super) fn flush(&mut self) -> anyhow::Result<bool> {
        while !self.outgoing.is_empty() {
            match rustix::io::write(&self.socket, &self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error).context("write"),
            }
        }
        Ok(true)
    }

    /// Processes everything that has arrived.
    fn process(&mut self, answer: &mut impl Reader) -> anyhow::Result<()> {
        loop {
            let UnbufferedStatus { mut discard, state, .. } =
                self.tls.process_tls_records(&mut self.incoming[..self.filled]);
            let mut is_done = false;
            match state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        discard += record.discard;
                        answer.take(record.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    let start = self.outgoing.len();
                    self.outgoing.resize(start + ROOM, 0);
                    let written = data.encode(&mut self.outgoing[start..])?;
                    self.outgoing.truncate(start + written);
                }
                // Everything in `outgoing` is written in order, so it counts as sent.
                ConnectionState::TransmitTlsData(data) => data.done(),
                ConnectionState::BlockedHandshake => is_done = true,
                ConnectionState::WriteTraffic(_) => {
                    self.is_open = true;
                    is_done = true;
                }
                other => anyhow::bail!("{other:?}"),
            }
            self.incoming.copy_within(discard..self.filled, 0);
            self.filled -= discard;
            if is_done {
                return Ok(());
            }
        }
    }
}

impl AsFd for TlsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
