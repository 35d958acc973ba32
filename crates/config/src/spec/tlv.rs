//! `--require-tlv` and `--send-tlv`: a TLV by which a sender proves itself, and the file of its secrets.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use truepeer_policy::PrefixSet;
use truepeer_proto::tlv;

/// `TYPE=[hmac:]@FILE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretTlv {
    pub(crate) kind: u8,
    /// A keyed digest over header and time, instead of the secret itself.
    pub(crate) is_keyed: bool,
    pub(crate) file: PathBuf,
}

/// `[PREFIX,]TYPE=[hmac:]@FILE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RequiredTlv {
    /// `None`: all senders.
    pub(crate) senders: Option<PrefixSet>,
    pub(crate) tlv: SecretTlv,
}

impl RequiredTlv {
    /// The senders that it is for.
    pub(crate) fn prefixes(&self) -> PrefixSet {
        self.senders.clone().unwrap_or_else(PrefixSet::any)
    }
}

impl FromStr for SecretTlv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected TYPE=@FILE, or TYPE=hmac:@FILE between two truepeers, such as 0xE5=@/etc/truepeer/secret";
        let (kind, value) = text.split_once('=').ok_or(expected)?;
        let (is_keyed, value) = value.strip_prefix("hmac:").map_or((false, value), |value| (true, value));
        // A secret in a command line can be read by everybody on the host.
        let file = value.strip_prefix('@').filter(|file| !file.is_empty()).ok_or(expected)?;
        let hexadecimal = kind.strip_prefix("0x").or_else(|| kind.strip_prefix("0X"));
        let number = hexadecimal.map_or_else(|| kind.parse(), |digits| u8::from_str_radix(digits, 16));
        let kind = number.map_err(|_| format!("{kind:?} is no type of a TLV; {expected}"))?;
        if matches!(kind, 0 | tlv::CRC32C | tlv::SSL) {
            return Err(format!(
                "TLV {kind:#04x} can have no secret; expected a type for own use, 0xE0 to 0xEF"
            ));
        }
        Ok(Self { kind, is_keyed, file: file.into() })
    }
}

impl fmt::Display for SecretTlv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hmac = if self.is_keyed { "hmac:" } else { "" };
        write!(f, "{:#04x}={hmac}@{}", self.kind, self.file.display())
    }
}

impl FromStr for RequiredTlv {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let head = text.split_once('=').map_or(text, |(head, _)| head);
        let Some((senders, _)) = head.split_once(',') else {
            return Ok(Self { senders: None, tlv: text.parse()? });
        };
        let tlv = text[senders.len() + 1..].parse()?;
        let senders = senders.parse::<PrefixSet>().map_err(|error| error.to_string())?;
        Ok(Self { senders: Some(senders), tlv })
    }
}

impl fmt::Display for RequiredTlv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.senders {
            Some(senders) if *senders == PrefixSet::loopback() => write!(f, "loopback,{}", self.tlv),
            Some(senders) => match &senders.iter().collect::<Vec<_>>()[..] {
                [one] => write!(f, "{one},{}", self.tlv),
                // The one word that stands for more prefixes and is not `any`.
                _ => write!(f, "private,{}", self.tlv),
            },
            None => self.tlv.fmt(f),
        }
    }
}

macro_rules! as_text {
    ($($kind:ident)+) => { $(
        impl TryFrom<String> for $kind {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(tlv: $kind) -> Self {
                tlv.to_string()
            }
        }
    )+ };
}

as_text!(SecretTlv RequiredTlv);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_tlv_prints_as_it_is_read() {
        for (typed, printed) in [
            ("0xE5=@/etc/a b=c,d", "0xe5=@/etc/a b=c,d"),
            ("229=@./secret", "0xe5=@./secret"),
            ("10.0.0.7,0xe5=hmac:@/k", "10.0.0.7/32,0xe5=hmac:@/k"),
            ("private,0x05=@/k", "private,0x05=@/k"),
            ("loopback,5=@/k", "loopback,0x05=@/k"),
            ("::1,5=@/k", "::1/128,0x05=@/k"),
        ] {
            let read: RequiredTlv = typed.parse().unwrap();
            assert_eq!(read.to_string(), printed);
            assert_eq!(printed.parse(), Ok(read));
        }
        let any: RequiredTlv = "any,0xE5=@/k".parse().unwrap();
        assert_eq!(any.prefixes(), PrefixSet::any());
    }

    #[test]
    fn what_is_no_file_or_no_type_is_refused_without_being_quoted() {
        for wrong in
            ["", "0xE5", "0xE5=", "0xE5=@", "0xE5=hush", "0xE5=hmac:hush", "=@/k", "256=@/k", "0x=@/k"]
        {
            let said = wrong.parse::<SecretTlv>().unwrap_err();
            assert!(said.contains("TYPE=@FILE") && !said.contains("hush"), "{wrong}: {said}");
        }
        assert!("3=@/k".parse::<SecretTlv>().unwrap_err().contains("0xE0 to 0xEF"));
        assert!("nobody,0xE5=@/k".parse::<RequiredTlv>().unwrap_err().contains("is not a prefix"));
    }
}
