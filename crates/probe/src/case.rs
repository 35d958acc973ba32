//! What is sent to a receiver, and what the specification wants of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use truepeer_proto::vectors::{self, Expect, Letter, Level, Rule, Vector};
use truepeer_proto::{Addresses, Command, Transport, V2_FIXED_LEN, V2_SIGNATURE, V2Encoder, encode_v1};

use crate::ProbeError;
use crate::verdict::Want;

/// One header, and the result that it should have.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) rule: &'static Rule,
    pub(crate) level: Level,
    pub(crate) want: Want,
    pub(crate) header: Vec<u8>,
    /// Whom the receiver should believe in.
    pub(crate) client: Client,
}

/// Whose connection the application should see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// The header's.
    Named(IpAddr),
    /// The connection's own; never the one that the ignored part of the header names.
    Own,
    /// Not judged.
    Any,
}

impl Client {
    /// The address that the application should see.
    pub(crate) fn right(self, own: IpAddr) -> Option<IpAddr> {
        match self {
            Self::Named(ip) => Some(ip),
            Self::Own => Some(own),
            Self::Any => None,
        }
    }
}

/// The client of the headers that aren't vectors.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 77));
const CLIENT6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77));
const DESTINATION: &str = "198.51.100.2:443";
const DESTINATION6: &str = "[2001:db8::2]:443";

/// PROXY 2: "designed to fit in the smallest TCP segment […] (576 - 40 = 536 bytes)".
pub(crate) const SEGMENT: usize = 536;

/// How binding it is to take a header of this length with extensions. The text names no length, and leaves it
/// to the receiver to skip or to interpret them.
pub(crate) fn extended(length: usize) -> Level {
    if length <= SEGMENT { Level::Should } else { Level::May }
}

/// A plain header of the kind that each receiver of its version has to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    V1,
    V2,
}

impl Plain {
    pub(crate) fn header(self) -> Result<Vec<u8>, ProbeError> {
        match self {
            Self::V1 => line(fresh(CLIENT), DESTINATION),
            Self::V2 => binary(Command::Proxy, Transport::Stream, fresh(CLIENT), DESTINATION, 0),
        }
    }

    /// Plain ones for IPv6.
    pub(crate) fn header6(self) -> Result<Vec<u8>, ProbeError> {
        match self {
            Self::V1 => line(fresh(CLIENT6), DESTINATION6),
            Self::V2 => binary(Command::Proxy, Transport::Stream, fresh(CLIENT6), DESTINATION6, 0),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1 => "version 1",
            Self::V2 => "version 2",
        }
    }

    /// Whether a header is of this version, or would be if it were valid.
    pub(crate) fn speaks(self, header: &[u8]) -> bool {
        (self == Self::V2) == header.starts_with(b"\r\n")
    }
}

/// The client of plain headers.
pub(crate) const fn client() -> IpAddr {
    CLIENT
}

/// This client with a port that none had before: a relay that dials as the client can't use one twice at
/// once. Each has five digits, so that headers have one length.
fn fresh(ip: IpAddr) -> SocketAddr {
    static USED: AtomicU32 = AtomicU32::new(0);
    let count = USED.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(500));
    SocketAddr::new(ip, 20_000 + u16::try_from(count % 40_000).unwrap_or_default())
}

/// Parses one of the addresses above.
fn addr(text: &str) -> Result<SocketAddr, ProbeError> {
    text.parse().map_err(|_| ProbeError::Io(std::io::ErrorKind::InvalidInput.into()))
}

fn encoding(error: truepeer_proto::EncodeError) -> ProbeError {
    ProbeError::Io(std::io::Error::other(error))
}

fn line(source: SocketAddr, destination: &str) -> Result<Vec<u8>, ProbeError> {
    let destination = addr(destination)?;
    let mut buffer = [0; truepeer_proto::V1_MAX_LEN];
    let addresses = Addresses::Inet { transport: Transport::Stream, source, destination };
    let length = encode_v1(&addresses, &mut buffer).map_err(encoding)?;
    Ok(buffer[..length].to_vec())
}

/// `padding`: bytes of a NOOP, its own three included.
fn binary(
    command: Command,
    transport: Transport,
    source: SocketAddr,
    destination: &str,
    padding: usize,
) -> Result<Vec<u8>, ProbeError> {
    let destination = addr(destination)?;
    let mut buffer = vec![0; 64 + padding];
    let addresses = Addresses::Inet { transport, source, destination };
    let mut encoder = V2Encoder::new(&mut buffer, command, &addresses).map_err(encoding)?;
    if padding >= 3 {
        encoder = encoder.tlv(truepeer_proto::tlv::NOOP, &vec![0; padding - 3]).map_err(encoding)?;
    }
    let length = encoder.finish().map_err(encoding)?;
    buffer.truncate(length);
    Ok(buffer)
}

/// The plain header for datagrams.
pub(crate) fn datagram() -> Result<Vec<u8>, ProbeError> {
    binary(Command::Proxy, Transport::Dgram, fresh(CLIENT), DESTINATION, 0)
}

/// A version 2 header of `length` bytes, filled up by a TLV that is to be ignored.
pub(crate) fn long(length: usize) -> Result<Vec<u8>, ProbeError> {
    binary(Command::Proxy, Transport::Stream, fresh(CLIENT), DESTINATION, length - 28)
}

/// Every published vector that a running receiver can be judged by.
pub(crate) fn vectors() -> impl Iterator<Item = Case> {
    vectors::all().filter(|vector| !vector.bytes.is_empty()).map(of_vector)
}

fn of_vector(vector: &'static Vector) -> Case {
    let is_taken = |length: usize, client| (Want::Taken, vector.bytes[..length].to_vec(), client);
    let (want, header, client) = match vector.expect {
        Expect::NeedMore(_) => (Want::Nothing, vector.bytes.to_vec(), Client::Any),
        Expect::Refused(..) => (Want::Refused, completed(vector.bytes), Client::Any),
        Expect::Local(length) | Expect::Unspecified(length) => is_taken(length, Client::Own),
        Expect::Unix(_, length) => is_taken(length, Client::Any),
        Expect::Inet(Transport::Dgram, _, _, length) => is_taken(length, Client::Any),
        Expect::Inet(Transport::Stream, source, _, length) => {
            is_taken(length, Client::Named(source.ip().to_canonical()))
        }
    };
    let want = match (vector.letter, want) {
        (Some(Letter::Refused), _) => Want::Refused,
        (Some(Letter::Either), _) => Want::Any,
        (None, want) => want,
    };
    // The specification says nothing of a receiver that takes nobody for such a client.
    let is_odd = matches!(vector.expect, Expect::Inet(_, source, ..) if !can_be_client(source));
    let level = match want {
        Want::Taken if is_odd => Level::May,
        Want::Taken if vector.rule.id == "tlv-skip" => extended(header.len()),
        _ => vector.rule.level,
    };
    Case { name: vector.name.to_owned(), rule: vector.rule, level, want, header, client }
}

/// Whether a server could have such a client.
fn can_be_client(source: SocketAddr) -> bool {
    let broadcast = Ipv6Addr::from([0xff; 16]);
    let ip = source.ip();
    let is_odd = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip == IpAddr::V6(broadcast);
    let is_mapped = ip != ip.to_canonical();
    let is_v4_odd = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !is_odd && !is_mapped && !is_v4_odd && source.port() != 0
}

/// A wrong header as long as it claims to be, and without data: the request follows, and a receiver that
/// overlooks the error reads it.
fn completed(bytes: &[u8]) -> Vec<u8> {
    const REST: [u8; 16] = *b"\x21\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb";
    if bytes.starts_with(&V2_SIGNATURE) {
        let mut whole = bytes.to_vec();
        if let Some(rest) = REST.get(whole.len() - V2_SIGNATURE.len()..) {
            // Of the fixed bytes, the missing; of the addresses, as many as there is room for.
            whole.extend_from_slice(rest);
        }
        let length = V2_FIXED_LEN + usize::from(u16::from_be_bytes([whole[14], whole[15]]));
        whole.resize(length, 0);
        return whole;
    }
    if !bytes.starts_with(b"PROXY") {
        return bytes.to_vec();
    }
    let ends = |at: usize| {
        bytes[at] == b'\n' || bytes[at] == b'\r' && !matches!(bytes.get(at + 1), Some(b'\r' | b'\n'))
    };
    match (0..bytes.len()).find(|at| ends(*at)) {
        Some(end) => bytes[..=end].to_vec(),
        None => [bytes, b"\r\n"].concat(),
    }
}

#[cfg(test)]
mod tests {
    use truepeer_proto::{Decoded, Limits, decode};

    use super::{Plain, completed, long, vectors};
    use crate::verdict::Want;

    #[test]
    fn a_wrong_header_is_sent_whole_and_without_data() {
        let signature = b"\r\n\r\n\0\r\nQUIT\n";
        let with = |rest: &[u8]| [signature.as_slice(), rest].concat();
        assert_eq!(
            completed(b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\nGET /\r\n"),
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n"
        );
        assert_eq!(
            completed(b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\rGET /\r\n"),
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r"
        );
        assert_eq!(
            completed(b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\r\n"),
            b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\r\n"
        );
        assert_eq!(completed(b"PROXY TCP4 1.1.\x00"), b"PROXY TCP4 1.1.\x00\r\n");
        let addresses = b"\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb";
        assert_eq!(
            completed(&with(b"\x22\x11\x00\x0c")),
            with(&[b"\x22\x11\x00\x0c".as_slice(), addresses].concat())
        );
        assert_eq!(completed(&with(b"\x2f")), with(&[b"\x2f\x11\x00\x0c".as_slice(), addresses].concat()));
        assert_eq!(completed(&with(b"\x21\x11\x00\x0b")).len(), 27);
        assert_eq!(completed(&with(b"\x20\x00\xff\xff")).len(), 16 + 65535);
    }

    #[test]
    fn each_vector_that_is_wanted_is_a_header_to_its_last_byte() {
        let mut wanted = 0;
        for case in vectors().filter(|case| case.want == Want::Taken) {
            wanted += 1;
            match decode(&case.header, Limits::default()) {
                Ok(Decoded::Done { consumed, .. }) => {
                    assert_eq!(consumed, case.header.len(), "{}", case.name)
                }
                other => panic!("{}: {other:?}", case.name),
            }
        }
        assert!(wanted > 40, "{wanted}");
        for case in vectors().filter(|case| case.want == Want::Refused && case.rule.id != "v1-family") {
            // A CR alone may still be followed by LF, until the request is.
            let decoded = decode(&case.header, Limits::default());
            assert!(!matches!(decoded, Ok(Decoded::Done { .. })), "{}", case.name);
        }
    }

    #[test]
    fn plain_headers_are_valid_and_long_ones_are_as_long_as_asked_for() {
        for plain in [Plain::V1, Plain::V2] {
            for header in [plain.header(), plain.header6()] {
                let header = header.expect("encoded");
                assert!(plain.speaks(&header));
                assert!(matches!(decode(&header, Limits::default()), Ok(Decoded::Done { .. })));
            }
        }
        assert_eq!(long(536).expect("encoded").len(), 536);
    }
}
