//! Version 1: one line of text (PROXY 2.1).
//!
//! ```text
//! PROXY TCP4 192.0.2.1 192.0.2.2 56324 443 CRLF
//! 0     6    11
//! ```
//! "The receiver must wait for the CRLF sequence before starting to decode the addresses": until then only
//! what no valid line can contain is refused.

use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;

use crate::V1_MAX_LEN;
use crate::error::{DecodeError, DecodeErrorKind as Kind};
use crate::header::{Addresses, Command, Decoded, Header, Transport, Version};
use crate::tlv::Tlvs;

/// `PROXY UNKNOWN CRLF`, the shortest of all lines.
pub(crate) const SHORTEST: usize = 15;
/// Where the protocol's name starts.
const NAME: usize = 6;

/// The kind of addresses that the line announces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp4,
    Tcp6,
    Unknown,
}

impl Protocol {
    const ALL: [Self; 3] = [Self::Tcp4, Self::Tcp6, Self::Unknown];

    const fn name(self) -> &'static [u8] {
        match self {
            Self::Tcp4 => b"TCP4",
            Self::Tcp6 => b"TCP6",
            Self::Unknown => b"UNKNOWN",
        }
    }

    /// Shortest line: `::` and `0.0.0.0`, `::` twice, nothing.
    const fn shortest(self) -> usize {
        match self {
            Self::Tcp4 => 27,
            Self::Tcp6 => 22,
            Self::Unknown => SHORTEST,
        }
    }

    /// Whether a byte can stand between the name and the CR.
    const fn allows(self, byte: u8) -> bool {
        match self {
            // The other address may be of the other family: see [`parse_fields`].
            Self::Tcp4 | Self::Tcp6 => byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.' | b' '),
            Self::Unknown => true,
        }
    }

    /// Whether an address is of the announced family.
    const fn names(self, address: IpAddr) -> bool {
        match self {
            Self::Tcp4 => address.is_ipv4(),
            Self::Tcp6 => address.is_ipv6(),
            Self::Unknown => false,
        }
    }
}

/// Decodes a line of which the caller has checked as much of `PROXY` as there is.
pub(crate) fn decode(bytes: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    if bytes.get(NAME - 1).is_some_and(|&byte| byte != b' ') {
        return refuse(Kind::V1Space, NAME - 1);
    }
    let Some(protocol) = protocol(bytes.get(NAME..).unwrap_or_default())? else {
        // The only name that a `T` can start belongs to longer lines, but both of them may still come.
        let shortest = if bytes.get(NAME) == Some(&b'T') { Protocol::Tcp6.shortest() } else { SHORTEST };
        return Ok(Decoded::NeedMore { missing: shortest - bytes.len() });
    };
    let body = NAME + protocol.name().len();
    let Some(end) = line_end(bytes, body, protocol)? else {
        return Ok(Decoded::NeedMore { missing: missing(bytes, protocol) });
    };
    let addresses = match protocol {
        // PROXY 2.1: "the receiver must ignore anything presented before the CRLF is found"
        Protocol::Unknown => Addresses::Unspecified,
        Protocol::Tcp4 | Protocol::Tcp6 => parse_fields(&bytes[..end], body, protocol)?,
    };
    let (command, tlvs, consumed) = (Command::Proxy, Tlvs::EMPTY, end + 2);
    let header = Header { version: Version::V1, command, addresses, tlvs, bytes: &bytes[..consumed] };
    Ok(Decoded::Done { header, consumed })
}

fn refuse<T>(kind: Kind, offset: usize) -> Result<T, DecodeError> {
    Err(DecodeError::new(kind, offset))
}

/// The protocol that `rest` starts with, or `None` while its name is incomplete.
fn protocol(rest: &[u8]) -> Result<Option<Protocol>, DecodeError> {
    let mut furthest = 0;
    for protocol in Protocol::ALL {
        let name = protocol.name();
        let same = rest.iter().zip(name).take_while(|(byte, expected)| byte == expected).count();
        if same == name.len() {
            return Ok(Some(protocol));
        }
        if same == rest.len() {
            return Ok(None);
        }
        furthest = furthest.max(same);
    }
    refuse(Kind::V1Protocol, NAME + furthest)
}

/// Where the CRLF stands, or `None` while it can still come.
fn line_end(bytes: &[u8], body: usize, protocol: Protocol) -> Result<Option<usize>, DecodeError> {
    match (bytes.get(body), protocol) {
        (None, _) => return Ok(None),
        (Some(b' '), _) | (Some(b'\r'), Protocol::Unknown) => {}
        (Some(b'\n'), Protocol::Unknown) => return refuse(Kind::V1LineEnd, body),
        (Some(_), _) => return refuse(Kind::V1Space, body),
    }
    let window = &bytes[..bytes.len().min(V1_MAX_LEN)];
    let end = match protocol {
        Protocol::Unknown => unknown_end(window, body)?,
        Protocol::Tcp4 | Protocol::Tcp6 => tcp_end(window, body, protocol)?,
    };
    match end.is_none().then(|| overdue(bytes)).flatten() {
        // PROXY 2.1: "If the CRLF sequence is not found in the first 107 characters, the receiver should
        // declare the line invalid"
        Some(offset) => refuse(Kind::V1TooLong, offset),
        None => Ok(end),
    }
}

/// The first byte that keeps the CRLF from being where it must be at the latest.
fn overdue(bytes: &[u8]) -> Option<usize> {
    let last_cr = V1_MAX_LEN - 2;
    match (bytes.get(last_cr)?, bytes.get(last_cr + 1)) {
        (b'\r', None) => None,
        (b'\r', Some(_)) => Some(last_cr + 1),
        _ => Some(last_cr),
    }
}

/// The first CRLF; right after the name nothing but the CRLF or a space may stand.
fn unknown_end(window: &[u8], body: usize) -> Result<Option<usize>, DecodeError> {
    if window[body] == b'\r' && window.get(body + 1).is_some_and(|&byte| byte != b'\n') {
        return refuse(Kind::V1LineEnd, body + 1);
    }
    Ok(window[body..].windows(2).position(|pair| pair == b"\r\n").map(|at| body + at))
}

/// The first byte that belongs to no field must be the CR, and the next one the LF.
fn tcp_end(window: &[u8], body: usize, protocol: Protocol) -> Result<Option<usize>, DecodeError> {
    // A line that is too long is refused for that, whatever comes after.
    let fields = &window[body..window.len().min(V1_MAX_LEN - 1)];
    let Some(end) = fields.iter().position(|&byte| !protocol.allows(byte)).map(|at| body + at) else {
        return Ok(None);
    };
    match (window[end], window.get(end + 1)) {
        (b'\r', None) => Ok(None),
        (b'\r', Some(b'\n')) => Ok(Some(end)),
        // PROXY 2.1: "The receiver must not tolerate a single CR or LF character to end the line"
        (b'\r', Some(_)) => refuse(Kind::V1LineEnd, end + 1),
        (b'\n', _) => refuse(Kind::V1LineEnd, end),
        _ => refuse(field_error(&window[body..end]), end),
    }
}

/// Which field a foreign byte after `before` spoils.
fn field_error(before: &[u8]) -> Kind {
    match before.iter().filter(|&&byte| byte == b' ').count() {
        0..=2 => Kind::V1Address,
        3 | 4 => Kind::V1Port,
        _ => Kind::V1Space,
    }
}

/// How many bytes the line end itself still needs.
fn missing_line_end(bytes: &[u8]) -> usize {
    if bytes.last() == Some(&b'\r') { 1 } else { 2 }
}

fn missing(bytes: &[u8], protocol: Protocol) -> usize {
    protocol.shortest().saturating_sub(bytes.len()).max(missing_line_end(bytes))
}

/// The two addresses and two ports between `body` and the end of `line`.
///
/// "The advertised protocol family dictates what format to use" (PROXY 2.1), but NGINX announces the client's
/// family and writes its own address as it is: `TCP6 2001:db8::7 192.0.2.1` for an IPv6 client that an IPv4
/// sender named. So each address is read as what it is, which can't be mistaken, and the name must be that of
/// one of them.
fn parse_fields(line: &[u8], body: usize, protocol: Protocol) -> Result<Addresses<'_>, DecodeError> {
    let mut fields = Fields { line, at: body };
    let source = parse_address(fields.next_field()?)?;
    let destination = parse_address(fields.next_field()?)?;
    if !protocol.names(source) && !protocol.names(destination) {
        return refuse(Kind::V1Address, body + 1);
    }
    let source_port = parse_port(fields.next_field()?)?;
    let destination_port = parse_port(fields.next_field()?)?;
    if fields.at != line.len() {
        return refuse(Kind::V1Space, fields.at);
    }
    Ok(Addresses::Inet {
        transport: Transport::Stream,
        source: SocketAddr::new(source, source_port),
        destination: SocketAddr::new(destination, destination_port),
    })
}

/// Walks a line of which each field is preceded by one space.
struct Fields<'a> {
    line: &'a [u8],
    at: usize,
}

/// One field and where it starts.
struct Field<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Fields<'a> {
    /// PROXY 2.1: "exactly one space" before each.
    fn next_field(&mut self) -> Result<Field<'a>, DecodeError> {
        if self.line.get(self.at) != Some(&b' ') {
            return refuse(Kind::V1Space, self.at);
        }
        let offset = self.at + 1;
        let rest = &self.line[offset..];
        let len = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        if len == 0 {
            return refuse(Kind::V1Space, offset);
        }
        self.at = offset + len;
        Ok(Field { bytes: &rest[..len], offset })
    }
}

/// The standard library's parser is as strict as PROXY 2.1: no leading zeros in IPv4, no zones. For IPv6 it
/// also takes the mixed notation (`::ffff:192.0.2.1`), which the text does not name, but which `inet_ntop`
/// writes for mapped addresses and so do senders on dual-stack sockets.
fn parse_address(field: Field<'_>) -> Result<IpAddr, DecodeError> {
    let text = core::str::from_utf8(field.bytes).unwrap_or_default();
    IpAddr::from_str(text).or_else(|_| refuse(Kind::V1Address, field.offset))
}

/// PROXY 2.1: "a decimal integer in the range [0..65535] inclusive. Heading zeroes are not permitted".
///
/// No sign can be here ([`Protocol::allows`]), so that what parses is digits.
fn parse_port(field: Field<'_>) -> Result<u16, DecodeError> {
    let leading_zero = field.bytes.len() > 1 && field.bytes[0] == b'0';
    let port = core::str::from_utf8(field.bytes).ok().and_then(|text| text.parse().ok());
    match port {
        Some(port) if !leading_zero => Ok(port),
        _ => refuse(Kind::V1Port, field.offset),
    }
}
