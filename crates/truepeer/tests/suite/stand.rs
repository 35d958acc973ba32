//! What most tests stand on: truepeer in front of a backend, in the test's own network.
//!
//! ```text
//! sender (the test) ──header, data──▶ 127.0.0.1:8443, [::1]:8443 truepeer ──as the client──▶ 127.0.0.1:8000, [::1]:8000
//! ```

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use truepeer_testbed::{Bed, Behaviour, Program, Running, Truepeer, client};

/// The binary under test.
pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
/// Where senders connect over IPv4.
pub(crate) const DOOR_V4: &str = "127.0.0.1:8443";
/// Where senders connect over IPv6.
pub(crate) const DOOR_V6: &str = "[::1]:8443";
/// The backend for IPv4 clients.
pub(crate) const BACKEND_V4: &str = "127.0.0.1:8000";
/// The backend for IPv6 clients.
pub(crate) const BACKEND_V6: &str = "[::1]:8000";
/// A client (RFC 5737: for documentation, so nobody's).
pub(crate) const CLIENT_V4: &str = "203.0.113.7:5000";
/// A client (RFC 3849).
pub(crate) const CLIENT_V6: &str = "[2001:db8::7]:5000";
/// What headers call the destination.
pub(crate) const SITE_V4: &str = "192.0.2.1:443";
/// What headers call the destination.
pub(crate) const SITE_V6: &str = "[2001:db8::1]:443";

/// The rules by which replies to clients come back to this host, as the documents of mmproxy and go-mmproxy have
/// them for backends on loopback. Only for who claims to be one of these; truepeer makes its own.
pub(crate) fn classic_rules(bed: &Bed) -> anyhow::Result<()> {
    let v4 = "rule add from 127.0.0.1/8 iif lo table 123\nroute add local 0.0.0.0/0 dev lo table 123\n";
    let v6 = "rule add from ::1/128 iif lo table 123\nroute add local ::/0 dev lo table 123\n";
    Program::new("ip").args(["-batch", "-"]).input(v4).run(bed)?;
    Program::new("ip").args(["-6", "-batch", "-"]).input(v6).run(bed)?;
    Ok(())
}

/// `truepeer proxy` that makes its routes and says all it has to say; nothing about addresses.
pub(crate) fn bare_proxy() -> Truepeer {
    proxy_without_routes().option("--routes", "auto")
}

/// Likewise, where its routes are made by somebody else or not needed: without `--routes`.
pub(crate) fn proxy_without_routes() -> Truepeer {
    Truepeer::proxy(TRUEPEER).args(&["--log-format", "text", "-v", "2"])
}

/// `truepeer proxy` at the doors, with the backends.
pub(crate) fn proxy() -> Truepeer {
    bare_proxy().listen(DOOR_V4).listen(DOOR_V6).ipv4(BACKEND_V4).ipv6(BACKEND_V6)
}

/// The test's backend and the truepeer in front of it.
#[derive(Debug)]
pub(crate) struct Stand {
    /// Its log says what it thinks.
    pub(crate) truepeer: Running,
    /// Its log names whom it saw.
    pub(crate) backend: Running,
}

impl Stand {
    /// A backend behind `truepeer proxy` with these options more.
    pub(crate) fn with_options(bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Stand> {
        Stand::behind(bed, behaviour, &proxy().args(options))
    }

    /// A backend behind this truepeer.
    pub(crate) fn behind(bed: &Bed, behaviour: Behaviour, truepeer: &Truepeer) -> anyhow::Result<Stand> {
        let backend = behaviour.start(bed, &[BACKEND_V4, BACKEND_V6])?;
        Ok(Stand { truepeer: truepeer.start(bed)?, backend })
    }
}

/// A connection on which nothing was sent yet.
pub(crate) fn knock() -> anyhow::Result<TcpStream> {
    client::connect(DOOR_V4)
}

/// A v2 header for a client of either family.
pub(crate) fn header_of(client: SocketAddr) -> anyhow::Result<Vec<u8>> {
    client::v2(client, if client.is_ipv4() { SITE_V4 } else { SITE_V6 })
}

/// A connection whose header, already sent, names this client.
pub(crate) fn open_as(client: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = knock()?;
    stream.write_all(&header_of(client)?)?;
    Ok(stream)
}

/// Sends a header (and nothing else) to the IPv4 door, and reads the answer.
pub(crate) fn ask(header: &[u8]) -> anyhow::Result<String> {
    Ok(client::ask(&mut knock()?, header)?.trim().to_owned())
}

/// Sends a header to the IPv4 door and waits for the refusal; a backend's answer is an error.
pub(crate) fn refused(header: &[u8]) -> anyhow::Result<client::End> {
    refused_from("127.0.0.1:0", header)
}

/// Likewise, from an address of this host: what is said of one sender is said at most once a minute.
pub(crate) fn refused_from(from: &str, header: &[u8]) -> anyhow::Result<client::End> {
    let mut stream = client::connect_from(from, DOOR_V4)?;
    // It may be refused before it has said anything.
    let _ = stream.write_all(header);
    Ok(client::read_end(&mut stream)?)
}
