//! The first message of a client, read before its configuration is chosen.

use rustls::server::{Accepted, Acceptor};

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Hello {
    /// The host name (SNI).
    pub name: Option<String>,
}

impl Hello {
    fn of(accepted: &Accepted) -> Self {
        Self { name: accepted.client_hello().server_name().map(str::to_owned) }
    }
}

/// Reads a ClientHello in any number of pieces. The handshake itself reads the same bytes again.
#[derive(Default)]
pub(crate) struct HelloReader(Acceptor);

/// What the bytes so far are.
pub(crate) enum Look {
    /// The beginning of a message.
    NeedMore,
    /// A whole message.
    Whole(Hello),
    /// No ClientHello. The handshake will say so, too.
    Unreadable,
}

impl HelloReader {
    /// `more`: what has come since the last look.
    pub(crate) fn look(&mut self, mut more: &[u8]) -> Look {
        while !more.is_empty() {
            if !matches!(self.0.read_tls(&mut more), Ok(1..)) {
                return Look::Unreadable;
            }
            match self.0.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => return Look::Whole(Hello::of(&accepted)),
                Err(_) => return Look::Unreadable,
            }
        }
        Look::NeedMore
    }
}
