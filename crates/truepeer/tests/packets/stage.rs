//! A host with an attached backend, and the test at the other end of its wire.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::packets::{Talker, Wire};
use truepeer_testbed::{Bed, Program, wait_for};

/// How long an accepted connection's bytes may take on a busy machine.
const STALL: Duration = Duration::from_secs(60);
/// How long to watch that accept() doesn't return. It would return at once: a segment is processed when it is
/// sent.
const MOMENT: Duration = Duration::from_millis(150);
/// The attached port.
pub(crate) const PORT: u16 = 80;

pub(crate) struct Stage<'b> {
    pub(crate) bed: &'b Bed,
    pub(crate) wire: Wire,
    pub(crate) listener: TcpListener,
}

/// The result of accept().
pub(crate) struct Accepted {
    pub(crate) client: SocketAddr,
    pub(crate) stream: TcpStream,
}

impl<'b> Stage<'b> {
    /// With a listener for both families on port 80, attached with all senders admitted.
    pub(crate) fn make(bed: &'b Bed, args: &[&str]) -> Result<Stage<'b>> {
        let stage = Stage::without_attach(bed)?;
        stage.attach(&[&["--port", "80", "--allow", "any"], args].concat())?;
        Ok(stage)
    }

    /// The same host with a plain port.
    pub(crate) fn without_attach(bed: &'b Bed) -> Result<Stage<'b>> {
        let wire = Wire::make()?;
        let listener = wire.host.run(|| listen(PORT))??;
        Ok(Stage { bed, wire, listener })
    }

    pub(crate) fn attach(&self, args: &[&str]) -> Result<String> {
        let command = ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(self.bed, args)?;
        command.in_netns(&self.wire.host.netns).run(self.bed)
    }

    /// A program on the host.
    pub(crate) fn run(&self, name: &str, args: &[&str]) -> Result<String> {
        Program::new(name).args(args).in_netns(&self.wire.host.netns).run(self.bed)
    }

    pub(crate) fn to(&self, v6: bool) -> SocketAddr {
        self.wire.host.at(v6, PORT)
    }

    /// A sender of that family with its own port.
    pub(crate) fn talker(&self, v6: bool, port: u16) -> Talker<'_> {
        let ip: IpAddr = if v6 { "fd77::1".parse() } else { "10.77.0.1".parse() }.expect("an address");
        let isn = u32::from(port).wrapping_mul(0x9E37_79B9);
        Talker::new(&self.wire, SocketAddr::new(ip, port), self.to(v6), isn)
    }

    pub(crate) fn accept(&self) -> Result<Accepted> {
        self.accept_within(STALL)?.context("accept() has returned nothing")
    }

    pub(crate) fn accept_within(&self, time: Duration) -> Result<Option<Accepted>> {
        self.accept_from(&self.listener, time)
    }

    pub(crate) fn accept_from(&self, listener: &TcpListener, time: Duration) -> Result<Option<Accepted>> {
        let timeout = Timespec::try_from(time)?;
        poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout)).context("poll")?;
        match listener.accept() {
            Ok((stream, seen)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(STALL))?;
                let client = SocketAddr::new(seen.ip().to_canonical(), seen.port());
                Ok(Some(Accepted { client, stream }))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("accept"),
        }
    }

    /// Checks that accept() does not return.
    pub(crate) fn nothing_is_accepted(&self) -> Result<()> {
        match self.accept_within(MOMENT)? {
            None => Ok(()),
            Some(accepted) => bail!("accept() has returned {}", accepted.client),
        }
    }

    /// Checks that accept() returns this client's connection, and that these are its first bytes.
    pub(crate) fn accepts(&self, client: &str, bytes: &[u8]) -> Result<TcpStream> {
        let mut accepted = self.accept()?;
        ensure!(accepted.client.to_string() == client, "{} was accepted, not {client}", accepted.client);
        accepted.brings(bytes)?;
        Ok(accepted.stream)
    }

    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let status = self.status()?;
        status["ports"][0]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
    }

    pub(crate) fn counts(&self, name: &str, expected: u64) -> Result<()> {
        let counts = || self.counter(name).is_ok_and(|count| count == expected);
        wait_for(&format!("{name} to be {expected}"), counts).with_context(|| match self.status() {
            Ok(status) => status.to_string(),
            Err(error) => format!("{error:#}"),
        })
    }

    pub(crate) fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.attach(&["status", "--json"])?)?)
    }
}

impl Accepted {
    /// Checks the next bytes.
    pub(crate) fn brings(&mut self, bytes: &[u8]) -> Result<()> {
        let mut read = vec![0; bytes.len()];
        self.stream.read_exact(&mut read).context("reading what was sent")?;
        ensure!(
            read == bytes,
            "{:?} was read, not {:?}",
            read.escape_ascii().to_string(),
            bytes.escape_ascii().to_string()
        );
        Ok(())
    }
}

/// A non-blocking listener for both families, in the calling thread's network namespace.
pub(crate) fn listen(port: u16) -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(SocketAddr::new("::".parse()?, port)))?;
    socket.listen(4096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
