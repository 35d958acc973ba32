//! A sender proves itself: a header counts only with a secret, or a keyed digest, in one of its TLVs
//! (`--require-tlv`).
//!
//! Comparisons take the same time whatever the header has: a secret is compared by its SHA-256, with every
//! secret of the file. `truepeer run` passes these digests on, so no secret is in a program's environment.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use subtle::{Choice, ConstantTimeEq as _};
use truepeer_proto::tlv::{DIGEST_LEN, DIGEST_MAC_LEN};
use truepeer_proto::{Header, Version};

/// Bytes of a secret. The longest is what the kernel programs compare.
pub const SECRET_LEN: RangeInclusive<usize> = 16..=64;

/// The most secrets of one file.
pub const MOST_SECRETS: usize = 4;

/// How far the time of a keyed digest may be from the receiver's: a header that somebody else has read counts
/// this long.
pub const DIGEST_WINDOW: Duration = Duration::from_secs(30);

/// The secrets of a file, the newest first. They are never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets(Vec<Box<[u8]>>);

/// A file that is none of secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretsError {
    /// It has none.
    #[error("the file has no secret: expected a line of 16 to 64 characters; openssl rand -hex 32 makes one")]
    None,
    /// It has more than [`MOST_SECRETS`].
    #[error("line {0}: more than 4 secrets")]
    TooMany(usize),
    /// A line is too short or too long.
    #[error("line {0}: expected 16 to 64 characters; openssl rand -hex 32 makes a secret")]
    Length(usize),
    /// A line has a character that senders can't be given.
    #[error("line {0}: expected visible ASCII characters without spaces")]
    Character(usize),
}

impl Secrets {
    /// Reads a file: a secret a line. Blank lines, and lines that begin with `#`, are skipped. The errors
    /// name lines, never their content.
    ///
    /// # Errors
    /// One wrong line makes the whole file invalid.
    pub fn parse(text: &[u8]) -> Result<Self, SecretsError> {
        let mut secrets = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let (line, number) = (line.trim_ascii(), index + 1);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            if secrets.len() == MOST_SECRETS {
                return Err(SecretsError::TooMany(number));
            }
            if !line.iter().all(u8::is_ascii_graphic) {
                return Err(SecretsError::Character(number));
            }
            if !SECRET_LEN.contains(&line.len()) {
                return Err(SecretsError::Length(number));
            }
            secrets.push(line.into());
        }
        if secrets.is_empty() { Err(SecretsError::None) } else { Ok(Self(secrets)) }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|secret| &**secret)
    }

    /// The one that truepeer sends: the first of the file.
    fn first(&self) -> &[u8] {
        self.0.first().map_or(&[], |secret| secret)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// What a sender's headers must have.
#[derive(Clone)]
pub struct Proof {
    kind: u8,
    by: By,
}

#[derive(Clone)]
enum By {
    /// The SHA-256 of each secret.
    Secret(Vec<[u8; 32]>),
    /// The time since 1970.
    Digest { keys: Secrets, now: fn() -> Duration },
}

/// Why a header doesn't count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// Version 1 has no TLVs.
    #[error("its header is of version 1, which can't have one: let the sender write version 2")]
    Version1,
    /// The TLV is not there.
    #[error("its header has no TLV {0:#04x}: let the sender write it")]
    Missing(u8),
    /// More than one TLV of this type.
    #[error("its header has more than one TLV {0:#04x}")]
    Twice(u8),
    /// The value is another one.
    #[error("the value of TLV {0:#04x} is another one: compare the files at both ends")]
    Wrong(u8),
    /// The time of a digest is too far away.
    #[error(
        "the digest in TLV {kind:#04x} is {} s {} this host's time: compare the clocks of both hosts",
        .by.as_secs(), if *.is_old { "behind" } else { "ahead of" }
    )]
    Stale {
        /// The type.
        kind: u8,
        /// How far.
        by: Duration,
        /// It is in the past.
        is_old: bool,
    },
}

impl Proof {
    /// One of these secrets is the value of this TLV.
    pub fn secret(kind: u8, secrets: &Secrets) -> Self {
        Self::of_digests(kind, secrets.iter().map(hmac_sha256::Hash::hash).collect())
    }

    /// The same, of the secrets' SHA-256.
    pub fn of_digests(kind: u8, digests: Vec<[u8; 32]>) -> Self {
        Self { kind, by: By::Secret(digests) }
    }

    /// This TLV is the last one, and has a digest by one of these keys. `now`: the time since 1970.
    pub fn keyed(kind: u8, keys: Secrets, now: fn() -> Duration) -> Self {
        Self { kind, by: By::Digest { keys, now } }
    }

    /// The type of the TLV.
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// The SHA-256 of each secret; `None`: keyed digests.
    pub fn digests(&self) -> Option<&[[u8; 32]]> {
        match &self.by {
            By::Secret(digests) => Some(digests),
            By::Digest { .. } => None,
        }
    }

    /// Checks that a header has it.
    ///
    /// # Errors
    /// What it lacks.
    pub fn check(&self, header: &Header<'_>) -> Result<(), Unproved> {
        if header.version == Version::V1 {
            return Err(Unproved::Version1);
        }
        let mut values = header.tlvs.raw().filter(|(kind, _)| *kind == self.kind);
        let (_, value) = values.next().ok_or(Unproved::Missing(self.kind))?;
        if values.next().is_some() {
            return Err(Unproved::Twice(self.kind));
        }
        match &self.by {
            By::Secret(digests) => self.check_secret(value, digests),
            By::Digest { keys, now } => self.check_digest(header, keys, now()),
        }
    }

    fn check_secret(&self, value: &[u8], digests: &[[u8; 32]]) -> Result<(), Unproved> {
        // A longer one can't be right. To hash 64 KiB would cost the receiver more than the sender.
        if !SECRET_LEN.contains(&value.len()) {
            return Err(Unproved::Wrong(self.kind));
        }
        let digest = hmac_sha256::Hash::hash(value);
        self.is_one(digests.iter().map(|one| one.ct_eq(&digest)))
    }

    fn check_digest(&self, header: &Header<'_>, keys: &Secrets, now: Duration) -> Result<(), Unproved> {
        let wrong = Unproved::Wrong(self.kind);
        let last = header.tlvs.raw().last().filter(|(kind, value)| {
            *kind == self.kind && value.len() == DIGEST_LEN && header.bytes.ends_with(value)
        });
        let (_, value) = last.ok_or(wrong)?;
        let (time, _) = value.split_first_chunk::<8>().ok_or(wrong)?;
        let (signed, mac) = header.bytes.split_last_chunk::<DIGEST_MAC_LEN>().ok_or(wrong)?;
        self.is_one(keys.iter().map(|key| hmac_sha256::HMAC::mac(signed, key).ct_eq(mac)))?;
        let time = Duration::from_millis(u64::from_be_bytes(*time));
        let (by, is_old) = (now.abs_diff(time), time < now);
        if by > DIGEST_WINDOW {
            return Err(Unproved::Stale { kind: self.kind, by, is_old });
        }
        Ok(())
    }

    /// Looks at each one, so that the time does not tell which it was.
    fn is_one(&self, equal: impl Iterator<Item = Choice>) -> Result<(), Unproved> {
        let any = equal.fold(Choice::from(0), |any, one| any | one);
        if any.into() { Ok(()) } else { Err(Unproved::Wrong(self.kind)) }
    }
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proof({:#04x})", self.kind)
    }
}

/// A TLV of the headers that truepeer sends (`--send-tlv`).
#[derive(Clone)]
pub struct SentTlv {
    kind: u8,
    secret: Box<[u8]>,
    /// The time since 1970, of a keyed digest; `None`: the secret itself.
    now: Option<fn() -> Duration>,
}

/// What a [`SentTlv`] has as its value.
#[derive(Debug, Clone, Copy)]
pub enum SentValue<'a> {
    /// These bytes.
    Secret(&'a [u8]),
    /// A digest, at the header's end: this time in milliseconds, and [`SentTlv::mac`].
    Digest(u64),
}

impl SentTlv {
    /// The first of these secrets.
    pub fn secret(kind: u8, secrets: &Secrets) -> Self {
        Self { kind, secret: secrets.first().into(), now: None }
    }

    /// A digest by the first of these keys. `now`: the time since 1970.
    pub fn keyed(kind: u8, keys: &Secrets, now: fn() -> Duration) -> Self {
        Self { kind, secret: keys.first().into(), now: Some(now) }
    }

    /// The type.
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// The value.
    pub fn value(&self) -> SentValue<'_> {
        match self.now {
            None => SentValue::Secret(&self.secret),
            Some(now) => SentValue::Digest(u64::try_from(now().as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// The MAC over the part of a header before it.
    pub fn mac(&self, signed: &[u8]) -> [u8; DIGEST_MAC_LEN] {
        hmac_sha256::HMAC::mac(signed, &self.secret)
    }
}

impl fmt::Debug for SentTlv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SentTlv({:#04x})", self.kind)
    }
}
