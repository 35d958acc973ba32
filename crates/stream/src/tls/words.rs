//! rustls' errors in words. Many of them have a CamelCase name and no text.

use std::fmt::Debug;

use rustls::{AlertDescription, CertificateError, Error, OtherError};

/// The text of an error.
pub(super) fn error(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(refused) => certificate(refused),
        Error::InvalidMessage(why) => format!("invalid message: {}", of(why)),
        Error::PeerIncompatible(why) => format!("the two can't agree: {}", of(why)),
        Error::PeerMisbehaved(why) => format!("the other end violates TLS: {}", of(why)),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            "the other end sent an unexpected TLS message".to_owned()
        }
        Error::InvalidCertRevocationList(why) => format!("the revocation list is invalid: {}", of(why)),
        Error::InconsistentKeys(why) => format!("the key may not belong to the certificate: {}", of(why)),
        other => other.to_string(),
    }
}

/// The name of a variant in words: `BadSignature` becomes "bad signature". Its fields are left out.
fn of(reason: &impl Debug) -> String {
    separated(reason, ' ')
}

/// An alert's name in the specification (RFC 8446 section 6), or its number.
pub(super) fn alert(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::Unknown(number) => number.to_string(),
        known => separated(&known, '_'),
    }
}

/// Why a certificate was refused.
fn certificate(refused: &CertificateError) -> String {
    match refused {
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|presented| name_in(presented)).collect();
            let names = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
            format!("the certificate is not valid for name {:?}: it is for {names}", expected.to_str())
        }
        CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYetContext { .. }
        | CertificateError::ExpiredRevocationListContext { .. } => refused.to_string(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "the certificate's extended key usage does not allow this use".to_owned()
        }
        CertificateError::Other(OtherError(cause)) => match cause.downcast_ref::<webpki::Error>() {
            Some(error) => format!("the certificate is invalid: {}", of(error)),
            None => format!("the certificate is invalid: {cause}"),
        },
        other => format!("the certificate is invalid: {}", of(other)),
    }
}

/// webpki formats names as `DnsName("a.example")`.
fn name_in(presented: &str) -> &str {
    let inside = presented.split_once('(').map_or(presented, |(_, inside)| inside);
    inside.trim_end_matches(')').trim_matches('"')
}

fn separated(reason: &impl Debug, separator: char) -> String {
    let text = format!("{reason:?}");
    let mut words = String::new();
    let mut was_lower = false;
    for letter in text.chars().take_while(char::is_ascii_alphanumeric) {
        if letter.is_ascii_uppercase() && was_lower {
            words.push(separator);
        }
        was_lower = !letter.is_ascii_uppercase();
        words.push(letter.to_ascii_lowercase());
    }
    words
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Arc;

    use rustls::pki_types::ServerName;
    use rustls::{ContentType, InvalidMessage, PeerIncompatible, PeerMisbehaved};

    use super::*;

    #[test]
    fn names_become_words() {
        assert_eq!(of(&CertificateError::BadSignature), "bad signature");
        assert_eq!(alert(AlertDescription::DecodeError), "decode_error");
        assert_eq!(name_in("DnsName(\"a.example\")"), "a.example");
        assert_eq!(name_in("IpAddress(192.0.2.1)"), "192.0.2.1");
    }

    #[test]
    fn errors_are_sentences_without_names_of_code() {
        let cases = [
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "invalid message: invalid content type",
            ),
            (
                Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon),
                "the two can't agree: no kx groups in common",
            ),
            (
                Error::PeerMisbehaved(PeerMisbehaved::DuplicateClientHelloExtensions),
                "the other end violates TLS: duplicate client hello extensions",
            ),
            (
                Error::InappropriateMessage { expect_types: Vec::new(), got_type: ContentType::Alert },
                "the other end sent an unexpected TLS message",
            ),
            (
                Error::InvalidCertificate(CertificateError::InvalidPurpose),
                "the certificate's extended key usage does not allow this use",
            ),
            (Error::InvalidCertificate(CertificateError::Revoked), "the certificate is invalid: revoked"),
        ];
        for (from, words) in cases {
            assert_eq!(error(&from), words, "{from:?}");
        }
    }

    #[test]
    fn a_certificate_for_other_names_is_refused_with_its_names() {
        let refused = |presented: &[&str]| {
            certificate(&CertificateError::NotValidForNameContext {
                expected: ServerName::try_from("b.test").unwrap(),
                presented: presented.iter().map(|name| (*name).to_owned()).collect(),
            })
        };
        assert_eq!(
            refused(&["DnsName(\"a.test\")", "IpAddress(192.0.2.1)"]),
            "the certificate is not valid for name \"b.test\": it is for a.test, 192.0.2.1"
        );
        assert_eq!(
            refused(&[]),
            "the certificate is not valid for name \"b.test\": it is for no name at all"
        );
    }

    #[test]
    fn causes_of_webpki_are_words_and_others_stay() {
        let because = |cause| certificate(&CertificateError::Other(OtherError(cause)));
        assert_eq!(
            because(Arc::new(webpki::Error::CaUsedAsEndEntity)),
            "the certificate is invalid: ca used as end entity"
        );
        assert_eq!(because(Arc::new(fmt::Error)), format!("the certificate is invalid: {}", fmt::Error));
    }
}
