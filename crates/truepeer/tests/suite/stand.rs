//! The set-up of most tests: truepeer before a backend, in the test's own network namespace.
//!
//! ```text
//! sender (the test) ──header, data──▶ 127.0.0.1:8443, [::1]:8443 truepeer ──as the client──▶ 127.0.0.1:8000, [::1]:8000
//! ```

use std::io::Write;
use std::net::{SocketAddr, TcpStream};

pub(crate) use truepeer_testbed::peers::classic_rules;
use truepeer_testbed::{Bed, Behaviour, Running, Truepeer, client};

/// The binary under test.
pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
/// The address that senders connect to over IPv4.
pub(crate) const DOOR_V4: &str = "127.0.0.1:8443";
/// The address that senders connect to over IPv6.
pub(crate) const DOOR_V6: &str = "[::1]:8443";
/// The backend for IPv4 clients.
pub(crate) const BACKEND_V4: &str = "127.0.0.1:8000";
/// The backend for IPv6 clients.
pub(crate) const BACKEND_V6: &str = "[::1]:8000";
/// A client (RFC 5737: for documentation, so no host has it).
pub(crate) const CLIENT_V4: &str = "203.0.113.7:5000";
/// A client (RFC 3849).
pub(crate) const CLIENT_V6: &str = "[2001:db8::7]:5000";
/// The destination in headers, IPv4.
pub(crate) const SITE_V4: &str = "192.0.2.1:443";
/// The destination in headers, IPv6.
pub(crate) const SITE_V6: &str = "[2001:db8::1]:443";

/// `truepeer proxy` that creates its routes and logs everything; without addresses.
pub(crate) fn bare_proxy() -> Truepeer {
    proxy_without_routes().option("--routes", "auto")
}

/// The same without `--routes`, for routes that were made elsewhere or are not needed.
pub(crate) fn proxy_without_routes() -> Truepeer {
    Truepeer::proxy(TRUEPEER).args(&["--log-format", "text", "-v", "2"])
}

/// `truepeer proxy` on the listening addresses, with the backends.
pub(crate) fn proxy() -> Truepeer {
    bare_proxy().listen(DOOR_V4).listen(DOOR_V6).ipv4(BACKEND_V4).ipv6(BACKEND_V6)
}

/// The test's backend and the truepeer before it.
#[derive(Debug)]
pub(crate) struct Stand {
    /// Its log has truepeer's messages.
    pub(crate) truepeer: Running,
    /// Its log names the clients that it saw.
    pub(crate) backend: Running,
}

impl Stand {
    /// A backend behind `truepeer proxy` with these additional options.
    pub(crate) fn with_options(bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Stand> {
        Stand::behind(bed, behaviour, &proxy().args(options))
    }

    /// A backend behind this truepeer.
    pub(crate) fn behind(bed: &Bed, behaviour: Behaviour, truepeer: &Truepeer) -> anyhow::Result<Stand> {
        let backend = behaviour.start(bed, &[BACKEND_V4, BACKEND_V6])?;
        Ok(Stand { truepeer: truepeer.start(bed)?, backend })
    }
}

/// A connection on which nothing has been sent.
pub(crate) fn knock() -> anyhow::Result<TcpStream> {
    client::connect(DOOR_V4)
}

/// A v2 header for a client of either family.
pub(crate) fn header_of(client: SocketAddr) -> anyhow::Result<Vec<u8>> {
    client::v2(client, if client.is_ipv4() { SITE_V4 } else { SITE_V6 })
}

/// A connection on which a header that names this client has been sent.
pub(crate) fn open_as(client: SocketAddr) -> anyhow::Result<TcpStream> {
    let mut stream = knock()?;
    stream.write_all(&header_of(client)?)?;
    Ok(stream)
}

/// Sends only a header to the IPv4 listener and returns the answer.
pub(crate) fn ask(header: &[u8]) -> anyhow::Result<String> {
    Ok(client::ask(&mut knock()?, header)?.trim().to_owned())
}

/// Sends a header to the IPv4 listener and waits for the refusal; a backend's answer is an error.
pub(crate) fn refused(header: &[u8]) -> anyhow::Result<client::End> {
    refused_from("127.0.0.1:0", header)
}

/// The same, from an address of this host: complaints about one sender are logged at most once a minute.
pub(crate) fn refused_from(from: &str, header: &[u8]) -> anyhow::Result<client::End> {
    let mut stream = client::connect_from(from, DOOR_V4)?;
    // It may be refused before it has sent anything.
    let _ = stream.write_all(header);
    Ok(client::read_end(&mut stream)?)
}
