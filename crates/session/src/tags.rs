//! What a header says besides addresses: the connection's id, and by which private endpoint of a cloud it
//! came.

use truepeer_proto::{Tlv, Tlvs};

/// The longest value that is kept: a unique id has 128 bytes at most, and endpoint ids are shorter.
const MOST_BYTES: usize = 128;

/// Names and values for logs and lists. Values are printable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags(Box<[(&'static str, Box<str>)]>);

impl Tags {
    /// All names, as in logs and lists.
    pub const NAMES: [&'static str; 7] = [
        "unique_id",
        "aws_vpc_endpoint",
        "gcp_psc_connection",
        "azure_private_link",
        "alibaba_vpc",
        "alibaba_endpoint",
        "alibaba_service",
    ];

    /// The tags in a header; `None`: it has none, as most.
    #[must_use]
    pub fn of(tlvs: Tlvs<'_>) -> Option<Box<Self>> {
        let mut tags: Vec<(&'static str, Box<str>)> = Vec::new();
        for tlv in tlvs.iter() {
            if let Some((name, value)) = tag(tlv)
                && tags.iter().all(|(other, _)| *other != name)
            {
                tags.push((name, value.into()));
            }
        }
        (!tags.is_empty()).then(|| Box::new(Self(tags.into())))
    }

    /// The tags that another process has listed. Names that this version doesn't know are left out.
    #[must_use]
    pub fn of_pairs(pairs: Vec<(String, String)>) -> Option<Box<Self>> {
        let known = pairs.into_iter().filter_map(|(name, value)| {
            let name = Self::NAMES.into_iter().find(|known| *known == name)?;
            Some((name, value.into_boxed_str()))
        });
        let tags: Box<[_]> = known.collect();
        (!tags.is_empty()).then(|| Box::new(Self(tags)))
    }

    /// The value of a name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Names and values, in the order of the header.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, &**value))
    }
}

fn tag(tlv: Tlv<'_>) -> Option<(&'static str, String)> {
    Some(match tlv {
        Tlv::UniqueId(id) => ("unique_id", printable(id)),
        Tlv::AwsVpcEndpointId(id) => ("aws_vpc_endpoint", printable(id.as_bytes())),
        Tlv::GcpPscConnectionId(id) => ("gcp_psc_connection", id.to_string()),
        Tlv::AzureLinkId(id) => ("azure_private_link", id.to_string()),
        Tlv::AlibabaVpcId(id) => ("alibaba_vpc", printable(id.as_bytes())),
        Tlv::AlibabaEndpointId(id) => ("alibaba_endpoint", printable(id.as_bytes())),
        Tlv::AlibabaServiceId(id) => ("alibaba_service", printable(id.as_bytes())),
        _ => return None,
    })
}

/// Visible ASCII as it is; anything else in hexadecimal, after `0x`.
fn printable(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let bytes = &bytes[..bytes.len().min(MOST_BYTES)];
    if bytes.iter().all(u8::is_ascii_graphic) {
        return bytes.iter().map(|&byte| char::from(byte)).collect();
    }
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String can't fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(bytes: &[u8]) -> Option<Box<Tags>> {
        Tags::of(Tlvs::parse(bytes).unwrap())
    }

    #[test]
    fn clouds_and_unique_ids_have_names() {
        let mut bytes =
            b"\x05\x00\x03abc\xea\x00\x06\x01vpce-\xe0\x00\x08\x00\x00\x00\x00\x00\x00\x01\x02".to_vec();
        bytes.extend(b"\xee\x00\x05\x01\x01\x02\x00\x00\x05\x00\x02\x00\xff\x04\x00\x01\x00");
        let tags = tags(&bytes).unwrap();
        let all: Vec<_> = tags.iter().collect();
        let expected = [
            ("unique_id", "abc"),
            ("aws_vpc_endpoint", "vpce-"),
            ("gcp_psc_connection", "258"),
            ("azure_private_link", "513"),
        ];
        assert_eq!(all, expected);
        assert!(all.iter().all(|(name, _)| Tags::NAMES.contains(name)));
        assert_eq!(tags.value("unique_id"), Some("abc"));
    }

    #[test]
    fn hostile_values_are_short_and_printable() {
        assert_eq!(tags(b"\x05\x00\x03a\n\x1b").unwrap().value("unique_id"), Some("0x610a1b"));
        let mut long = b"\xea\x40\x01\x01".to_vec();
        long.resize(4 + 0x4000, b'x');
        assert_eq!(tags(&long).unwrap().value("aws_vpc_endpoint").unwrap().len(), MOST_BYTES);
        assert!(tags(b"\x04\x00\x01\x00").is_none() && tags(b"").is_none());
    }
}
