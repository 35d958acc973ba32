//! Where in a stream of datagrams the header is: four ways in use, told apart by configuration, never by looking.
//!
//! A receiver that guessed would let any client forge a header: in `first` and `standalone` a client's own datagram
//! may well begin like one.
//!
//! | dialect | header | who sends so |
//! |---|---|---|
//! | `every` | v2, in each datagram (PROXY 2.2 as of 2026/04) | dnsdist, udppp, frp 0.64 to 0.66, truepeer |
//! | `first` | v2, in the first datagram of a flow | frp ≥ 0.67, NGINX ≥ 1.31.4, Sōzu |
//! | `standalone` | v2, alone or with payload, before bare datagrams | Cloudflare Spectrum |
//! | `spp` | Simple Proxy Protocol, 38 bytes, in each datagram; the answers carry it back | Cloudflare Spectrum, EdgeOne |

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use truepeer_policy::HeaderRule;
use truepeer_proto::{
    Addresses, Command, DecodeError, DecodeErrorKind, Header, Limits, Tlvs, Transport, V2_SIGNATURE, Version,
    Versions, decode_datagram, spp,
};

/// Where the header is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// In each datagram.
    #[default]
    Every,
    /// In the first datagram of a flow.
    First,
    /// Before the first datagram of a flow, or in it.
    Standalone,
    /// In each datagram, as Simple Proxy Protocol.
    Spp,
}

/// Text that names no dialect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a UDP dialect: expected every, first, standalone or spp")]
pub struct ParseDialectError(String);

impl FromStr for Dialect {
    type Err = ParseDialectError;

    fn from_str(text: &str) -> Result<Self, ParseDialectError> {
        let found = [Self::Every, Self::First, Self::Standalone, Self::Spp].into_iter();
        found
            .into_iter()
            .find(|dialect| dialect.as_str() == text)
            .ok_or_else(|| ParseDialectError(text.to_owned()))
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Dialect {
    /// As the command line spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::First => "first",
            Self::Standalone => "standalone",
            Self::Spp => "spp",
        }
    }

    /// Whether a flow is known by the sender's address once its header has come.
    #[must_use]
    pub const fn has_bare_datagrams(self) -> bool {
        matches!(self, Self::First | Self::Standalone)
    }

    /// How long a flow may be silent where the user does not say. The life of a flow with bare datagrams must end before
    /// the sender's does, or a port that the sender uses again would be taken for the old client: Spectrum forgets after
    /// 30 s, frp 30 s after the backend's last answer (or its first datagram), whatever the client sends meanwhile.
    #[must_use]
    pub const fn default_silence(self) -> Duration {
        Duration::from_secs(if self.has_bare_datagrams() { 28 } else { 60 })
    }

    /// The same when we are the sender: our flow must end before the receiver's, or the receiver would refuse what goes on
    /// without a header. Its port is not used again before the receiver has forgotten it, too.
    #[must_use]
    pub const fn default_silence_sending(self) -> Duration {
        Duration::from_secs(if self.has_bare_datagrams() { 20 } else { 60 })
    }
}

/// A datagram, opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened<'a> {
    /// It names its client.
    Headed {
        /// The header as it came: in `spp`, replies carry it back.
        raw: &'a [u8],
        header: Header<'a>,
        payload: &'a [u8],
    },
    /// It belongs to whom its sender's earlier header named, or needs none.
    Bare(&'a [u8]),
}

/// A datagram that can't be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// Its header is none, or a wrong one.
    Invalid(DecodeError),
    /// It is bare, and no header came before it.
    NoHeaderBefore,
}

impl Dialect {
    /// Opens one datagram; `is_known` tells whether its sender has named a client before.
    pub(crate) fn open(
        self,
        datagram: &[u8],
        rule: HeaderRule,
        limits: Limits,
        is_known: bool,
    ) -> Result<Opened<'_>, Unopened> {
        if rule == HeaderRule::Forbid || (self.has_bare_datagrams() && is_known) {
            return Ok(Opened::Bare(datagram));
        }
        match (self.decode(datagram, limits), rule) {
            (Ok(opened), _) => Ok(opened),
            (Err(error), HeaderRule::Optional) if self.is_no_header(&error, datagram) => {
                Ok(Opened::Bare(datagram))
            }
            (Err(error), _) if self.has_bare_datagrams() && self.is_no_header(&error, datagram) => {
                Err(Unopened::NoHeaderBefore)
            }
            (Err(error), _) => Err(Unopened::Invalid(error)),
        }
    }

    fn decode(self, datagram: &[u8], limits: Limits) -> Result<Opened<'_>, DecodeError> {
        let (header, length) = match self {
            Self::Spp => (header_of(&spp::decode(datagram)?), spp::LEN),
            // PROXY 2.1: v1 is for TCP.
            _ => decode_datagram(datagram, Limits { versions: Versions::V2, ..limits })?,
        };
        let (raw, payload) = datagram.split_at(length);
        Ok(Opened::Headed { raw, header, payload })
    }

    /// Whether the datagram does not even begin as a header of this dialect does.
    fn is_no_header(self, error: &DecodeError, datagram: &[u8]) -> bool {
        let signature_bytes = if self == Self::Spp { spp::MAGIC.len() } else { V2_SIGNATURE.len() };
        match error.kind {
            DecodeErrorKind::NotProxy | DecodeErrorKind::SppMagic => true,
            DecodeErrorKind::Truncated => datagram.len() < signature_bytes,
            _ => false,
        }
    }
}

/// SPP names client and destination as a v2 header for UDP would.
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
    }
}
