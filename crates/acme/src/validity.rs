//! A certificate's validity and issuer's key, read from its DER, because webpki keeps them for itself.

use std::time::{Duration, SystemTime};

/// From when, and until when, a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// notBefore.
    pub from: SystemTime,
    /// notAfter.
    pub until: SystemTime,
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The version of a certificate: `[0] EXPLICIT`.
const VERSION: u8 = 0xa0;
/// The unique identifiers of the issuer and the subject: `[1]`, `[2] IMPLICIT`.
const IDENTIFIERS: [u8; 2] = [0x81, 0x82];
/// The extensions of a certificate: `[3] EXPLICIT`.
const EXTENSIONS: u8 = 0xa3;
/// id-ce-authorityKeyIdentifier (RFC 5280, 4.2.1.1).
const AUTHORITY_KEY: &[u8] = &[0x55, 0x1d, 0x23];
/// Its first field: `[0] IMPLICIT OCTET STRING`.
const KEY_IDENTIFIER: u8 = 0x80;

impl Validity {
    /// Of a certificate (RFC 5280, 4.1). `None`: it is none.
    pub fn of(der: &[u8]) -> Option<Self> {
        let (validity, _) = element(SEQUENCE, after(&[INTEGER, SEQUENCE, SEQUENCE], fields(der)?)?)?;
        let (from, rest) = time(validity)?;
        Some(Self { from, until: time(rest)?.0 })
    }

    pub(crate) fn length(&self) -> Duration {
        self.until.duration_since(self.from).unwrap_or_default()
    }
}

/// The issuer's key identifier and the serial number, as in DER. `None`: the certificate lacks them.
pub(crate) fn issuer_and_serial(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let fields = fields(der)?;
    let (serial, _) = element(INTEGER, fields)?;
    // Up to the subject's public key.
    let mut rest = after(&[INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE], fields)?;
    for identifier in IDENTIFIERS {
        rest = element(identifier, rest).map_or(rest, |(_, rest)| rest);
    }
    let (mut extensions, _) = element(SEQUENCE, element(EXTENSIONS, rest)?.0)?;
    loop {
        let (extension, more) = element(SEQUENCE, extensions)?;
        extensions = more;
        let (object, rest) = element(OBJECT, extension)?;
        if object == AUTHORITY_KEY {
            let rest = element(BOOLEAN, rest).map_or(rest, |(_, rest)| rest);
            let (value, _) = element(SEQUENCE, element(OCTETS, rest)?.0)?;
            return Some((element(KEY_IDENTIFIER, value)?.0, serial));
        }
    }
}

/// A certificate's fields after the version.
fn fields(der: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = element(SEQUENCE, der)?;
    let (fields, _) = element(SEQUENCE, certificate)?;
    Some(element(VERSION, fields).map_or(fields, |(_, rest)| rest))
}

/// What follows the elements of these tags.
fn after<'a>(tags: &[u8], der: &'a [u8]) -> Option<&'a [u8]> {
    tags.iter().try_fold(der, |der, &tag| Some(element(tag, der)?.1))
}

/// The contents of the element of this tag at the start, and what follows it.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    (found == tag).then(|| rest.split_at_checked(length)).flatten()
}

fn time(der: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (text, century, rest) = match (element(UTC_TIME, der), element(GENERALIZED_TIME, der)) {
        (Some((text, rest)), _) => (text, None, rest),
        (_, Some((text, rest))) => (text.get(2..)?, Some(number(text.get(..2)?)?), rest),
        _ => return None,
    };
    let of = |at: usize| number(text.get(2 * at..2 * at + 2)?);
    let year = of(0)?;
    // RFC 5280, 4.1.2.5.1
    let year = year + 100 * century.unwrap_or(if year < 50 { 20 } else { 19 });
    let days = days(year, of(1)?, of(2)?)?;
    let seconds = ((days * 24 + of(3)?) * 60 + of(4)?) * 60 + of(5)?;
    let time = if text.get(12..)? == b"Z" { SystemTime::UNIX_EPOCH } else { return None };
    Some((time.checked_add(Duration::from_secs(seconds))?, rest))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The days from 1970-01-01 to a date. `None`: before that, or no date.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March: the leap day is the last one. A certificate may say year 0.
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let since_0000_03_01 = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year;
    since_0000_03_01.checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_from_1970() {
        for (year, month, day, expected) in [
            (1970, 1, 1, Some(0)),
            (1970, 3, 1, Some(59)),
            (2000, 2, 29, Some(11_016)),
            (2000, 3, 1, Some(11_017)),
            (2024, 12, 31, Some(20_088)),
            (2100, 3, 1, Some(47_541)),
            (1969, 12, 31, None),
            (0, 1, 1, None),
            (2024, 13, 1, None),
        ] {
            assert_eq!(days(year, month, day), expected, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn a_certificates_validity_is_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        // 2049 is written with two digits, 2050 with four.
        for (from, until) in [(1_800_000_000, 1_800_086_399), (2_524_607_999, 2_524_608_000)] {
            let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
            let epoch = rcgen::date_time_ymd(1970, 1, 1);
            params.not_before = epoch + Duration::from_secs(from);
            params.not_after = epoch + Duration::from_secs(until);
            let certificate = params.self_signed(&key).unwrap();
            let validity = Validity::of(certificate.der()).unwrap();
            assert_eq!((validity.from, validity.until), (at(from), at(until)));
            let der = certificate.der();
            for end in 0..der.len().min(300) {
                assert_ne!(Validity::of(&der[..end]), Some(validity), "{end}");
            }
        }
    }

    #[test]
    fn a_certificate_names_its_issuers_key_and_its_number() {
        let of = |params: rcgen::CertificateParams| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut issuer = rcgen::CertificateParams::new(Vec::new()).unwrap();
            issuer.key_identifier_method = rcgen::KeyIdMethod::PreSpecified(vec![7, 8, 9]);
            let issuer = rcgen::Issuer::new(issuer, rcgen::KeyPair::generate().unwrap());
            params.signed_by(&key, &issuer).unwrap()
        };
        let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&[0x87, 0x65, 0x43, 0x21]));
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        let without = of(params.clone());
        assert_eq!(issuer_and_serial(without.der()), None);
        params.use_authority_key_identifier_extension = true;
        let certificate = of(params);
        // RFC 9773, 4.1: with the leading zero that the sign wants.
        let expected = (&[7, 8, 9][..], &[0, 0x87, 0x65, 0x43, 0x21][..]);
        assert_eq!(issuer_and_serial(certificate.der()), Some(expected));
        for end in 0..certificate.der().len() {
            assert_eq!(issuer_and_serial(&certificate.der()[..end]), None, "{end}");
        }
    }
}
