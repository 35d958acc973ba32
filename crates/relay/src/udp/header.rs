//! Opens a datagram: its header, if the listener's dialect has one, and its payload.

use truepeer_policy::{Dialect, HeaderRule};
use truepeer_proto::{
    Addresses, Command, DecodeError, DecodeErrorKind, Header, Limits, Tlvs, Transport, V2_SIGNATURE, Version,
    Versions, decode_datagram, spp,
};

/// An opened datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened<'a> {
    /// It names its client.
    Headed {
        /// The header as received: in `spp`, replies carry it back.
        raw: &'a [u8],
        header: Header<'a>,
        payload: &'a [u8],
    },
    /// It belongs to the client that its sender's earlier header named, or needs no header.
    Bare(&'a [u8]),
}

/// Why a datagram can't be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// Its header is missing or invalid.
    Invalid(DecodeError),
    /// It is bare, and no header came before it.
    NoHeaderBefore,
}

/// Opens one datagram. `is_known` returns whether its sender has named a client before.
pub(crate) fn open(
    dialect: Dialect,
    datagram: &[u8],
    rule: HeaderRule,
    limits: Limits,
    is_known: bool,
) -> Result<Opened<'_>, Unopened> {
    if rule == HeaderRule::Forbid || (dialect.has_bare_datagrams() && is_known) {
        return Ok(Opened::Bare(datagram));
    }
    match (decode(dialect, datagram, limits), rule) {
        (Ok(opened), _) => Ok(opened),
        (Err(error), HeaderRule::Optional) if is_no_header(dialect, &error, datagram) => {
            Ok(Opened::Bare(datagram))
        }
        (Err(error), _) if dialect.has_bare_datagrams() && is_no_header(dialect, &error, datagram) => {
            Err(Unopened::NoHeaderBefore)
        }
        (Err(error), _) => Err(Unopened::Invalid(error)),
    }
}

fn decode(dialect: Dialect, datagram: &[u8], limits: Limits) -> Result<Opened<'_>, DecodeError> {
    let (header, length) = match dialect {
        Dialect::Spp => (header_of(&spp::decode(datagram)?), spp::LEN),
        // PROXY 2.1: v1 is for TCP.
        _ => decode_datagram(datagram, Limits { versions: Versions::V2, ..limits })?,
    };
    let (raw, payload) = datagram.split_at(length);
    Ok(Opened::Headed { raw, header, payload })
}

/// Whether the datagram doesn't even start like a header of this dialect.
fn is_no_header(dialect: Dialect, error: &DecodeError, datagram: &[u8]) -> bool {
    let signature_bytes = if dialect == Dialect::Spp { spp::MAGIC.len() } else { V2_SIGNATURE.len() };
    match error.kind {
        DecodeErrorKind::NotProxy | DecodeErrorKind::SppMagic => true,
        DecodeErrorKind::Truncated => datagram.len() < signature_bytes,
        _ => false,
    }
}

/// SPP carries the same addresses as a v2 header for UDP.
fn header_of(header: &spp::Spp) -> Header<'static> {
    Header {
        version: Version::V2,
        command: Command::Proxy,
        addresses: Addresses::Inet {
            transport: Transport::Dgram,
            source: header.client,
            destination: header.proxy,
        },
        tlvs: Tlvs::EMPTY,
        bytes: &[],
    }
}
