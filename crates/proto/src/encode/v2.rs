//! Version 2: the binary header (PROXY 2.2).

use core::net::{IpAddr, SocketAddr};

use super::EncodeError;
use crate::header::{Addresses, Command, Transport, V2_FIXED_LEN, V2_SIGNATURE};
use crate::tlv::Tlvs;
use crate::{checksum, tlv};

/// Writes one header: addresses first, then TLVs in the order given, the checksum last.
///
/// ```
/// # use truepeer_proto::{Addresses, Command, Tlvs, V2Encoder};
/// # let (addresses, original) = (Addresses::Unspecified, Tlvs::EMPTY);
/// let mut buffer = [0; 256];
/// let len = V2Encoder::new(&mut buffer, Command::Proxy, &addresses)?
///     .copy_tlvs(original)?
///     .tlv(truepeer_proto::tlv::UNIQUE_ID, b"42")?
///     .with_crc32c()
///     .finish()?;
/// # assert_eq!(len, 16 + 5 + 7);
/// # Ok::<(), truepeer_proto::EncodeError>(())
/// ```
#[derive(Debug)]
pub struct V2Encoder<'b> {
    buffer: &'b mut [u8],
    len: usize,
    crc32c: bool,
}

impl<'b> V2Encoder<'b> {
    /// Starts a header at the start of `buffer`.
    ///
    /// LOCAL is written without addresses, whatever they are: "it should not present any address" (PROXY
    /// 2.2).
    ///
    /// # Errors
    /// [`EncodeError::BufferTooSmall`], [`EncodeError::MixedFamilies`].
    pub fn new(
        buffer: &'b mut [u8],
        command: Command,
        addresses: &Addresses<'_>,
    ) -> Result<Self, EncodeError> {
        let mut encoder = Self { buffer, len: 0, crc32c: false };
        let (command, addresses) = match command {
            Command::Local => (0x20, &Addresses::Unspecified),
            Command::Proxy => (0x21, addresses),
        };
        encoder.put(&V2_SIGNATURE)?;
        encoder.put(&[command, family_and_transport(addresses)?, 0, 0])?;
        encoder.put_addresses(addresses)?;
        Ok(encoder)
    }

    /// Appends one TLV.
    ///
    /// # Errors
    /// [`EncodeError::InvalidTlv`], [`EncodeError::GivenChecksum`], [`EncodeError::BufferTooSmall`],
    /// [`EncodeError::TooLong`].
    pub fn tlv(self, kind: u8, value: &[u8]) -> Result<Self, EncodeError> {
        EncodeError::for_tlv(kind, value)?;
        self.put_tlv(kind, &[value])
    }

    /// Appends an SSL TLV: its flags, the result of verification, and sub-TLVs as type and value.
    ///
    /// # Errors
    /// As [`V2Encoder::tlv`].
    pub fn ssl(mut self, client: u8, verify: u32, sub: &[(u8, &[u8])]) -> Result<Self, EncodeError> {
        let len_at = self.len + 1;
        let verify = verify.to_be_bytes();
        self = self.put_tlv(tlv::SSL, &[&[client], &verify])?;
        for (kind, value) in sub {
            self = self.put_tlv(*kind, &[value])?;
        }
        let len = tlv_len(self.len - len_at - 2)?;
        self.buffer[len_at..len_at + 2].copy_from_slice(&len);
        Ok(self)
    }

    /// Appends the TLVs of a decoded header. Its checksum is not copied, since it belongs to another header:
    /// a new one is made if there was one.
    ///
    /// # Errors
    /// [`EncodeError::BufferTooSmall`], [`EncodeError::TooLong`].
    pub fn copy_tlvs(self, original: Tlvs<'_>) -> Result<Self, EncodeError> {
        self.copy_tlvs_of(original, |_| true)
    }

    /// The same of those types alone for which `is_copied` says so.
    ///
    /// # Errors
    /// As [`V2Encoder::copy_tlvs`].
    pub fn copy_tlvs_of(
        mut self,
        original: Tlvs<'_>,
        is_copied: impl Fn(u8) -> bool,
    ) -> Result<Self, EncodeError> {
        for (kind, value) in original.raw().filter(|(kind, _)| is_copied(*kind)) {
            if kind == tlv::CRC32C {
                self.crc32c = true;
            } else {
                self = self.put_tlv(kind, &[value])?;
            }
        }
        Ok(self)
    }

    /// Asks for a checksum over the whole header (PROXY 2.2.3).
    #[must_use]
    pub fn with_crc32c(mut self) -> Self {
        self.crc32c = true;
        self
    }

    /// Completes the header; returns its length in bytes.
    ///
    /// # Errors
    /// [`EncodeError::BufferTooSmall`], [`EncodeError::TooLong`].
    pub fn finish(mut self) -> Result<usize, EncodeError> {
        let checksum_at = self.len + tlv::TLV_HEADER_LEN;
        if self.crc32c {
            self = self.put_tlv(tlv::CRC32C, &[&[0; checksum::LEN]])?;
        }
        let (crc32c, end) = (self.crc32c, self.len);
        let buffer = self.with_length()?;
        if crc32c {
            let value = checksum::compute(&buffer[..end], checksum_at);
            buffer[checksum_at..end].copy_from_slice(&value.to_be_bytes());
        }
        Ok(end)
    }

    /// Completes the header with a TLV of a time (milliseconds since 1970) and a MAC over every byte before
    /// the MAC, the header's length among them. So nothing can be changed, and nothing comes after it: no
    /// checksum either. Returns the header's length in bytes.
    ///
    /// # Errors
    /// As [`V2Encoder::tlv`].
    pub fn finish_with_digest(
        mut self,
        kind: u8,
        time_ms: u64,
        mac: impl FnOnce(&[u8]) -> [u8; tlv::DIGEST_MAC_LEN],
    ) -> Result<usize, EncodeError> {
        self.crc32c = false;
        let value: &[&[u8]] = &[&time_ms.to_be_bytes(), &[0; tlv::DIGEST_MAC_LEN]];
        self = self.put_tlv(kind, value)?;
        let (mac_at, end) = (self.len - tlv::DIGEST_MAC_LEN, self.len);
        let buffer = self.with_length()?;
        let mac = mac(&buffer[..mac_at]);
        buffer[mac_at..end].copy_from_slice(&mac);
        Ok(end)
    }

    fn with_length(self) -> Result<&'b mut [u8], EncodeError> {
        let declared = u16::try_from(self.len - V2_FIXED_LEN).map_err(|_| EncodeError::TooLong)?;
        self.buffer[V2_FIXED_LEN - 2..V2_FIXED_LEN].copy_from_slice(&declared.to_be_bytes());
        Ok(self.buffer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let end = self.len + bytes.len();
        self.buffer.get_mut(self.len..end).ok_or(EncodeError::BufferTooSmall)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    fn put_tlv(mut self, kind: u8, parts: &[&[u8]]) -> Result<Self, EncodeError> {
        let [high, low] = tlv_len(parts.iter().map(|part| part.len()).sum())?;
        self.put(&[kind, high, low])?;
        for part in parts {
            self.put(part)?;
        }
        Ok(self)
    }

    fn put_addresses(&mut self, addresses: &Addresses<'_>) -> Result<(), EncodeError> {
        match addresses {
            Addresses::Unspecified => Ok(()),
            Addresses::Inet { source, destination, .. } => {
                self.put_ip(source)?;
                self.put_ip(destination)?;
                self.put(&source.port().to_be_bytes())?;
                self.put(&destination.port().to_be_bytes())
            }
            Addresses::Unix { source, destination, .. } => {
                self.put(*source)?;
                self.put(*destination)
            }
        }
    }

    fn put_ip(&mut self, address: &SocketAddr) -> Result<(), EncodeError> {
        match address.ip() {
            IpAddr::V4(v4) => self.put(&v4.octets()),
            IpAddr::V6(v6) => self.put(&v6.octets()),
        }
    }
}

fn tlv_len(len: usize) -> Result<[u8; 2], EncodeError> {
    u16::try_from(len).map(u16::to_be_bytes).map_err(|_| EncodeError::TooLong)
}

/// The 14th byte.
fn family_and_transport(addresses: &Addresses<'_>) -> Result<u8, EncodeError> {
    let (family, transport) = match addresses {
        Addresses::Unspecified => return Ok(0x00),
        Addresses::Inet { transport, source: SocketAddr::V4(_), destination: SocketAddr::V4(_) } => {
            (0x10, transport)
        }
        Addresses::Inet { transport, source: SocketAddr::V6(_), destination: SocketAddr::V6(_) } => {
            (0x20, transport)
        }
        Addresses::Inet { .. } => return Err(EncodeError::MixedFamilies),
        Addresses::Unix { transport, .. } => (0x30, transport),
    };
    Ok(match transport {
        Transport::Stream => family | 0x01,
        Transport::Dgram => family | 0x02,
    })
}
