//! Asks the kernel whether a connection is still open: one question, one answer, no privilege.

use std::os::fd::AsFd;

use truepeer_sys::sock_diag::{SockDiag, SocketId};

use super::{Census, ConnectionTuple, Standing, namespace_of};

/// A netlink socket, opened when it is first needed. It knows the connections of the network namespace that
/// it was opened in.
#[derive(Debug, Default)]
pub struct SocketDiag(Option<(SockDiag, u32)>);

impl SocketDiag {
    /// Not opened yet.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether the kernel answers at all: a service manager may forbid netlink sockets
    /// (RestrictAddressFamilies).
    pub fn is_answered(&mut self) -> bool {
        self.ready().is_some()
    }

    fn ready(&mut self) -> Option<&mut (SockDiag, u32)> {
        if self.0.is_none() {
            let mut kernel = SockDiag::open().ok()?;
            let namespace = namespace_of(kernel.as_fd());
            self.0 = kernel.is_answered().then_some((kernel, namespace));
        }
        self.0.as_mut()
    }
}

impl Census for SocketDiag {
    fn ask(&mut self, cookie: u64, tuple: &ConnectionTuple) -> Standing {
        let socket = SocketId::new(tuple.local, tuple.sender, tuple.device, cookie);
        let answer = match self.ready() {
            Some((kernel, namespace)) if *namespace == tuple.namespace => kernel.is_open(&socket).ok(),
            _ => None,
        };
        answer.map_or(Standing::Unknown, |is_open| if is_open { Standing::Open } else { Standing::Closed })
    }
}
