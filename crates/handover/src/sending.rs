//! The sending side, `truepeer connect`: which connections get a header, and its contents.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;

use truepeer_policy::Destinations;
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
    /// Whether to log each connection.
    pub verbose: bool,
}

impl Default for ConnectSettings {
    fn default() -> Self {
        Self { from: None, version: Version::V2, to: Destinations::default(), verbose: false }
    }
}

/// A header to send. The longest v1 line has 107 bytes; a v2 header without TLVs is shorter.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingHeader {
    bytes: [u8; V1_MAX_LEN],
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

    /// The header of a connection from `own` to `destination`.
    ///
    /// # Errors
    /// None in practice: both addresses are converted to one family.
    pub fn opening(&self, own: SocketAddr, destination: SocketAddr) -> Result<OutgoingHeader, EncodeError> {
        let (source, destination) = in_one_family(self.from.unwrap_or(own), destination);
        let addresses = Addresses::Inet { transport: Transport::Stream, source, destination };
        let mut bytes = [0; V1_MAX_LEN];
        let len = match self.version {
            Version::V1 => encode_v1(&addresses, &mut bytes)?,
            Version::V2 => {
                V2Encoder::new(&mut bytes, Command::Proxy, &addresses)?.copy_tlvs(Tlvs::EMPTY)?.finish()?
            }
        };
        Ok(OutgoingHeader { bytes, len })
    }
}

impl fmt::Display for ConnectSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(from) = self.from {
            writeln!(f, "from {from}")?;
        }
        writeln!(f, "header {}", if self.version == Version::V1 { "v1" } else { "v2" })?;
        writeln!(f, "to {}", self.to)?;
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
    fn every_setting_survives_its_text() {
        let mut sending = ConnectSettings {
            from: Some(address("8.8.8.8:1")),
            version: Version::V1,
            ..ConnectSettings::default()
        };
        sending.to.extend(&"10.0.0.0/8:80".parse().unwrap());
        sending.to.extend(&"[::1]:443".parse().unwrap());
        let read: ConnectSettings = sending.to_string().parse().unwrap();
        assert_eq!(read.to_string(), sending.to_string());
        assert!(read.is_told(address("[::ffff:10.1.1.1]:80")) && !read.is_told(address("10.1.1.1:81")));
        assert!("from nowhere".parse::<ConnectSettings>().is_err());
    }
}
