//! Kinds of headers, and their guessed length: that of the sender's previous header that named a client.

use std::net::{SocketAddr, TcpStream};

use anyhow::Result;
use truepeer_testbed::client;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    V1,
    V2,
    /// v2, with TLVs of 500 bytes.
    Tlvs,
    /// v2 LOCAL: the sender's own connection. It teaches no length, so its own is never expected.
    Local,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Guess {
    /// No packet is altered.
    Right,
    /// Numbers are translated to the end: δ ≠ 0.
    Wrong,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form(pub(super) Kind, pub(super) Guess);

pub(super) const FORMS: [Form; 7] = [
    Form(Kind::V1, Guess::Right),
    Form(Kind::V1, Guess::Wrong),
    Form(Kind::V2, Guess::Right),
    Form(Kind::V2, Guess::Wrong),
    Form(Kind::Tlvs, Guess::Right),
    Form(Kind::Tlvs, Guess::Wrong),
    Form(Kind::Local, Guess::Wrong),
];

/// By family, IPv6 last.
const CLIENTS: [&str; 2] = ["203.0.113.7:50001", "[2001:db8::7]:50001"];
const DESTINATIONS: [&str; 2] = ["192.0.2.1:443", "[2001:db8::1]:443"];

impl Form {
    pub(super) fn header(self, is_v6: bool) -> Result<Vec<u8>> {
        header(self.0, is_v6)
    }

    /// With a wrong guess, the header is longer than expected, or shorter.
    pub(super) fn header_before(self, is_v6: bool) -> Result<Vec<u8>> {
        let other = match self.0 {
            Kind::V1 | Kind::V2 => Kind::Tlvs,
            Kind::Tlvs => Kind::V2,
            Kind::Local => Kind::V1,
        };
        header(if self.1 == Guess::Right { self.0 } else { other }, is_v6)
    }

    /// The client that the server must see.
    pub(super) fn client(self, is_v6: bool, sender: &TcpStream) -> Result<SocketAddr> {
        match self.0 {
            Kind::Local => Ok(sender.local_addr()?),
            _ => Ok(CLIENTS[usize::from(is_v6)].parse()?),
        }
    }

    /// How much one such connection adds to the counters: guessed right, translated.
    pub(super) fn counted(self) -> (u64, u64) {
        if self.1 == Guess::Right { (1, 0) } else { (0, 1) }
    }
}

fn header(kind: Kind, is_v6: bool) -> Result<Vec<u8>> {
    let (client, destination) = (CLIENTS[usize::from(is_v6)], DESTINATIONS[usize::from(is_v6)]);
    match kind {
        Kind::V1 => client::v1(client, destination),
        Kind::V2 => client::v2(client, destination),
        Kind::Tlvs => {
            client::v2_with_tlvs(client, destination, &[(1, b"h2"), (2, b"example.org"), (4, &[7; 478])])
        }
        Kind::Local => Ok(client::v2_local()),
    }
}
