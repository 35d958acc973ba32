//! The datagram backend: sends each datagram back to its source, in batches.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, bind, sendmmsg, sockopt};
use truepeer_sys::udp::{ReceiveBatch, grow_buffers, udp_socket};

use super::tally::{Tally, Totals};
use crate::clients::is_claimed;
use crate::link::{Events, Poll};
use crate::place::BACKEND;

/// How many datagrams are received and sent in one call.
const BATCH: usize = 64;
/// Large enough that the backend doesn't lose datagrams.
const BUFFER_BYTES: usize = 8 << 20;

/// Serves forever with a socket for each thread. The kernel spreads the flows over them.
pub(super) fn serve(threads: usize) -> anyhow::Result<()> {
    let tally = Arc::<Tally>::default();
    tally.publish(BACKEND)?;
    let sockets = (0..threads).map(|_| open()).collect::<anyhow::Result<Vec<_>>>()?;
    let running: Vec<_> = sockets
        .into_iter()
        .map(|socket| {
            let tally = Arc::clone(&tally);
            thread::spawn(move || echo(&socket, &tally))
        })
        .collect();
    for thread in running {
        thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    Ok(())
}

fn open() -> anyhow::Result<OwnedFd> {
    let socket = udp_socket(BACKEND)?;
    grow_buffers(socket.as_fd(), BUFFER_BYTES);
    sockopt::set_socket_reuseport(&socket, true).context("SO_REUSEPORT")?;
    bind(&socket, &BACKEND).context("bind")?;
    Ok(socket)
}

fn echo(socket: &OwnedFd, tally: &Tally) -> anyhow::Result<()> {
    let (poll, mut events) = (Poll::new()?, Events::default());
    poll.add(socket, 0, EventFlags::IN)?;
    let mut received = ReceiveBatch::with_room_for(BATCH);
    loop {
        match received.receive(socket.as_fd()) {
            Ok(_) => echo_batch(socket, &received, tally)?,
            Err(Errno::AGAIN) => poll.wait(&mut events, Duration::from_secs(3600))?,
            Err(Errno::INTR | Errno::CONNREFUSED) => {}
            Err(error) => return Err(error).context("recvmmsg"),
        }
    }
}

fn echo_batch(socket: &OwnedFd, received: &ReceiveBatch, tally: &Tally) -> anyhow::Result<()> {
    let arrivals: Vec<(SocketAddrAny, [IoSlice<'_>; 1])> =
        received.arrivals().map(|arrival| (arrival.from.as_any(), [IoSlice::new(arrival.bytes)])).collect();
    let mut controls: Vec<_> = arrivals.iter().map(|_| SendAncillaryBuffer::default()).collect();
    let mut messages: Vec<MMsgHdr<'_>> = arrivals
        .iter()
        .zip(&mut controls)
        .map(|((to, bytes), control)| MMsgHdr::new_with_addr(to, bytes, control))
        .collect();
    send_all(socket, &mut messages)?;
    let strangers =
        received.arrivals().filter(|arrival| !is_claimed(SocketAddr::clone(&arrival.from))).count();
    let read = received.arrivals().map(|arrival| arrival.bytes.len() as u64).sum();
    tally.add(Totals {
        read,
        strangers: strangers as u64,
        sessions: arrivals.len() as u64,
        ..Totals::default()
    });
    Ok(())
}

/// A datagram that can't be sent now is lost.
fn send_all(socket: &OwnedFd, mut messages: &mut [MMsgHdr<'_>]) -> anyhow::Result<()> {
    while !messages.is_empty() {
        let sent = match sendmmsg(socket, messages, SendFlags::DONTWAIT) {
            Ok(sent) => sent.max(1),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::CONNREFUSED | Errno::INTR) => 1,
            Err(error) => return Err(error).context("sendmmsg"),
        };
        messages = &mut messages[sent..];
    }
    Ok(())
}
