//! One extension, understood.

use super::ssl::Ssl;
use super::types;
use crate::text::Text;

/// One extension. A value that has not the form its type demands is given raw, as `Custom` or `Unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tlv<'a> {
    /// 0x01: the application protocol that the client negotiated (PROXY 2.2.1).
    Alpn(&'a [u8]),
    /// 0x02: the host name that the client asked for (PROXY 2.2.2).
    Authority(Text<'a>),
    /// 0x03: the checksum, already verified when it comes from a decoded header (PROXY 2.2.3).
    Crc32c(u32),
    /// 0x04: padding (PROXY 2.2.4).
    Noop(&'a [u8]),
    /// 0x05: the sender's id of the connection, at most 128 bytes (PROXY 2.2.5).
    UniqueId(&'a [u8]),
    /// 0x20: TLS between client and sender (PROXY 2.2.6).
    Ssl(Ssl<'a>),
    /// 0x30: the name of a network namespace (PROXY 2.2.7).
    Netns(Text<'a>),
    /// 0xEA, 01: AWS, the id of the VPC endpoint (`vpce-…`).
    AwsVpcEndpointId(Text<'a>),
    /// 0xE0: Google Cloud, the id of the Private Service Connect connection (u64, big endian).
    GcpPscConnectionId(u64),
    /// 0xEE, 01: Azure, the Private Link's id (u32, little endian).
    AzureLinkId(u32),
    /// 0xE1, 01: Alibaba Cloud, the id of the client's VPC.
    AlibabaVpcId(Text<'a>),
    /// 0xE1, 02: Alibaba Cloud, the PrivateLink endpoint's id.
    AlibabaEndpointId(Text<'a>),
    /// 0xE1, 03: Alibaba Cloud, the endpoint service's id.
    AlibabaServiceId(Text<'a>),
    /// 0xE0..=0xEF: an application's own (PROXY 2.2.8).
    Custom {
        /// Its type.
        kind: u8,
        /// Its value.
        value: &'a [u8],
    },
    /// 0xF0..=0xF7: an experiment (PROXY 2.2.8).
    Experiment {
        /// Its type.
        kind: u8,
        /// Its value.
        value: &'a [u8],
    },
    /// 0xF8..=0xFF: reserved for the future (PROXY 2.2.8).
    Reserved {
        /// Its type.
        kind: u8,
        /// Its value.
        value: &'a [u8],
    },
    /// Not assigned.
    Unknown {
        /// Its type.
        kind: u8,
        /// Its value.
        value: &'a [u8],
    },
}

impl<'a> Tlv<'a> {
    /// Understands one type and value.
    pub(super) fn new(kind: u8, value: &'a [u8]) -> Self {
        let text = Text::new(value);
        match kind {
            types::ALPN => Self::Alpn(value),
            types::AUTHORITY => Self::Authority(text),
            types::CRC32C => crc32c(value).unwrap_or(Self::Unknown { kind, value }),
            types::NOOP => Self::Noop(value),
            types::UNIQUE_ID => Self::UniqueId(value),
            types::SSL => Ssl::new(value).map_or(Self::Unknown { kind, value }, Self::Ssl),
            types::NETNS => Self::Netns(text),
            0xE0..=0xEF => vendor(kind, value).unwrap_or(Self::Custom { kind, value }),
            0xF0..=0xF7 => Self::Experiment { kind, value },
            0xF8..=0xFF => Self::Reserved { kind, value },
            _ => Self::Unknown { kind, value },
        }
    }
}

fn crc32c(value: &[u8]) -> Option<Tlv<'_>> {
    Some(Tlv::Crc32c(u32::from_be_bytes(value.try_into().ok()?)))
}

/// The clouds' own TLVs. The range belongs to anybody (PROXY 2.2.8), so that another form under the same type
/// is no error.
fn vendor(kind: u8, value: &[u8]) -> Option<Tlv<'_>> {
    match (kind, value) {
        (types::AWS, [1, id @ ..]) => Some(Tlv::AwsVpcEndpointId(Text::new(id))),
        (types::GCP, _) => Some(Tlv::GcpPscConnectionId(u64::from_be_bytes(value.try_into().ok()?))),
        (types::AZURE, &[1, a, b, c, d]) => Some(Tlv::AzureLinkId(u32::from_le_bytes([a, b, c, d]))),
        (types::ALIBABA, [1, id @ ..]) => Some(Tlv::AlibabaVpcId(Text::new(id))),
        (types::ALIBABA, [2, id @ ..]) => Some(Tlv::AlibabaEndpointId(Text::new(id))),
        (types::ALIBABA, [3, id @ ..]) => Some(Tlv::AlibabaServiceId(Text::new(id))),
        _ => None,
    }
}
