//! Version 2: the binary header (PROXY 2.2).
//!
//! ```text
//! 0            12        13         14      16
//! | signature  | ver cmd | fam prot | length | addresses | TLVs |
//!                                            |<---- length ---->|
//! ```

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::checksum;
use crate::error::{DecodeError, DecodeErrorKind as Kind};
use crate::header::{Addresses, Command, Decoded, Header, Transport, V2_FIXED_LEN, Version};
use crate::tlv::{self, Tlvs};

const VERSION_AND_COMMAND: usize = 12;
const FAMILY_AND_TRANSPORT: usize = 13;
const LENGTH: usize = 14;

/// Bytes of one AF_UNIX path.
const PATH_LEN: usize = 108;

/// The address families whose block has a known size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Inet,
    Inet6,
    Unix,
}

impl Family {
    /// Bytes of the address block: both addresses, and both ports where there are any.
    pub(crate) const fn block_len(self) -> usize {
        match self {
            Self::Inet => 12,
            Self::Inet6 => 36,
            Self::Unix => 2 * PATH_LEN,
        }
    }
}

/// The 14th byte: what the address block holds, if that is known.
type Shape = Option<(Family, Transport)>;

/// Decodes a header of which the caller has checked as much of the signature as there is.
pub(crate) fn decode(bytes: &[u8], max_len: usize) -> Result<Decoded<'_>, DecodeError> {
    let Some(command) = command(bytes)? else { return need(bytes, V2_FIXED_LEN) };
    let Some(shape) = shape(bytes, command)? else { return need(bytes, V2_FIXED_LEN) };
    let Some(len) = declared_len(bytes, max_len)? else { return need(bytes, V2_FIXED_LEN) };
    let block_len = block_len(shape, command, len)?;
    let Some(whole) = bytes.get(..len) else { return need(bytes, len) };

    let (block, extensions) = whole[V2_FIXED_LEN..].split_at(block_len);
    let addresses = match command {
        // PROXY 2.2: LOCAL: "must use the real connection endpoints and discard the protocol block"
        Command::Local => Addresses::Unspecified,
        Command::Proxy => addresses(shape, block),
    };
    let tlvs = match (command, shape) {
        (Command::Proxy, Some(_)) => strict_tlvs(whole, extensions)?,
        _ => lenient_tlvs(whole, extensions)?,
    };
    let header = Header { version: Version::V2, command, addresses, tlvs, bytes: whole };
    Ok(Decoded::Done { header, consumed: len })
}

fn need(bytes: &[u8], len: usize) -> Result<Decoded<'_>, DecodeError> {
    Ok(Decoded::NeedMore { missing: len - bytes.len() })
}

fn refuse<T>(kind: Kind, offset: usize) -> Result<T, DecodeError> {
    Err(DecodeError::new(kind, offset))
}

fn command(bytes: &[u8]) -> Result<Option<Command>, DecodeError> {
    let Some(&byte) = bytes.get(VERSION_AND_COMMAND) else { return Ok(None) };
    match (byte >> 4, byte & 0x0f) {
        (2, 0) => Ok(Some(Command::Local)),
        (2, 1) => Ok(Some(Command::Proxy)),
        // PROXY 2.2: "Receivers must drop connections presenting unexpected values here"
        (2, _) => refuse(Kind::V2Command, VERSION_AND_COMMAND),
        // PROXY 2.2: "the receiver must only accept this value"
        _ => refuse(Kind::V2Version, VERSION_AND_COMMAND),
    }
}

fn shape(bytes: &[u8], command: Command) -> Result<Option<Shape>, DecodeError> {
    let Some(&byte) = bytes.get(FAMILY_AND_TRANSPORT) else { return Ok(None) };
    let family = match byte >> 4 {
        0 => None,
        1 => Some(Family::Inet),
        2 => Some(Family::Inet6),
        3 => Some(Family::Unix),
        // PROXY 2.2: LOCAL: "including the family which is ignored"
        _ if command == Command::Local => None,
        // PROXY 2.2: "must be rejected as invalid by receivers"
        _ => return refuse(Kind::V2Family, FAMILY_AND_TRANSPORT),
    };
    let transport = match byte & 0x0f {
        0 => None,
        1 => Some(Transport::Stream),
        2 => Some(Transport::Dgram),
        _ if command == Command::Local => None,
        _ => return refuse(Kind::V2Transport, FAMILY_AND_TRANSPORT),
    };
    Ok(Some(family.zip(transport)))
}

/// Length of the whole header: "always exactly 16 + this value" (PROXY 2.2).
fn declared_len(bytes: &[u8], max_len: usize) -> Result<Option<usize>, DecodeError> {
    let Some(&[high, low]) = bytes.get(LENGTH..V2_FIXED_LEN) else { return Ok(None) };
    let len = V2_FIXED_LEN + usize::from(u16::from_be_bytes([high, low]));
    if len > max_len {
        return refuse(Kind::V2TooLong, LENGTH);
    }
    Ok(Some(len))
}

/// How much of the `len` bytes is addresses.
fn block_len(shape: Shape, command: Command, len: usize) -> Result<usize, DecodeError> {
    let wanted = shape.map_or(0, |(family, _)| family.block_len());
    match command {
        _ if V2_FIXED_LEN + wanted <= len => Ok(wanted),
        // PROXY 2.2: "must not assume zero is presented for LOCAL connections", nor that addresses are there
        Command::Local => Ok(len - V2_FIXED_LEN),
        Command::Proxy => refuse(Kind::V2AddressTooShort, LENGTH),
    }
}

/// Reads a block whose length fits its family.
fn addresses(shape: Shape, block: &[u8]) -> Addresses<'_> {
    // PROXY 2.2: UNSPEC family or protocol: "The receiver should ignore address information"
    let Some((family, transport)) = shape else { return Addresses::Unspecified };
    let read = match family {
        Family::Inet => inet(transport, block),
        Family::Inet6 => inet6(transport, block),
        Family::Unix => unix(transport, block),
    };
    read.unwrap_or(Addresses::Unspecified)
}

fn inet(transport: Transport, block: &[u8]) -> Option<Addresses<'_>> {
    let (source, rest) = block.split_first_chunk::<4>()?;
    let (destination, ports) = rest.split_first_chunk::<4>()?;
    let (source_port, destination_port) = ports_of(ports)?;
    Some(Addresses::Inet {
        transport,
        source: SocketAddr::new(Ipv4Addr::from(*source).into(), source_port),
        destination: SocketAddr::new(Ipv4Addr::from(*destination).into(), destination_port),
    })
}

fn inet6(transport: Transport, block: &[u8]) -> Option<Addresses<'_>> {
    let (source, rest) = block.split_first_chunk::<16>()?;
    let (destination, ports) = rest.split_first_chunk::<16>()?;
    let (source_port, destination_port) = ports_of(ports)?;
    Some(Addresses::Inet {
        transport,
        source: SocketAddr::new(Ipv6Addr::from(*source).into(), source_port),
        destination: SocketAddr::new(Ipv6Addr::from(*destination).into(), destination_port),
    })
}

fn unix(transport: Transport, block: &[u8]) -> Option<Addresses<'_>> {
    let (source, rest) = block.split_first_chunk::<PATH_LEN>()?;
    let (destination, _) = rest.split_first_chunk::<PATH_LEN>()?;
    Some(Addresses::Unix { transport, source, destination })
}

fn ports_of(bytes: &[u8]) -> Option<(u16, u16)> {
    let (source, rest) = bytes.split_first_chunk::<2>()?;
    let (destination, _) = rest.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*source), u16::from_be_bytes(*destination)))
}

/// Extensions after an address block of known size.
fn strict_tlvs<'a>(whole: &[u8], extensions: &'a [u8]) -> Result<Tlvs<'a>, DecodeError> {
    let start = whole.len() - extensions.len();
    let valid = tlv::validate(extensions).map_err(|error| error.shifted(start))?;
    checksum::verify(whole, valid.crc32c.map(|at| start + at))?;
    Ok(valid.tlvs)
}

/// Extensions of a header whose block is to be ignored (LOCAL, UNSPEC): such a block may hold anything,
/// so what doesn't read as TLVs to its last byte isn't any. What does is held to its checksum, as the
/// reference implementation does for the LOCAL headers of its health checks.
fn lenient_tlvs<'a>(whole: &[u8], extensions: &'a [u8]) -> Result<Tlvs<'a>, DecodeError> {
    match tlv::validate(extensions) {
        Ok(_) => strict_tlvs(whole, extensions),
        Err(_) => Ok(Tlvs::EMPTY),
    }
}
