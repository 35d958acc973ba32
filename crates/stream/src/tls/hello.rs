//! The first message of a client, read before its configuration is chosen.

use rustls::server::{Accepted, Acceptor};

/// The protocol that an ACME authority offers, alone (RFC 8737, 3).
pub const ACME_PROTOCOL: &[u8] = b"acme-tls/1";

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Hello {
    /// The host name (SNI).
    pub name: Option<String>,
    /// Whether it is an ACME authority's question: it offers that protocol alone (RFC 8737).
    pub offers_acme: bool,
}

impl Hello {
    fn of(accepted: &Accepted) -> Self {
        let hello = accepted.client_hello();
        let mut offered = hello.alpn().into_iter().flatten();
        let offers_acme = offered.next() == Some(ACME_PROTOCOL) && offered.next().is_none();
        Self { name: hello.server_name().map(str::to_owned), offers_acme }
    }
}

/// Reads a ClientHello in any number of pieces. The handshake itself reads the same bytes again.
#[derive(Default)]
pub struct HelloReader(Acceptor);

/// What the bytes so far are.
pub enum Look {
    /// The beginning of a message.
    NeedMore,
    /// A whole message.
    Whole(Hello),
    /// No ClientHello. The handshake will say so, too.
    Unreadable,
}

impl HelloReader {
    /// `more`: what has come since the last look.
    pub fn look(&mut self, mut more: &[u8]) -> Look {
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
