//! The published vectors: headers and the required result of decoding each, read from `vectors/*.json`. One
//! table for every parser (this crate's, the kernel programs', the preloaded library's, those of other
//! projects), and the seed of the fuzz corpus. Only with the feature `vectors`.
//!
//! `vectors/README.md` describes the files.

extern crate std;

use core::net::SocketAddr;
use std::boxed::Box;
use std::string::String;
use std::sync::LazyLock;
use std::vec::Vec;

use serde::Deserialize;

use crate::error::DecodeErrorKind;
use crate::header::Transport;

/// The `format` of the files that this crate reads.
const FORMAT: u32 = 1;

/// Bytes as they arrive on a new connection, decoded with [`crate::Limits::default`].
#[derive(Debug, Clone, Copy)]
pub struct Vector {
    /// A description of the bytes, and the program that failed on them, if one did; unique.
    pub name: &'static str,
    /// The received bytes: a header and perhaps data after it.
    pub bytes: &'static [u8],
    /// The sentence of the specification that decides.
    pub rule: &'static Rule,
    /// What the specification's letter demands, where truepeer decides otherwise on purpose.
    pub letter: Option<Letter>,
    /// The required result.
    pub expect: Expect,
}

/// The required contents of a decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Incomplete, and at least this many bytes are missing.
    NeedMore(usize),
    /// Refused, for this reason, at this byte.
    Refused(DecodeErrorKind, usize),
    /// LOCAL; the header's length.
    Local(usize),
    /// Accepted without addresses; the header's length.
    Unspecified(usize),
    /// A UNIX socket's paths; the header's length.
    Unix(Transport, usize),
    /// Source and destination; the header's length.
    Inet(Transport, SocketAddr, SocketAddr, usize),
}

/// The specification's own verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Letter {
    /// The receiver has to refuse it.
    Refused,
    /// The text leaves it open.
    Either,
}

/// How binding a rule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A receiver or sender that does otherwise breaks the protocol.
    Must,
    /// Recommended.
    Should,
    /// Left to the implementation.
    May,
}

/// A sentence of the specification.
#[derive(Debug, Deserialize)]
pub struct Rule {
    /// Its name in the files.
    pub id: &'static str,
    /// The section that it is in.
    pub section: &'static str,
    /// How binding it is.
    pub level: Level,
    /// Word by word. An ellipsis joins two sentences.
    pub quote: String,
}

/// All vectors.
pub fn all() -> impl Iterator<Item = &'static Vector> {
    without_extensions().chain(TLV.iter())
}

/// The vectors for a parser that leaves extensions alone: it neither walks TLVs nor verifies checksums.
pub fn without_extensions() -> impl Iterator<Item = &'static Vector> {
    [&V1, &V2, &PUBLISHED].into_iter().flat_map(|group| group.iter())
}

/// The rule of this name.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

static V1: LazyLock<Vec<Vector>> = LazyLock::new(|| read(include_str!("../../../vectors/v1.json")));
static V2: LazyLock<Vec<Vector>> = LazyLock::new(|| read(include_str!("../../../vectors/v2.json")));
static TLV: LazyLock<Vec<Vector>> = LazyLock::new(|| read(include_str!("../../../vectors/tlv.json")));
static PUBLISHED: LazyLock<Vec<Vector>> =
    LazyLock::new(|| read(include_str!("../../../vectors/published.json")));
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| file(include_str!("../../../vectors/rules.json")).rules);

/// A file, as written.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct File {
    format: u32,
    #[serde(default)]
    vectors: Vec<Written>,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Written {
    name: &'static str,
    text: Option<String>,
    hex: Option<&'static str>,
    rule: &'static str,
    letter: Option<Letter>,
    expect: WrittenExpect,
}

#[derive(Deserialize)]
#[serde(tag = "result", rename_all = "lowercase")]
enum WrittenExpect {
    Incomplete { missing: usize },
    Refused { reason: String, at: usize },
    Local { length: usize },
    Unspecified { length: usize },
    Unix { transport: WrittenTransport, length: usize },
    Client { transport: WrittenTransport, source: SocketAddr, destination: SocketAddr, length: usize },
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum WrittenTransport {
    Stream,
    Dgram,
}

/// The files are part of the program, and its tests read each of them: an error is a defect of the build.
fn file(json: &'static str) -> File {
    let file: File = serde_json::from_str(json).expect("vectors/*.json is JSON of this form");
    assert!(file.format == FORMAT, "vectors/*.json: format {}, not {FORMAT}", file.format);
    file
}

fn read(json: &'static str) -> Vec<Vector> {
    file(json).vectors.into_iter().map(Written::into_vector).collect()
}

impl Written {
    fn into_vector(self) -> Vector {
        let name = self.name;
        let bytes = match (self.text, self.hex) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(hex)) => of_hex(hex).unwrap_or_else(|| panic!("{name}: not hexadecimal")),
            _ => panic!("{name}: expected either text or hex"),
        };
        let rule = rule(self.rule).unwrap_or_else(|| panic!("{name}: no rule {}", self.rule));
        Vector {
            name,
            bytes: Box::leak(bytes.into_boxed_slice()),
            rule,
            letter: self.letter,
            expect: self.expect.into_expect(name),
        }
    }
}

impl WrittenExpect {
    fn into_expect(self, name: &str) -> Expect {
        match self {
            Self::Incomplete { missing } => Expect::NeedMore(missing),
            Self::Refused { reason, at } => {
                let mut kinds = DecodeErrorKind::ALL.into_iter();
                let kind = kinds.find(|kind| kind.as_str() == reason);
                Expect::Refused(kind.unwrap_or_else(|| panic!("{name}: no reason {reason}")), at)
            }
            Self::Local { length } => Expect::Local(length),
            Self::Unspecified { length } => Expect::Unspecified(length),
            Self::Unix { transport, length } => Expect::Unix(transport.into(), length),
            Self::Client { transport, source, destination, length } => {
                Expect::Inet(transport.into(), source, destination, length)
            }
        }
    }
}

impl From<WrittenTransport> for Transport {
    fn from(written: WrittenTransport) -> Self {
        match written {
            WrittenTransport::Stream => Self::Stream,
            WrittenTransport::Dgram => Self::Dgram,
        }
    }
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some((digit(high)? << 4) | digit(low)?));
    bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
}
