//! The sockets to which senders send datagrams.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::net::sockopt;
use truepeer_session::ListenerId;
use truepeer_session::listening::ListenError;
use truepeer_session::settings::{ListenerSettings, UdpSettings};
use truepeer_sys::socket::set_transparent;
use truepeer_sys::udp::{
    Arrival, enable_arrival_reports, enable_gro, grow_buffers, grow_later, set_steering,
    supports_segmentation, udp_socket,
};
use truepeer_sys::{CallError, Named};

use super::early::{self, EarlyDatagram};
use super::steering;
use super::tuples::Tuples;

/// The buffer size of a listener: some thousand datagrams while a worker is busy.
pub const BUFFER_BYTES: usize = 8 << 20;

/// One worker's socket of a UDP listener.
#[derive(Debug)]
pub(crate) struct DownstreamSocket {
    pub(crate) listener: ListenerId,
    /// Its place among the listener's downstream sockets.
    pub(crate) number: usize,
    pub(crate) socket: Arc<OwnedFd>,
    /// Replies leave from here unless TPROXY brought the datagram from another port.
    pub(crate) port: u16,
    pub(crate) can_segment: bool,
    /// Shared by all workers.
    pub(crate) tuples: Tuples,
    /// Datagrams that came before the listener's sockets were complete: its worker delivers them first.
    pub(super) early: Vec<EarlyDatagram>,
}

impl DownstreamSocket {
    /// The address to which a datagram was sent.
    pub(super) fn destination_of(&self, arrival: &Arrival<'_>) -> Option<SocketAddr> {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let local = || arrival.local.map(|local| SocketAddr::new(local.ip, self.port));
        arrival.original_destination.or_else(local).map(canonical)
    }
}

/// Opens a socket for each worker. Inherited ones are one socket of a service manager, or the whole group of
/// another process, in its order: each then stays with one worker, whatever the number of workers is.
pub(crate) fn open(
    listener: ListenerId,
    settings: &ListenerSettings,
    udp: &UdpSettings,
    inherited: Vec<OwnedFd>,
    workers: usize,
    tuples: &Tuples,
) -> Result<Vec<DownstreamSocket>, ListenError> {
    let fail = |error| ListenError { address: settings.address, error };
    // The BPF program sees only the first of merged datagrams, and the next may belong to another client.
    let may_merge = |sockets| sockets == 1 || udp.dialect.has_bare_datagrams();
    if !inherited.is_empty() {
        let may_merge = may_merge(inherited.len());
        if let Some(program) = steering::program(udp.dialect, inherited.len()) {
            // The same program as before unless the dialect is another one: flows stay where they are.
            set_steering(inherited[0].as_fd(), &program).map_err(fail)?;
        }
        let adopt = |(number, socket)| adopt(listener, number, settings, socket, may_merge, tuples);
        return inherited.into_iter().enumerate().map(adopt).collect::<Result<_, _>>().map_err(fail);
    }
    let may_merge = may_merge(workers);
    let mut downstreams: Vec<DownstreamSocket> = Vec::with_capacity(workers);
    for number in 0..workers {
        // Port 0: the others take the port that the kernel chose for the first.
        let port = downstreams.first().map_or(settings.address.port(), |first| first.port);
        let address = SocketAddr::new(settings.address.ip(), port);
        let socket = bind(settings, address, !downstreams.is_empty()).map_err(fail)?;
        // For the downstream sockets of the other workers, and for the upstream sockets of clients with the
        // same port (NTP clients send from 123). Other users' sockets can't share it.
        sockopt::set_socket_reuseport(&socket, true).named("setsockopt(SO_REUSEPORT)").map_err(fail)?;
        downstreams.push(adopt(listener, number, settings, socket, may_merge, tuples).map_err(fail)?);
    }
    if let (Some(program), Some(first)) = (steering::program(udp.dialect, workers), downstreams.first()) {
        set_steering(first.socket.as_fd(), &program).map_err(fail)?;
        let sockets: Vec<_> = downstreams.iter().map(|downstream| downstream.socket.as_fd()).collect();
        let early = early::take(&sockets, BUFFER_BYTES, &program);
        for (downstream, early) in downstreams.iter_mut().zip(early) {
            downstream.early = early;
        }
    }
    Ok(downstreams)
}

/// The first socket of a group is bound without SO_REUSEPORT. Otherwise a second instance of this program
/// would silently share the port.
fn bind(settings: &ListenerSettings, address: SocketAddr, is_further: bool) -> Result<OwnedFd, CallError> {
    let socket = udp_socket(address)?;
    if is_further {
        sockopt::set_socket_reuseport(&socket, true).named("setsockopt(SO_REUSEPORT)")?;
    }
    // `[::]` takes IPv4, too, whatever net.ipv6.bindv6only says.
    if address.is_ipv6() && (settings.v6_only || address.ip().is_unspecified()) {
        sockopt::set_ipv6_v6only(&socket, settings.v6_only).named("setsockopt(IPV6_V6ONLY)")?;
    }
    if settings.transparent {
        set_transparent(socket.as_fd(), address)?;
    }
    rustix::net::bind(&socket, &address).named("bind")?;
    Ok(socket)
}

fn adopt(
    listener: ListenerId,
    number: usize,
    settings: &ListenerSettings,
    socket: OwnedFd,
    may_merge: bool,
    tuples: &Tuples,
) -> Result<DownstreamSocket, CallError> {
    enable_arrival_reports(socket.as_fd(), settings.address, settings.transparent)?;
    if !grow_buffers(socket.as_fd(), BUFFER_BYTES) {
        grow_later(&[socket.as_fd()], BUFFER_BYTES);
    }
    if may_merge {
        // An older kernel delivers datagrams one by one, which is only slower.
        let _ = enable_gro(socket.as_fd());
    }
    Ok(DownstreamSocket {
        listener,
        number,
        port: truepeer_sys::socket::local_address(socket.as_fd())?.port(),
        can_segment: supports_segmentation(socket.as_fd()),
        socket: Arc::new(socket),
        tuples: tuples.clone(),
        early: Vec::new(),
    })
}
