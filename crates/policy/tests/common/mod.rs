//! Short constructors for headers and policies.
#![allow(dead_code, reason = "not every test file uses all of it")]

pub(crate) mod unproved;

use std::net::SocketAddr;

use truepeer_policy::{BackendAddr, Backends, Policy, Refusal, Route, SenderAddr};
use truepeer_proto::{Addresses, Command, Header, Tlvs, Transport, Version};

pub(crate) const BACKEND_4: &str = "127.0.0.1:443";
pub(crate) const BACKEND_6: &str = "[::1]:443";

pub(crate) fn addr(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

pub(crate) fn sender(text: &str) -> SenderAddr {
    SenderAddr::new(addr(text))
}

/// Every default of the command line.
pub(crate) fn policy() -> Policy {
    to(BACKEND_4, BACKEND_6)
}

pub(crate) fn to(ipv4: &str, ipv6: &str) -> Policy {
    Policy::to(Backends::both(BackendAddr::new(addr(ipv4)), BackendAddr::new(addr(ipv6))))
}

pub(crate) fn header(command: Command, addresses: Addresses<'_>) -> Header<'_> {
    Header { version: Version::V2, command, addresses, tlvs: Tlvs::default(), bytes: &[] }
}

pub(crate) fn inet(transport: Transport, source: SocketAddr, destination: SocketAddr) -> Addresses<'static> {
    Addresses::Inet { transport, source, destination }
}

/// A PROXY header of a TCP client that connected to 198.51.100.1:443.
pub(crate) fn claim(source: &str) -> Header<'static> {
    claim_to(source, "198.51.100.1:443")
}

pub(crate) fn claim_to(source: &str, destination: &str) -> Header<'static> {
    header(Command::Proxy, inet(Transport::Stream, addr(source), addr(destination)))
}

/// The route of a claim by a loopback sender.
pub(crate) fn route(policy: &Policy, header: &Header<'_>) -> Result<Route, Refusal> {
    policy.route(sender("127.0.0.1:50000"), Some(header))
}
