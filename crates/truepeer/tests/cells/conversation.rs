//! A session's bytes, both ways, as its sender sees them. The backend echoes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Host, Running, client};

use crate::Net;

/// Nothing may take longer. A packet costs fifty times as much in an emulated machine.
const STALL: Duration = Duration::from_secs(60);
const BULK: usize = 2 << 20;
/// Short messages, of which each waits for the one before.
const QUESTIONS: usize = 50;

pub(crate) struct Session {
    stream: TcpStream,
    client: SocketAddr,
    bytes: usize,
}

/// A session of this client that has echoed once.
pub(crate) fn open(net: Net, sender: &Host, to: SocketAddr, port: u16) -> Result<Session> {
    open_with(net, sender, to, port, &[])
}

/// Likewise, with TLVs in the header.
pub(crate) fn open_with(
    net: Net,
    sender: &Host,
    to: SocketAddr,
    port: u16,
    tlvs: &[(u8, &[u8])],
) -> Result<Session> {
    let mut stream = sender.run(|| client::connect(to))??;
    stream.set_read_timeout(Some(STALL))?;
    let client = net.client(port);
    stream.write_all(&client::v2_with_tlvs(client, net.site(), tlvs)?)?;
    let mut session = Session { stream, client, bytes: 0 };
    session.ask(b"first").context("the first echo")?;
    Ok(session)
}

/// Bulk in all sessions at once, then questions, then the end of each.
pub(crate) fn finish_all(sessions: &mut [Session]) -> Result<()> {
    thread::scope(|scope| {
        let running: Vec<_> =
            sessions.iter_mut().map(|session| scope.spawn(move || session.finish())).collect();
        running.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })
}

impl Session {
    pub(crate) fn client(&self) -> SocketAddr {
        self.client
    }

    /// How many bytes it has had in each direction.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn ask(&mut self, bytes: &[u8]) -> Result<()> {
        let mut back = vec![0; bytes.len()];
        self.stream.write_all(bytes)?;
        self.stream.read_exact(&mut back).context("the echo")?;
        ensure!(back == bytes, "other bytes came back");
        self.bytes += bytes.len();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.bulk().with_context(|| format!("bulk of {}", self.client))?;
        for number in 0..QUESTIONS {
            self.ask(&Pattern::bytes(1 + 40 * number)).with_context(|| format!("question {number}"))?;
        }
        self.stream.shutdown(Shutdown::Write)?;
        ensure!(self.stream.read(&mut [0]).context("the end")? == 0, "more bytes came back");
        Ok(())
    }

    fn bulk(&mut self) -> Result<()> {
        let sent = Pattern::bytes(BULK);
        let digest = |bytes: &[u8]| {
            let mut digest = Digest::default();
            digest.update(bytes);
            digest.report()
        };
        let mut writer = self.stream.try_clone()?;
        let mut back = vec![0; BULK];
        thread::scope(|scope| {
            let sending = scope.spawn(|| writer.write_all(&sent));
            self.stream.read_exact(&mut back)?;
            sending.join().expect("no panic")
        })?;
        ensure!(digest(&back) == digest(&sent), "other bytes came back: {}", digest(&back));
        self.bytes += BULK;
        Ok(())
    }
}

/// The backend has seen each client, and has had as many bytes from it as were sent.
pub(crate) fn named_all(backend: &Running, sessions: &[Session]) -> Result<()> {
    sessions.iter().try_for_each(|session| {
        let line = format!("{} eof {}", session.client, session.bytes);
        backend.wait_for_log(&line).context("the client and its bytes at the backend")
    })
}
