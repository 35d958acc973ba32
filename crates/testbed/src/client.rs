//! The client's and the sender's side: connections, and PROXY headers written without truepeer's own encoder,
//! so that an error in the encoder can't hide itself.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context;
use socket2::{Domain, SockAddr, Socket, Type};

/// The time-out of every read and write: a hanging relay fails the test instead of hanging it.
const STALL: Duration = Duration::from_secs(60);

/// The v2 signature (PROXY 2.2).
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Connects; reads and writes fail after 60 seconds without progress.
pub fn connect(to: impl Display) -> anyhow::Result<TcpStream> {
    let to = address(&to)?;
    connect_socket(to, None).with_context(|| format!("connect to {to}"))
}

/// Connects from an address of this host (port 0: any).
pub fn connect_from(from: impl Display, to: impl Display) -> anyhow::Result<TcpStream> {
    let (from, to) = (address(&from)?, address(&to)?);
    connect_socket(to, Some(from)).with_context(|| format!("connect from {from} to {to}"))
}

fn connect_socket(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if let Some(from) = from {
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(from))?;
    }
    socket.connect_timeout(&SockAddr::from(to), STALL)?;
    socket.set_read_timeout(Some(STALL))?;
    socket.set_write_timeout(Some(STALL))?;
    socket.set_tcp_nodelay(true)?; // each write must be sent at once
    Ok(socket.into())
}

/// The address that this host would connect from. Nothing is sent: connect() of a UDP socket only looks up a
/// route.
pub fn source_towards(to: impl Display) -> anyhow::Result<IpAddr> {
    let to = address(&to)?;
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
    socket.connect(&SockAddr::from(to)).with_context(|| format!("a route to {to}"))?;
    Ok(socket.local_addr()?.as_socket().context("no address")?.ip())
}

/// Writes, ends the sending direction, and reads to the end.
pub fn ask(stream: &mut TcpStream, bytes: &[u8]) -> anyhow::Result<String> {
    stream.write_all(bytes).context("write")?;
    stream.shutdown(Shutdown::Write).context("half-close")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).context("read to the end")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Closes with a reset instead of FIN.
pub fn reset(stream: TcpStream) -> io::Result<()> {
    let socket = Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO))
}

/// How the other side ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By a FIN.
    Eof,
    /// By a RST.
    Reset,
}

/// Reads and discards until the connection ends. Returns how it ended.
pub fn read_end(stream: &mut TcpStream) -> io::Result<End> {
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(End::Eof),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(End::Reset),
            Err(error) => return Err(error),
        }
    }
}

/// A v1 header (PROXY 2.1). Both addresses must be of one family.
pub fn v1(client: impl Display, destination: impl Display) -> anyhow::Result<Vec<u8>> {
    let (client, destination) = pair(&client, &destination)?;
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let (from, to) = (client.ip(), destination.ip());
    Ok(format!("PROXY {family} {from} {to} {} {}\r\n", client.port(), destination.port()).into_bytes())
}

/// v1 without addresses.
pub fn v1_unknown() -> Vec<u8> {
    b"PROXY UNKNOWN\r\n".to_vec()
}

/// A v2 header for a proxied TCP connection (PROXY 2.2).
pub fn v2(client: impl Display, destination: impl Display) -> anyhow::Result<Vec<u8>> {
    v2_with_tlvs(client, destination, &[])
}

/// The same, with TLVs by type and value.
pub fn v2_with_tlvs(
    client: impl Display,
    destination: impl Display,
    tlvs: &[(u8, &[u8])],
) -> anyhow::Result<Vec<u8>> {
    let (client, destination) = pair(&client, &destination)?;
    let mut payload = Vec::new();
    for address in [client, destination] {
        match address.ip() {
            IpAddr::V4(ip) => payload.extend(ip.octets()),
            IpAddr::V6(ip) => payload.extend(ip.octets()),
        }
    }
    payload.extend(client.port().to_be_bytes());
    payload.extend(destination.port().to_be_bytes());
    for (kind, value) in tlvs {
        payload.push(*kind);
        payload.extend(u16::try_from(value.len()).context("a TLV's value")?.to_be_bytes());
        payload.extend(*value);
    }
    v2_raw(0x21, if client.is_ipv4() { 0x11 } else { 0x21 }, &payload)
}

/// The same, with a checksum at the end (PROXY 2.2.3, PP2_TYPE_CRC32C).
pub fn v2_with_checksum(
    client: impl Display,
    destination: impl Display,
    tlvs: &[(u8, &[u8])],
) -> anyhow::Result<Vec<u8>> {
    const CRC32C: u8 = 3;
    let mut header = v2_with_tlvs(client, destination, &[tlvs, &[(CRC32C, &[0; 4])]].concat())?;
    let checksum = crc32c(&header).to_be_bytes();
    let place = header.len() - checksum.len();
    header[place..].copy_from_slice(&checksum);
    Ok(header)
}

/// RFC 4960, appendix B, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78; // reflected
    let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
    let byte = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    !bytes.iter().fold(u32::MAX, byte)
}

/// The header of a sender's own connection: LOCAL, without addresses.
pub fn v2_local() -> Vec<u8> {
    [SIGNATURE.as_slice(), &[0x20, 0, 0, 0]].concat()
}

/// A v2 header from its parts, valid or not: version and command, family and protocol, the rest.
pub fn v2_raw(command: u8, family: u8, payload: &[u8]) -> anyhow::Result<Vec<u8>> {
    let len = u16::try_from(payload.len()).context("a v2 payload")?.to_be_bytes();
    Ok([SIGNATURE.as_slice(), &[command, family], &len, payload].concat())
}

fn pair(client: &impl Display, destination: &impl Display) -> anyhow::Result<(SocketAddr, SocketAddr)> {
    let pair = (address(client)?, address(destination)?);
    anyhow::ensure!(pair.0.is_ipv4() == pair.1.is_ipv4(), "a header's addresses are of one family");
    Ok(pair)
}

fn address(text: &impl Display) -> anyhow::Result<SocketAddr> {
    text.to_string().parse().with_context(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_match_the_specifications_examples() {
        let header = v1("203.0.113.7:5000", "192.0.2.1:443").expect("v1");
        assert_eq!(header, b"PROXY TCP4 203.0.113.7 192.0.2.1 5000 443\r\n");
        let header = v2_with_tlvs("1.2.3.4:258", "5.6.7.8:80", &[(4, b"x")]).expect("v2");
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(header[12..], [0x21, 0x11, 0, 16, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 0, 80, 4, 0, 1, b'x']);
    }
}
