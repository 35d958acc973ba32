//! A kept-alive connection with one request at a time.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use anyhow::Context;

use super::answer::Answer;
use super::link::TlsLink;
use crate::clients::Clients;
use crate::contestant::Stand;
use crate::link;
use crate::load::exchange::{Exchange, Heard};

/// A connection after its handshake, and its open request.
pub(super) struct Connection {
    link: TlsLink,
    answer: Answer,
    /// The time from which the open request is measured; `None` if there is none.
    since: Option<Instant>,
}

impl Connection {
    /// Opens one, and waits for its handshake.
    pub(super) fn open(stand: &Stand, clients: &mut Clients) -> anyhow::Result<Self> {
        let config = stand.tls.as_ref().context("a stand with TLS")?;
        let (_, sender) = clients.take();
        let socket = link::connect(sender, stand.at.entrance, &[])?;
        let mut own =
            Self { link: TlsLink::new(socket.into(), config)?, answer: Answer::default(), since: None };
        loop {
            anyhow::ensure!(own.link.flush()?, "the handshake could not be written");
            if own.link.is_open() {
                return Ok(own);
            }
            own.read_patiently().context("handshake")?;
        }
    }

    /// Makes it non-blocking.
    pub(super) fn stop_blocking(&self) -> anyhow::Result<()> {
        rustix::io::ioctl_fionbio(&self.link, true).context("FIONBIO")
    }

    /// Requests the page and waits for it, on a connection that still blocks.
    pub(super) fn exchange(&mut self) -> anyhow::Result<()> {
        self.ask(Instant::now())?;
        while !self.answer.is_over() {
            self.read_patiently()?;
        }
        self.since = None;
        anyhow::ensure!(!self.answer.is_wrong(), "a wrong answer");
        Ok(())
    }

    fn read_patiently(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(self.link.read(&mut self.answer)?, "nothing came for {:?}", link::TIMEOUT);
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

impl Exchange for Connection {
    fn ask(&mut self, since: Instant) -> anyhow::Result<()> {
        self.answer.expect_next();
        self.since = Some(since);
        self.link.ask()?;
        // Nothing else is in flight, and it is shorter than any socket's buffer.
        anyhow::ensure!(self.link.flush()?, "a request could not be written");
        Ok(())
    }

    fn listen(&mut self) -> anyhow::Result<Heard> {
        self.link.read(&mut self.answer)?;
        if self.answer.is_wrong() {
            self.since = None;
            return Ok(Heard::Wrong);
        }
        if !self.answer.is_over() {
            return Ok(Heard::Part);
        }
        Ok(self.since.take().map_or(Heard::Part, |since| Heard::Whole(since.elapsed())))
    }

    fn since(&self) -> Option<Instant> {
        self.since
    }

    fn forget_request(&mut self) {
        self.since = None;
    }
}
