//! Whole frames of one device, bypassing this host's own protocols (packet(7)).

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::error::{CallError, Named};

/// The types of `sockaddr_ll`; libc's constants are `c_int`.
const AF_PACKET: u16 = 17;
const ETH_P_ALL: u16 = 3;
const _: () = assert!(AF_PACKET as i32 == libc::AF_PACKET && ETH_P_ALL as i32 == libc::ETH_P_ALL);

/// A socket that sends any frame on its device, and receives each incoming frame.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens one on a device of the calling thread's network namespace. Frames that this host itself sends
    /// are not received.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, ENODEV if there is no such device.
    pub fn open(device: &str) -> Result<PacketSocket, CallError> {
        let index = index_of(device)?;
        // A socket of protocol 0 receives nothing: no frame of another device is queued before bind names the
        // device. SAFETY: socket(2) takes no pointers.
        let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if raw < 0 {
            return Err(CallError { call: "socket(AF_PACKET)", errno: last_errno() });
        }
        // SAFETY: invariant of from_raw_fd: the descriptor is open and nobody else's; socket(2) has just
        // returned it.
        let socket = PacketSocket { socket: unsafe { OwnedFd::from_raw_fd(raw) } };
        socket.ignore_outgoing()?;
        socket.bind(index)?;
        Ok(socket)
    }

    fn ignore_outgoing(&self) -> Result<(), CallError> {
        let on: libc::c_int = 1;
        // SAFETY: invariant of setsockopt(2): the pointer is to as many readable bytes as the length says;
        // `on` outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_IGNORE_OUTGOING,
                (&raw const on).cast(),
                len_of::<libc::c_int>(),
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(CallError { call: "setsockopt(PACKET_IGNORE_OUTGOING)", errno: last_errno() })
        }
    }

    fn bind(&self, index: i32) -> Result<(), CallError> {
        // SAFETY: invariant of zeroed: all bits zero is a valid value; sockaddr_ll has integers and arrays of
        // them only.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = AF_PACKET;
        address.sll_protocol = ETH_P_ALL.to_be();
        address.sll_ifindex = index;
        // SAFETY: invariant of bind(2): the pointer is to as many readable bytes as the length says;
        // `address` outlives the call.
        let result = unsafe {
            libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), len_of::<libc::sockaddr_ll>())
        };
        if result == 0 { Ok(()) } else { Err(CallError { call: "bind(AF_PACKET)", errno: last_errno() }) }
    }

    /// Sends one frame, link header included.
    ///
    /// # Errors
    /// EMSGSIZE if it is longer than the device's MTU allows, ENETDOWN, ENOBUFS.
    pub fn send(&self, frame: &[u8]) -> Result<(), CallError> {
        rustix::net::send(&self.socket, frame, SendFlags::empty()).named("send(AF_PACKET)").map(drop)
    }

    /// Receives one frame if there is one. Returns its length, which is truncated to the buffer's. A VLAN tag
    /// is not included.
    ///
    /// # Errors
    /// ENETDOWN after the device went down.
    pub fn try_recv(&self, buffer: &mut [u8]) -> Result<Option<usize>, CallError> {
        match rustix::net::recv(&self.socket, buffer, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(len)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(CallError { call: "recv(AF_PACKET)", errno }),
        }
    }

    /// How much may wait to be received; more is lost. Without CAP_NET_ADMIN in the machine's own user
    /// namespace it is at most net.core.rmem_max.
    pub fn grow_recv_buffer(&self, bytes: usize) {
        crate::udp::grow_recv_buffer(self.as_fd(), bytes);
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn index_of(device: &str) -> Result<i32, CallError> {
    const CALL: &str = "if_nametoindex";
    let name = CString::new(device).map_err(|_| CallError { call: CALL, errno: Errno::INVAL })?;
    // SAFETY: invariant of if_nametoindex(3): the pointer is to a string that ends with a NUL; `name`
    // outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    match i32::try_from(index) {
        Ok(index) if index > 0 => Ok(index),
        _ => Err(CallError { call: CALL, errno: last_errno() }),
    }
}

fn len_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default()
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
