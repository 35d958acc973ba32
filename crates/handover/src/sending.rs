//! The sending side, `truepeer connect`: which connections get a header, and its contents.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use core::time::Duration;
use std::path::{Path, PathBuf};

use truepeer_policy::{Destinations, Secrets, SentTlv, SentValue};
use truepeer_proto::{
    Addresses, Command, EncodeError, Tlvs, Transport, V1_MAX_LEN, V2Encoder, Version, encode_v1,
    in_one_family,
};

use crate::settings::SettingsError;

/// The settings of a program that connects.
#[derive(Debug, Clone)]
pub struct ConnectSettings {
    /// The client that is claimed; `None`: the connection's own address.
    pub from: Option<SocketAddr>,
    /// The header's version.
    pub version: Version,
    /// The destinations that get a header; all if empty.
    pub to: Destinations,
    /// The TLVs of a v2 header, at most [`MOST_TLVS`], a digest last.
    pub tlvs: Vec<TlvOfFile>,
    /// Whether to log each connection.
    pub verbose: bool,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        let to = Destinations::default();
        Self { from: None, version: Version::V2, to, tlvs: Vec::new(), verbose: false }
    }
}

/// The most TLVs of a header.
pub const MOST_TLVS: usize = 4;
/// The longest v1 line has 107 bytes; a v2 header without TLVs is shorter. A TLV has a secret of 64 bytes at
/// most, and a digest fewer.
const MOST_BYTES: usize = V1_MAX_LEN + MOST_TLVS * (3 + 64);

/// A TLV whose value is the first secret of a file, or a digest by it. A program's environment has the path
/// alone: its library reads the file itself.
#[derive(Debug, Clone)]
pub struct TlvOfFile {
    /// Its type.
    pub kind: u8,
    /// A digest of header and time.
    pub is_keyed: bool,
    /// The file; its path is absolute, and has no line break.
    pub path: PathBuf,
    /// Read already. `None`: connections that begin with a header must fail.
    pub read: Option<SentTlv>,
}

impl TlvOfFile {
    /// What the secrets of the file make of it. `now`: the time since 1970.
    pub fn set(&mut self, secrets: &Secrets, now: fn() -> Duration) {
        self.read = Some(if self.is_keyed {
            SentTlv::keyed(self.kind, secrets, now)
        } else {
            SentTlv::secret(self.kind, secrets)
        });
    }
}

/// A header to send.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingHeader {
    bytes: [u8; MOST_BYTES],
    len: usize,
}

impl OutgoingHeader {
    /// The bytes to send first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl ConnectSettings {
    /// Whether a connection to `destination` begins with a header.
    pub fn is_told(&self, destination: SocketAddr) -> bool {
        let canonical = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        self.to.is_empty() || self.to.contains(canonical)
    }

    /// A file of secrets that could not be read.
    pub fn unread(&self) -> Option<&Path> {
        self.tlvs.iter().find(|tlv| tlv.read.is_none()).map(|tlv| tlv.path.as_path())
    }

    /// The header of a connection from `own` to `destination`, with the TLVs that have been read.
    ///
    /// # Errors
    /// None in practice: both addresses are converted to one family.
    pub fn opening(&self, own: SocketAddr, destination: SocketAddr) -> Result<OutgoingHeader, EncodeError> {
        let (source, destination) = in_one_family(self.from.unwrap_or(own), destination);
        let addresses = Addresses::Inet { transport: Transport::Stream, source, destination };
        let mut bytes = [0; MOST_BYTES];
        let len = match self.version {
            Version::V1 => encode_v1(&addresses, &mut bytes)?,
            Version::V2 => {
                let encoder = V2Encoder::new(&mut bytes, Command::Proxy, &addresses)?;
                self.finish(encoder.copy_tlvs(Tlvs::EMPTY)?)?
            }
        };
        Ok(OutgoingHeader { bytes, len })
    }

    fn finish(&self, mut encoder: V2Encoder<'_>) -> Result<usize, EncodeError> {
        for tlv in self.tlvs.iter().filter_map(|tlv| tlv.read.as_ref()) {
            match tlv.value() {
                SentValue::Secret(secret) => encoder = encoder.tlv(tlv.kind(), secret)?,
                SentValue::Digest(time) => {
                    return encoder.finish_with_digest(tlv.kind(), time, |signed| tlv.mac(signed));
                }
            }
        }
        encoder.finish()
    }
}

impl fmt::Display for ConnectSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(from) = self.from {
            writeln!(f, "from {from}")?;
        }
        writeln!(f, "header {}", if self.version == Version::V1 { "v1" } else { "v2" })?;
        writeln!(f, "to {}", self.to)?;
        for TlvOfFile { kind, is_keyed, path, .. } in &self.tlvs {
            writeln!(f, "{} {kind:02x} {}", if *is_keyed { "digest" } else { "secret" }, path.display())?;
        }
        if self.verbose {
            writeln!(f, "verbose")?;
        }
        Ok(())
    }
}

impl FromStr for ConnectSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let mut sending = Self::default();
        for line in text.lines() {
            let (word, value) = line.split_once(' ').unwrap_or((line, ""));
            sending.set(word, value).ok_or_else(|| SettingsError::about(line))?;
        }
        Ok(sending)
    }
}

impl ConnectSettings {
    fn set(&mut self, word: &str, value: &str) -> Option<()> {
        match word {
            "from" => self.from = Some(value.parse().ok()?),
            "header" if value == "v1" => self.version = Version::V1,
            "header" if value == "v2" => self.version = Version::V2,
            "to" => {
                for entry in value.split(' ').filter(|entry| !entry.is_empty()) {
                    self.to.extend(&entry.parse().ok()?);
                }
            }
            "secret" | "digest" if self.tlvs.len() < MOST_TLVS => {
                let (kind, path) = value.split_once(' ')?;
                let kind = u8::from_str_radix(kind, 16).ok()?;
                self.tlvs.push(TlvOfFile { kind, is_keyed: word == "digest", path: path.into(), read: None });
            }
            "verbose" => self.verbose = true,
            "" => {}
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use truepeer_proto::{Decoded, Limits, decode};

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_header_names_the_claimed_client_in_one_family() {
        for (from, to, client, destination) in [
            (Some("8.8.8.8:4321"), "127.0.0.1:9090", "8.8.8.8:4321", "127.0.0.1:9090"),
            (None, "127.0.0.1:9090", "10.0.0.1:5", "127.0.0.1:9090"),
            (Some("8.8.8.8:4321"), "[::ffff:127.0.0.1]:1", "8.8.8.8:4321", "127.0.0.1:1"),
            (Some("8.8.8.8:4321"), "[::1]:9090", "[::ffff:8.8.8.8]:4321", "[::1]:9090"),
            (Some("[2001:db8::1]:1"), "127.0.0.1:9", "[2001:db8::1]:1", "[::ffff:127.0.0.1]:9"),
        ] {
            for version in [Version::V1, Version::V2] {
                let sending =
                    ConnectSettings { from: from.map(address), version, ..ConnectSettings::default() };
                let opening = sending.opening(address("10.0.0.1:5"), address(to)).unwrap();
                let Ok(Decoded::Done { header, consumed }) = decode(opening.bytes(), Limits::default())
                else {
                    panic!("{:?}", opening.bytes())
                };
                assert_eq!(consumed, opening.bytes().len());
                assert_eq!(header.client(), Some(address(client)));
                assert_eq!(header.destination(), Some(address(destination)));
            }
        }
    }

    #[test]
    fn the_longest_tlvs_have_room() {
        let secrets = Secrets::parse(&[b'x'; 64]).unwrap();
        let mut sending = ConnectSettings::default();
        for kind in 0xE0..0xE0 + u8::try_from(MOST_TLVS).unwrap() {
            let mut tlv = TlvOfFile { kind, is_keyed: kind == 0xE3, path: "/s".into(), read: None };
            tlv.set(&secrets, || Duration::from_secs(1));
            sending.tlvs.push(tlv);
        }
        let opening = sending.opening(address("[2001:db8::1]:5"), address("[2001:db8::2]:443")).unwrap();
        let Ok(Decoded::Done { header, .. }) = decode(opening.bytes(), Limits::default()) else { panic!() };
        assert_eq!(header.tlvs.value(0xE1), Some(&[b'x'; 64][..]));
        let proof = truepeer_policy::Proof::keyed(0xE3, secrets, || Duration::from_secs(2));
        assert_eq!(proof.check(&header), Ok(()));
    }

    #[test]
    fn every_setting_survives_its_text() {
        let mut sending = ConnectSettings {
            from: Some(address("8.8.8.8:1")),
            version: Version::V1,
            ..ConnectSettings::default()
        };
        sending.to.extend(&"10.0.0.0/8:80".parse().unwrap());
        sending.to.extend(&"[::1]:443".parse().unwrap());
        for (kind, is_keyed) in [(0xE5, false), (0x05, true)] {
            let path = "/etc/a path/secret".into();
            sending.tlvs.push(TlvOfFile { kind, is_keyed, path, read: None });
        }
        let read: ConnectSettings = sending.to_string().parse().unwrap();
        let tlvs: Vec<_> = read.tlvs.iter().map(|tlv| (tlv.kind, tlv.is_keyed)).collect();
        assert_eq!(tlvs, [(0xE5, false), (0x05, true)]);
        assert_eq!(read.unread(), Some(Path::new("/etc/a path/secret")));
        assert_eq!(read.to_string(), sending.to_string());
        assert!(read.is_told(address("[::ffff:10.1.1.1]:80")) && !read.is_told(address("10.1.1.1:81")));
        assert!("from nowhere".parse::<ConnectSettings>().is_err());
    }
}
