//! The result of a TLS handshake, kept for headers, logs and backends.

use std::fmt;

use rustls::ProtocolVersion;
use rustls::pki_types::CertificateDer;

use super::suites::name_of;

/// The results of one handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFacts {
    /// `TLSv1.3` or `TLSv1.2`, as OpenSSL, and so the PROXY protocol (2.2.6), write it.
    pub version: &'static str,
    /// The name of the cipher suite in IANA's registry.
    pub suite: String,
    /// The host name that the client requested (SNI).
    pub sni: Option<String>,
    /// The negotiated application protocol (ALPN).
    pub alpn: Option<Vec<u8>>,
    /// The client's certificate, only if it was verified.
    pub client: Option<ClientCertificate>,
    /// An earlier connection started the session.
    pub resumed: bool,
}

/// A client's verified certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate (X.509, DER).
    pub der: Vec<u8>,
    /// Its subject, the most specific part first: `CN=Alice,O=Example` (RFC 4514). Printable ASCII only;
    /// everything else is escaped, as in NGINX's `$ssl_client_s_dn`.
    pub subject: String,
    /// The subject's common name.
    pub common_name: Option<String>,
}

impl ClientCertificate {
    pub(super) fn new(certificate: &CertificateDer<'_>) -> Self {
        let parsed = webpki::EndEntityCert::try_from(certificate);
        let names = parsed.map(|certificate| names(certificate.subject())).unwrap_or_default();
        let common_name = names.iter().rev().flatten().find(|attribute| attribute.kind == "CN");
        Self {
            der: certificate.to_vec(),
            subject: subject(&names),
            common_name: common_name.and_then(|attribute| attribute.text.clone()),
        }
    }
}

/// RFC 4514, 2.1: the relative names in reverse order; 2.2: the attributes of one are joined by `+`.
fn subject(names: &[Vec<Attribute>]) -> String {
    let relative = |attributes: &Vec<Attribute>| {
        attributes.iter().map(Attribute::to_string).collect::<Vec<_>>().join("+")
    };
    names.iter().rev().map(relative).collect::<Vec<_>>().join(",")
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientCertificate({})", self.subject)
    }
}

impl TlsFacts {
    pub(super) fn of(session: &rustls::Connection, sni: Option<&str>) -> Self {
        Self {
            version: match session.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            suite: session.negotiated_cipher_suite().map_or_else(String::new, |suite| name_of(suite.suite())),
            sni: sni.map(str::to_owned),
            alpn: session.alpn_protocol().map(<[u8]>::to_vec),
            client: session.peer_certificates().and_then(<[_]>::first).map(ClientCertificate::new),
            resumed: session.handshake_kind() == Some(rustls::HandshakeKind::Resumed),
        }
    }
}

/// As a log line shows it.
impl fmt::Display for TlsFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.version, self.suite)?;
        if let Some(sni) = &self.sni {
            write!(f, " sni={sni}")?;
        }
        if let Some(alpn) = &self.alpn {
            write!(f, " alpn={}", String::from_utf8_lossy(alpn).escape_debug())?;
        }
        if let Some(client) = &self.client {
            write!(f, " client=\"{}\"", client.subject.escape_debug())?;
        }
        if self.resumed { f.write_str(" resumed") } else { Ok(()) }
    }
}

/// Any certificate, and any subject: what is written is printable ASCII, and has as many names as the
/// subject.
///
/// # Panics
/// It is not.
#[cfg(any(test, feature = "fuzzing"))]
pub fn any_certificate(der: &[u8]) {
    let certificate = ClientCertificate::new(&CertificateDer::from(der));
    assert_eq!(certificate.der, der);
    let names = names(der);
    let written = subject(&names);
    for text in [&certificate.subject, &written] {
        assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
    }
    // A separator that belongs to a value is escaped.
    let mut separators = (0, 0);
    let mut bytes = written.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b',' => separators.0 += 1,
            b'+' => separators.1 += 1,
            _ => {}
        }
    }
    let attributes: usize = names.iter().map(|relative| relative.len() - 1).sum();
    assert_eq!(separators, (names.len().saturating_sub(1), attributes), "{written:?}");
    assert!(written.len() <= 16 * der.len(), "{} bytes of {}", written.len(), der.len());
}

/// One attribute of a distinguished name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Attribute {
    kind: String,
    /// The value, if it is a text of a known type.
    text: Option<String>,
    /// The value as encoded in the certificate (DER).
    der: Vec<u8>,
}

/// RFC 4514, 2.3 and 2.4: a value that is not text, or whose type has no short name, is written in
/// hexadecimal.
impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.kind)?;
        match &self.text {
            Some(text) if !self.kind.starts_with(|first: char| first.is_ascii_digit()) => {
                f.write_str(&escaped(text))
            }
            _ => {
                f.write_str("#")?;
                self.der.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
            }
        }
    }
}

/// The relative names of a distinguished name (X.501), in the certificate's order. Each has one or more
/// attributes.
fn names(mut der: &[u8]) -> Vec<Vec<Attribute>> {
    if let Some((0x30, content, [])) = element(der) {
        der = content;
    }
    let mut names = Vec::new();
    while let Some((_set, mut attributes, rest)) = element(der) {
        let mut relative = Vec::new();
        while let Some((_sequence, attribute, more)) = element(attributes) {
            if let Some((0x06, oid, value)) = element(attribute)
                && let Some((kind, content, _)) = element(value)
            {
                relative.push(Attribute {
                    kind: kind_of(oid),
                    text: text(kind, content),
                    der: value.to_vec(),
                });
            }
            attributes = more;
        }
        if !relative.is_empty() {
            names.push(relative);
        }
        der = rest;
    }
    names
}

/// Splits off the tag, the contents and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        (digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit)), rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The short names of RFC 4514, and others in common use.
fn kind_of(oid: &[u8]) -> String {
    let known = match oid {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 5] => "serialNumber",
        [0x55, 4, 6] => "C",
        [0x55, 4, 7] => "L",
        [0x55, 4, 8] => "ST",
        [0x55, 4, 9] => "STREET",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1] => "emailAddress",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1] => "UID",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25] => "DC",
        _ => return dotted(oid),
    };
    known.to_owned()
}

/// An object identifier in dotted form (X.690, 8.19): each byte holds seven bits of a number, and the first
/// two numbers share one.
fn dotted(oid: &[u8]) -> String {
    let mut numbers = Vec::new();
    let mut number: u128 = 0;
    for byte in oid {
        // No registered number is this long, so the lost digits don't matter.
        number = number << 7 | u128::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            numbers.push(std::mem::take(&mut number));
        }
    }
    let Some(first) = numbers.first().copied() else { return "0.0".to_owned() };
    let root = (first / 40).min(2);
    let parts = [root, first - root * 40].into_iter().chain(numbers.into_iter().skip(1));
    parts.map(|number| number.to_string()).collect::<Vec<_>>().join(".")
}

/// The value as text; `None`: it is another type.
fn text(kind: u8, bytes: &[u8]) -> Option<String> {
    Some(match kind {
        // BMPString: UTF-16.
        0x1e => {
            let units: Vec<_> =
                bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
            String::from_utf16_lossy(&units)
        }
        // TeletexString: Latin-1 in practice.
        0x14 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        // UTF8String, NumericString, PrintableString, IA5String, VisibleString.
        0x0c | 0x12 | 0x13 | 0x16 | 0x1a => String::from_utf8_lossy(bytes).into_owned(),
        _ => return None,
    })
}

/// RFC 4514, 2.4. Characters other than printable ASCII are escaped as their UTF-8 bytes, so that logs,
/// fields and backends never receive them.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (at, character) in value.char_indices() {
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' => text.extend(['\\', character]),
            '#' if at == 0 => text.push_str("\\#"),
            ' ' if at == 0 || at == last => text.push_str("\\ "),
            ' '..='~' => text.push(character),
            other => {
                let mut bytes = [0; 4];
                let bytes = other.encode_utf8(&mut bytes).bytes();
                text.extend(bytes.map(|byte| format!("\\{byte:02X}")));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute whose value has another type.
    fn attribute(oid: &[u8], kind: u8, value: &[u8]) -> Vec<u8> {
        let of = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).unwrap()], content].concat();
        of(0x30, &[of(0x06, oid), of(kind, value)].concat())
    }

    fn relative(attributes: &[Vec<u8>]) -> Vec<u8> {
        let content = attributes.concat();
        [&[0x31, u8::try_from(content.len()).unwrap()], &content[..]].concat()
    }

    #[test]
    fn a_subject_is_written_with_its_most_specific_part_first() {
        let organisation = relative(&[attribute(&[0x55, 4, 10], 0x13, b"O")]);
        let person = relative(&[
            attribute(&[0x55, 4, 3], 0x0c, b"a,b"),
            attribute(&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], 0x0c, b"7"),
        ]);
        let names = names(&[organisation, person].concat());
        assert_eq!(subject(&names), "CN=a\\,b+UID=7,O=O");
    }

    #[test]
    fn unknown_types_and_values_are_written_in_hexadecimal() {
        let private = relative(&[attribute(&[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37], 0x0c, b"A")]);
        assert_eq!(subject(&names(&private)), "1.3.6.1.4.1.311=#0C0141");
        let bits = relative(&[attribute(&[0x55, 4, 3], 0x03, &[0, 1])]);
        assert_eq!(subject(&names(&bits)), "CN=#03020001");
        assert_eq!([dotted(&[]), dotted(&[0x88, 0x37]), dotted(&[0x55])], ["0.0", "2.999", "2.5"]);
    }

    #[test]
    fn values_are_escaped() {
        for (value, written) in [
            ("a,b+c", "a\\,b\\+c"),
            (" a b ", "\\ a b\\ "),
            ("#1#", "\\#1#"),
            ("Zo\u{eb}\n", "Zo\\C3\\AB\\0A"),
            (" ", "\\ "),
            ("", ""),
        ] {
            assert_eq!(escaped(value), written, "{value:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_certificate_is_survived(der in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..200)) {
            any_certificate(&der);
        }

        #[test]
        fn any_names_are_told_apart(
            names in proptest::collection::vec(proptest::collection::vec(("[ -~\\n\u{e9}]{0,8}", 0..3_usize), 1..4), 0..4),
        ) {
            let kinds = [0x0c, 0x13, 0x04];
            let relatives = names.iter().map(|attributes| {
                let attributes = attributes.iter().map(|(value, kind)| attribute(&[0x55, 4, 3], kinds[*kind], value.as_bytes()));
                relative(&attributes.collect::<Vec<_>>())
            });
            any_certificate(&relatives.collect::<Vec<_>>().concat());
        }
    }

    #[test]
    fn broken_names_end_early() {
        for der in [&[0x31][..], &[0x31, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x31, 0x02, 0x30, 0x05]] {
            assert!(names(der).is_empty());
        }
    }
}
