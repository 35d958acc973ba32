//! The caller of a call that waits for its answer: its socket, duplicated, and addresses in its memory.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::AddressFamily;
use truepeer_sys::process::{Reach, descriptor_of, read_memory, write_memory};
use truepeer_sys::seccomp::{Answer, Notification, Notifier, calls};

use super::journal::SupervisorLog;

/// The larger of the two is struct sockaddr_in6.
const LONGEST: usize = 28;

/// Duplicates the descriptor in the call's first argument. On failure the call has been answered.
pub(super) fn descriptor_for(
    call: &Notification,
    notifier: &Notifier,
    journal: &mut SupervisorLog,
) -> Option<OwnedFd> {
    let answer = match descriptor_of(call.thread, call.int(0)) {
        // The descriptor was duplicated by thread id. The id belongs to the caller as long as its call waits.
        Ok(socket) => return notifier.is_waiting(call.id).then_some(socket),
        Err(Reach::NoDescriptor) => Answer::Fail(Errno::BADF),
        Err(Reach::NoThread) if !notifier.is_waiting(call.id) => return None,
        Err(Reach::NoThread) => refusal(call, Errno::SRCH, journal),
        Err(Reach::Forbidden(errno @ (Errno::MFILE | Errno::NFILE))) => {
            journal.on_trouble("out of descriptors", &errno);
            Answer::Fail(errno)
        }
        Err(Reach::Forbidden(errno)) => refusal(call, errno, journal),
    };
    if let Err(error) = notifier.send(call.id, answer) {
        journal.on_trouble("can't answer a call", &error);
    }
    None
}

/// The call must not continue: the program would take the header for data, and the sender for the client.
fn refusal(call: &Notification, errno: Errno, journal: &mut SupervisorLog) -> Answer {
    journal.on_unreachable(call.thread, errno);
    // On this error servers pause. On EPERM they would call accept() again in a tight loop.
    let is_accept = matches!(call.call, calls::ACCEPT | calls::ACCEPT4);
    Answer::Fail(if is_accept { Errno::NFILE } else { Errno::PERM })
}

/// Writes an address to the caller's memory as the kernel does (net/socket.c, move_addr_to_user):
/// truncated to the caller's length, which is then set to the length of the whole address.
///
/// # Errors
/// The errno of the call: EFAULT, or EINVAL for a negative length. ESRCH if the caller has been killed.
pub(super) fn write_address(
    notifier: &Notifier,
    call: &Notification,
    [address, length]: [u64; 2],
    shown: SocketAddr,
) -> Result<(), Errno> {
    let (name, whole) = sockaddr(shown);
    let mut room = [0; 4];
    read_memory(call.thread, length, &mut room)?;
    let room = usize::try_from(i32::from_ne_bytes(room)).map_err(|_| Errno::INVAL)?;
    let part = &name[..room.min(whole)];
    // A thread id stays valid while its call waits. See `memory` in truepeer-sys.
    if !notifier.is_waiting(call.id) {
        return Err(Errno::SRCH);
    }
    if !part.is_empty() {
        write_memory(call.thread, address, part)?;
    }
    let whole = i32::try_from(whole).unwrap_or_default();
    write_memory(call.thread, length, &whole.to_ne_bytes())
}

/// struct sockaddr_in or sockaddr_in6, and its length.
fn sockaddr(address: SocketAddr) -> ([u8; LONGEST], usize) {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let mut bytes = [0; LONGEST];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.ip().octets());
            (bytes, 16)
        }
        SocketAddr::V6(address) => {
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
            bytes[8..24].copy_from_slice(&address.ip().octets());
            bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
            (bytes, LONGEST)
        }
    }
}

pub(super) fn parse_address(bytes: &[u8; 28], family: AddressFamily) -> Option<SocketAddr> {
    if u16::from_ne_bytes([bytes[0], bytes[1]]) != family.as_raw() {
        return None;
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    if family == AddressFamily::INET {
        return Some(SocketAddr::new(Ipv4Addr::from(<[u8; 4]>::try_from(&bytes[4..8]).ok()?).into(), port));
    }
    let flow = u32::from_ne_bytes(bytes[4..8].try_into().ok()?);
    let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
    let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?);
    Some(SocketAddrV6::new(ip, port, flow, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_laid_out_as_the_kernel_does() {
        let (bytes, length) = sockaddr("192.0.2.1:258".parse().unwrap());
        assert_eq!(length, 16);
        assert_eq!(bytes[2..16], [1, 2, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(u16::from_ne_bytes([bytes[0], bytes[1]]), 2);
        let (bytes, length) = sockaddr("[2001:db8::1%7]:258".parse().unwrap());
        assert_eq!(length, 28);
        assert_eq!(bytes[2..8], [1, 2, 0, 0, 0, 0]);
        assert_eq!(bytes[8..24], [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(bytes[24..], 7_u32.to_ne_bytes());
    }

    #[test]
    fn addresses_are_read_as_the_kernel_lays_them_out() {
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&[2, 0, 1, 2, 192, 0, 2, 1]);
        let v4 = parse_address(&bytes, AddressFamily::INET);
        assert_eq!(v4, Some("192.0.2.1:258".parse().unwrap()));
        assert_eq!(parse_address(&bytes, AddressFamily::INET6), None);
        bytes[..2].copy_from_slice(&10_u16.to_ne_bytes());
        bytes[4..8].fill(0);
        bytes[8..10].copy_from_slice(&[0xfe, 0x80]);
        bytes[23] = 1;
        bytes[24..].copy_from_slice(&7_u32.to_ne_bytes());
        assert_eq!(parse_address(&bytes, AddressFamily::INET6), Some("[fe80::1%7]:258".parse().unwrap()));
    }
}
