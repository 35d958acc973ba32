//! Which listener a connection belongs to.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use truepeer_sys::marked::getsockname;
use truepeer_sys::socket::{bound_device, namespace_cookie};

/// Identifies the listeners that may answer for each other's connections, as in a SO_REUSEPORT group. The
/// address alone is not enough: listeners on two devices, or in two network namespaces, may have the same
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerAddr {
    /// The address that it is bound to.
    pub local: SocketAddr,
    /// The index of the device that it is bound to; 0: none.
    pub device: u32,
    /// A part of its network namespace's cookie, enough to distinguish it; 0 before Linux 5.14, which has
    /// none.
    pub namespace: u32,
}

impl ListenerAddr {
    /// Reads those of a socket.
    ///
    /// # Errors
    /// Those of getsockname(2); EAFNOSUPPORT for a socket without an internet address.
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let local = SocketAddr::try_from(getsockname(socket)?).map_err(|_| Errno::AFNOSUPPORT)?;
        Ok(Self { local, device: bound_device(socket), namespace: namespace_of(socket) })
    }
}

/// A part of the cookie of a socket's network namespace.
pub(crate) fn namespace_of(socket: BorrowedFd<'_>) -> u32 {
    namespace_cookie(socket).map_or(0, |cookie| u32::try_from(cookie & u64::from(u32::MAX)).unwrap_or(0))
}

/// One word, for [`FromStr`].
impl fmt::Display for ListenerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{},{}", self.local, self.device, self.namespace)
    }
}

/// The text is no listener's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a listener")]
pub struct NotAListener;

impl FromStr for ListenerAddr {
    type Err = NotAListener;

    fn from_str(text: &str) -> Result<Self, NotAListener> {
        let mut parts = text.splitn(3, ',');
        let mut next = || parts.next().ok_or(NotAListener);
        let local = next()?.parse().map_err(|_| NotAListener)?;
        let device = next()?.parse().map_err(|_| NotAListener)?;
        let namespace = next()?.parse().map_err(|_| NotAListener)?;
        Ok(Self { local, device, namespace })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_listener_is_read_again() {
        for local in ["0.0.0.0:443", "[fe80::1%3]:80"] {
            let local = local.parse().unwrap();
            let listener = ListenerAddr { local, device: 7, namespace: u32::MAX };
            assert_eq!(listener.to_string().parse(), Ok(listener));
        }
        assert_eq!("127.0.0.1:80,1".parse::<ListenerAddr>(), Err(NotAListener));
    }
}
