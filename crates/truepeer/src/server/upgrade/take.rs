//! The new process's side.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Context as _, bail, ensure};
use rustix::net::{SocketType, sockopt};
use tracing::warn;
use truepeer_policy::{Ban, Bans};
use truepeer_relay::udp::moving::MovingFlow;
use truepeer_session::ListenerId;
use truepeer_sys::socket::local_address;

use super::wire::{FlowRecord, Message, Wire};
use super::{LAST_WORD, START, SWITCH};
use truepeer_config::plan::{CheckedListener, ProcessConfig, passed};
use truepeer_config::spec::Protocol;
use truepeer_ops::admin::{BanDoc, Client, connect_to, switch_protocol};

/// An upgrade that this process has begun.
pub(in crate::server) struct Taking {
    wire: Wire,
    /// The old process.
    pub(in crate::server) pid: u32,
    /// The sockets that it has.
    offered: Vec<Offered>,
    /// The names of its attachments.
    pub(in crate::server) attached: Vec<String>,
    /// Where it logs. Older versions don't tell.
    log: Option<OwnedFd>,
    /// Who is banned there.
    bans: anyhow::Result<Vec<Ban>>,
}

/// This process logs where the old one did. Dropping it gives the standard error of the start back: whoever
/// asked for the upgrade reads there why it has failed.
pub(in crate::server) struct TakenLog {
    own: Option<OwnedFd>,
}

impl TakenLog {
    /// The upgrade is done: the terminal or pipe that it was asked from is let go.
    pub(in crate::server) fn keep(mut self) {
        self.own = None;
    }
}

impl Drop for TakenLog {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // Otherwise the error is in the old process's log.
            let _ = rustix::stdio::dup2_stderr(own);
        }
    }
}

/// A socket of the old process.
struct Offered {
    address: SocketAddr,
    kind: SocketType,
    /// IPV6_V6ONLY.
    v6_only: bool,
}

impl Offered {
    fn of(socket: &OwnedFd) -> Option<Self> {
        let address = local_address(socket.as_fd()).ok()?;
        // An IPv4 socket does not have the option.
        let v6_only = address.is_ipv6() && sockopt::ipv6_v6only(socket).unwrap_or(false);
        Some(Self { address, kind: sockopt::socket_type(socket).ok()?, v6_only })
    }
}

impl Taking {
    /// Asks the process that listens on the admin socket of `process`, and adds its sockets to `inherited`.
    ///
    /// # Errors
    /// Nobody listens there, or it refuses.
    pub(in crate::server) fn begin(
        process: &ProcessConfig,
        inherited: &mut Vec<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let admin = process.admin.socket().context(
            "--take-over: expected the path of a socket in [admin] listen, by which the running truepeer is found",
        )?;
        let stream = connect_to(admin)
            .with_context(|| format!("no truepeer to take over from listens on {}", admin.display()))?;
        stream.set_read_timeout(Some(START))?;
        stream.set_write_timeout(Some(START))?;
        switch_protocol(&stream).context("the old process refuses")?;
        let mut wire = Wire::new(stream, START);
        let mut sockets = Vec::new();
        let (pid, attached, log) = loop {
            match wire.receive().context("the old process")? {
                (Message::Sockets, more) => sockets.extend(more),
                (Message::Offer { pid, attached }, log) => break (pid, attached, log.into_iter().next()),
                (other, _) => bail!(unexpected(other)),
            }
        };
        let offered = sockets.iter().filter_map(Offered::of).collect();
        inherited.extend(sockets);
        // Since its offer the old process changes nothing of it.
        let bans = bans_of(&Client::at(admin));
        Ok(Self { wire, pid, offered, attached, log, bans })
    }

    /// Makes the old process's standard error this one's, if it was started in the background: then its own
    /// is that of a shell or of a pipeline, which would wait for its end. Processes that are forked
    /// afterwards have it, too.
    ///
    /// # Errors
    /// dup(2) fails.
    pub(in crate::server) fn take_log(&mut self) -> anyhow::Result<Option<TakenLog>> {
        let Some(log) = self.log.take().filter(|_| passed::is_of_upgrade_command()) else { return Ok(None) };
        let own = std::io::stderr().as_fd().try_clone_to_owned().context("standard error")?;
        rustix::stdio::dup2_stderr(&log).context("the old process's standard error")?;
        Ok(Some(TakenLog { own: Some(own) }))
    }

    /// Whether the old process has this listener's sockets.
    pub(in crate::server) fn has(&self, listener: &CheckedListener) -> bool {
        self.find(listener, |offered| offered.address == listener.config.bind).is_some()
    }

    /// # Errors
    /// The old process has a listener's port for IPv6 alone, and for IPv4 by a socket that is no listener's
    /// here; or the other way round. Both processes have the sockets for some time, so this one can't open
    /// others.
    pub(in crate::server) fn check_families(&self, listener: &CheckedListener) -> anyhow::Result<()> {
        let address = listener.config.bind;
        let is_it = |offered: &Offered| offered.address == address && address.ip().is_unspecified();
        // The kernel sets IPV6_V6ONLY on each socket of one IPv6 address: only `[::]` may take IPv4.
        let Some(offered) = self.find(listener, is_it) else { return Ok(()) };
        let has_ipv4 =
            |offered: &Offered| offered.address.is_ipv4() && offered.address.port() == address.port();
        let loses_ipv4 = offered.v6_only && !listener.v6_only && self.find(listener, has_ipv4).is_some();
        let has_it_already = !offered.v6_only && listener.v6_only;
        ensure!(
            !loses_ipv4 && !has_it_already,
            "listener {address}: the running truepeer has another socket for IPv4 connections to this port \
             than this configuration; reload it first (SIGHUP), then upgrade"
        );
        Ok(())
    }

    fn find(&self, listener: &CheckedListener, is_it: impl Fn(&Offered) -> bool) -> Option<&Offered> {
        let kind = match listener.config.protocol {
            Protocol::Tcp => SocketType::STREAM,
            Protocol::Udp => SocketType::DGRAM,
        };
        self.offered.iter().find(|offered| offered.kind == kind && is_it(offered))
    }

    /// Everything else is open: the old process stops reading datagrams now. Returns its flows. Their
    /// listener is named by its address.
    ///
    /// # Errors
    /// The old process has failed, or goes on.
    pub(in crate::server) fn flows(&mut self) -> anyhow::Result<Vec<(SocketAddr, MovingFlow)>> {
        self.wire.send(&Message::Ready, &[])?;
        self.wire.begin_step(SWITCH);
        let mut all = Vec::new();
        loop {
            match self.wire.receive().context("the old process")? {
                (Message::Flows(flows), descriptors) => {
                    let mut descriptors = descriptors.into_iter();
                    for record in flows {
                        all.push(flow(record, &mut descriptors).context("a flow without its socket")?);
                    }
                }
                (Message::Go, _) => return Ok(all),
                (other, _) => bail!(unexpected(other)),
            }
        }
    }

    /// Bans here who is banned there.
    pub(in crate::server) fn bans(&mut self, bans: &Bans) {
        let taken = std::mem::replace(&mut self.bans, Ok(Vec::new()));
        if let Err(error) = taken.and_then(|taken| Ok(bans.set(taken)?)) {
            warn!("no bans are taken over (a version without bans has none): {error:#}");
        }
    }

    /// This process serves: the old one may let go.
    ///
    /// # Errors
    /// The old process has given up waiting, and goes on: this one must end.
    pub(in crate::server) fn serving(
        mut self,
        udp: Vec<SocketAddr>,
        attached: Vec<String>,
    ) -> anyhow::Result<()> {
        let message = Message::Serving { pid: std::process::id(), udp, attached };
        self.wire.send(&message, &[]).context("the old process has given up waiting")
    }

    /// Tells the old process why it has to go on.
    pub(in crate::server) fn fail(mut self, reason: &anyhow::Error) {
        // It notices the end of the connection, too.
        self.wire.begin_step(LAST_WORD);
        let _ = self.wire.send(&Message::Failed { reason: format!("{reason:#}") }, &[]);
    }
}

/// Who is banned in the old process. A version without bans answers with an error.
fn bans_of(old: &Client) -> anyhow::Result<Vec<Ban>> {
    let bans: Vec<BanDoc> = serde_json::from_str(&old.ask("GET", "/bans")?).context("GET /bans")?;
    Ok(bans.iter().filter_map(BanDoc::ban).collect())
}

fn unexpected(message: Message) -> String {
    match message {
        Message::Failed { reason } => format!("the old process goes on: {reason}"),
        other => format!("the old process sent an unexpected message: {other:?}"),
    }
}

fn flow(
    record: FlowRecord,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
) -> Option<(SocketAddr, MovingFlow)> {
    let FlowRecord { listener, downstream, state, has_reply_socket } = record;
    let upstream = descriptors.next()?;
    let reply_socket = if has_reply_socket { Some(descriptors.next()?) } else { None };
    // The listener's id in this process is set when it is open.
    let id = ListenerId::new(u16::MAX);
    Some((listener, MovingFlow { listener: id, downstream, state, upstream, reply_socket }))
}
