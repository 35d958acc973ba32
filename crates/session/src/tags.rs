//! What a header says besides addresses, by name: its TLVs. Secrets by which senders prove themselves are
//! left out.

use std::borrow::Cow;

use truepeer_policy::Senders;
use truepeer_proto::tlv::{Ssl, SslTlv};
use truepeer_proto::{Tlv, Tlvs};

/// The longest value that is kept: a unique id has 128 bytes at most, and endpoint ids are shorter.
const MOST_BYTES: usize = 128;
/// The most text of one header: a sender may write 64 KiB of TLVs.
const MOST_TEXT: usize = 1024;
/// Ends each name and each value: neither has one.
const END: char = '\n';

/// Names and values for lists. Values are printable. In one piece, because every session may have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags(Box<str>);

impl Tags {
    /// The names that log lines have, too.
    pub const NAMES: [&'static str; 7] = [
        "unique_id",
        "aws_vpc_endpoint",
        "gcp_psc_connection",
        "azure_private_link",
        "alibaba_vpc",
        "alibaba_endpoint",
        "alibaba_service",
    ];

    /// The tags in a header; `None`: it has none, as most. `senders` knows which types are secrets.
    #[must_use]
    pub fn of(tlvs: Tlvs<'_>, senders: &Senders) -> Option<Box<Self>> {
        Self::with_subject(tlvs, senders, None)
    }

    /// The same, and the subject of a certificate that the client has shown to truepeer itself.
    #[must_use]
    pub fn with_subject(tlvs: Tlvs<'_>, senders: &Senders, subject: Option<&str>) -> Option<Box<Self>> {
        let mut tags = String::new();
        if let Some(subject) = subject {
            put(&mut tags, "subject", &printable(subject.as_bytes()));
        }
        for (kind, tlv) in tlvs.raw().map(|(kind, _)| kind).zip(tlvs.iter()) {
            match tlv {
                _ if senders.is_secret(kind) => {}
                Tlv::Crc32c(_) | Tlv::Noop(_) => {}
                Tlv::Ssl(ssl) => put_ssl(&mut tags, ssl),
                tlv => {
                    let (name, value) = tag(kind, tlv);
                    put(&mut tags, &name, &value);
                }
            }
        }
        (!tags.is_empty()).then(|| Box::new(Self(tags.into())))
    }

    /// The tags that another process has listed.
    #[must_use]
    pub fn of_pairs(pairs: Vec<(String, String)>) -> Option<Box<Self>> {
        let mut tags = String::new();
        for (name, value) in pairs.iter().filter(|(name, value)| !name.contains(END) && !value.contains(END))
        {
            put(&mut tags, name, value);
        }
        (!tags.is_empty()).then(|| Box::new(Self(tags.into())))
    }

    /// The value of a name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// Names and values, in the order of the header.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut parts = self.0.split_terminator(END);
        std::iter::from_fn(move || parts.next().zip(parts.next()))
    }
}

/// The first of a name counts.
fn put(tags: &mut String, name: &str, value: &str) {
    let is_new = || tags.split_terminator(END).step_by(2).all(|other| other != name);
    if tags.len() + name.len() + value.len() + 2 <= MOST_TEXT && is_new() {
        for part in [name, value] {
            tags.push_str(part);
            tags.push(END);
        }
    }
}

fn put_ssl(tags: &mut String, ssl: Ssl<'_>) {
    let has_certificate = ssl.client & (Ssl::CERT_CONN | Ssl::CERT_SESS) != 0;
    let verified = match (has_certificate, ssl.is_client_verified()) {
        (false, _) => "no certificate",
        (true, true) => "yes",
        (true, false) => "no",
    };
    put(tags, "ssl", if ssl.is_tls() { "yes" } else { "no" });
    put(tags, "ssl_verified", verified);
    for sub in ssl.iter() {
        let (name, value) = match sub {
            SslTlv::Version(text) => ("ssl_version", text.as_bytes()),
            SslTlv::CommonName(text) => ("ssl_cn", text.as_bytes()),
            SslTlv::Cipher(text) => ("ssl_cipher", text.as_bytes()),
            SslTlv::SigAlg(text) => ("ssl_sig_alg", text.as_bytes()),
            SslTlv::KeyAlg(text) => ("ssl_key_alg", text.as_bytes()),
            SslTlv::Group(text) => ("ssl_group", text.as_bytes()),
            SslTlv::SigScheme(text) => ("ssl_sig_scheme", text.as_bytes()),
            SslTlv::ClientCert(der) => {
                put(tags, "ssl_client_cert", &format!("{} bytes", der.len()));
                continue;
            }
            SslTlv::Unknown { kind, value } => {
                put(tags, &format!("ssl_{kind:#04x}"), &printable(value));
                continue;
            }
        };
        put(tags, name, &printable(value));
    }
}

fn tag(kind: u8, tlv: Tlv<'_>) -> (Cow<'static, str>, String) {
    let (name, value) = match tlv {
        Tlv::UniqueId(id) => ("unique_id", printable(id)),
        Tlv::Authority(name) => ("authority", printable(name.as_bytes())),
        Tlv::Alpn(name) => ("alpn", printable(name)),
        Tlv::Netns(name) => ("netns", printable(name.as_bytes())),
        Tlv::AwsVpcEndpointId(id) => ("aws_vpc_endpoint", printable(id.as_bytes())),
        Tlv::GcpPscConnectionId(id) => ("gcp_psc_connection", id.to_string()),
        Tlv::AzureLinkId(id) => ("azure_private_link", id.to_string()),
        Tlv::AlibabaVpcId(id) => ("alibaba_vpc", printable(id.as_bytes())),
        Tlv::AlibabaEndpointId(id) => ("alibaba_endpoint", printable(id.as_bytes())),
        Tlv::AlibabaServiceId(id) => ("alibaba_service", printable(id.as_bytes())),
        Tlv::Custom { value, .. }
        | Tlv::Experiment { value, .. }
        | Tlv::Reserved { value, .. }
        | Tlv::Unknown { value, .. } => {
            return (format!("tlv_{kind:#04x}").into(), printable(value));
        }
        Tlv::Crc32c(_) | Tlv::Noop(_) | Tlv::Ssl(_) => ("", String::new()), // not asked for
    };
    (name.into(), value)
}

/// Visible ASCII, and spaces inside, as it is; anything else in hexadecimal, after `0x`.
fn printable(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let bytes = &bytes[..bytes.len().min(MOST_BYTES)];
    let is_text = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    if is_text && bytes.trim_ascii().len() == bytes.len() {
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
        Tags::of(Tlvs::parse(bytes).unwrap(), &Senders::default())
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
        let many: Vec<u8> =
            (0xF0..=0xF7).flat_map(|kind| [&[kind, 0, 0x80][..], &[b'x'; 0x80]].concat()).collect();
        assert_eq!(tags(&many).unwrap().iter().count(), 7, "all of one header are bounded");
    }

    #[test]
    fn tls_and_types_without_a_name_are_listed() {
        let mut bytes = b"\x01\x00\x02h2\x02\x00\x07ex.test\x20\x00\x25\x07\x00\x00\x00\x00".to_vec();
        bytes.extend(b"\x21\x00\x07TLSv1.3\x22\x00\x0fthe true client\x29\x00\x01\x00");
        bytes.extend(b"\x30\x00\x04blue\xe4\x00\x02DE\xf0\x00\x02\x00\x01\xe4\x00\x02FR");
        let tags = tags(&bytes).unwrap();
        let expected = [
            ("alpn", "h2"),
            ("authority", "ex.test"),
            ("ssl", "yes"),
            ("ssl_verified", "yes"),
            ("ssl_version", "TLSv1.3"),
            ("ssl_cn", "the true client"),
            ("ssl_0x29", "0x00"),
            ("netns", "blue"),
            ("tlv_0xe4", "DE"),
            ("tlv_0xf0", "0x0001"),
        ];
        assert_eq!(tags.iter().collect::<Vec<_>>(), expected);
        let pairs = tags.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(Tags::of_pairs(pairs), Some(tags));
    }

    #[test]
    fn a_secret_of_any_sender_is_left_out() {
        let secrets = truepeer_policy::Secrets::parse(b"0123456789abcdef").unwrap();
        let mut senders = Senders::default();
        let proof = truepeer_policy::Proof::secret(0xE5, &secrets);
        senders.set_proof(&"192.0.2.0/24".parse().unwrap(), &proof);
        let tlvs = Tlvs::parse(b"\xe5\x00\x100123456789abcdef\xe4\x00\x01x").unwrap();
        let tags = Tags::of(tlvs, &senders).unwrap();
        assert_eq!(tags.iter().collect::<Vec<_>>(), [("tlv_0xe4", "x")]);
    }
}
