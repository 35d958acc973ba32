//! The old process's side.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, bail, ensure};
use tracing::{error, info};
use truepeer_relay::udp::moving::MovingFlow;

use super::wire::{FlowRecord, MOST_DESCRIPTORS, Message, Wire};
use super::{LAST_WORD, START, SWITCH};
use crate::server::requests::{HandedOver, Offered, Requests};
use truepeer_config::plan::ListenerKey;

/// Hands over to the process at the other end. On any failure this process goes on.
pub(in crate::server) fn give(peer: UnixStream, requests: &Requests) {
    let mut wire = Wire::new(peer, START);
    if let Err(failure) = try_give(&mut wire, requests) {
        error!("not upgraded, this process goes on: {failure:#}");
        // The other process may be gone.
        wire.begin_step(LAST_WORD);
        let _ = wire.send(&Message::Failed { reason: format!("{failure:#}") }, &[]);
    }
}

fn try_give(wire: &mut Wire, requests: &Requests) -> anyhow::Result<()> {
    let peer = wire.peer().context("SO_PEERCRED")?;
    let own = rustix::process::geteuid();
    ensure!(
        peer.uid.is_root() || peer.uid == own,
        "user {} asked: expected root or user {}",
        peer.uid.as_raw(),
        own.as_raw()
    );
    let offered = requests.offer()?;
    let outcome = exchange(wire, requests, offered);
    if outcome.is_err() {
        requests.keep();
    }
    outcome
}

fn exchange(wire: &mut Wire, requests: &Requests, offered: Offered) -> anyhow::Result<()> {
    for sockets in offered.sockets.chunks(MOST_DESCRIPTORS) {
        let sockets: Vec<_> = sockets.iter().map(OwnedFd::as_fd).collect();
        wire.send(&Message::Sockets, &sockets)?;
    }
    let offer = Message::Offer { pid: std::process::id(), attached: offered.attached };
    wire.send(&offer, &[std::io::stderr().as_fd()])?;
    match wire.receive().context("the new process has not started")?.0 {
        Message::Ready => {}
        other => bail!(unexpected(other)),
    }
    wire.begin_step(SWITCH);
    let flows = requests.flows()?;
    info!("upgrade: {} flows go over", flows.len());
    // Two descriptors each at most.
    for flows in flows.chunks(MOST_DESCRIPTORS / 2) {
        let descriptors: Vec<BorrowedFd<'_>> = flows.iter().flat_map(|(_, flow)| sockets_of(flow)).collect();
        wire.send(&Message::Flows(flows.iter().map(record).collect()), &descriptors)?;
    }
    wire.send(&Message::Go, &[])?;
    match wire.receive().context("the new process does not serve")?.0 {
        Message::Serving { pid, udp, attached } => requests.hand_over(HandedOver { pid, udp, attached }),
        other => bail!(unexpected(other)),
    }
}

fn unexpected(message: Message) -> String {
    match message {
        Message::Failed { reason } => format!("the new process has failed: {reason}"),
        other => format!("the new process sent an unexpected message: {other:?}"),
    }
}

fn sockets_of(flow: &MovingFlow) -> impl Iterator<Item = BorrowedFd<'_>> {
    std::iter::once(flow.upstream.as_fd()).chain(flow.reply_socket.as_ref().map(OwnedFd::as_fd))
}

fn record((key, flow): &(ListenerKey, MovingFlow)) -> FlowRecord {
    FlowRecord {
        listener: key.address,
        downstream: flow.downstream,
        state: flow.state.clone(),
        has_reply_socket: flow.reply_socket.is_some(),
    }
}
