//! The position of the header in a stream of datagrams. There are four dialects; the configuration selects
//! one.
//!
//! A receiver must not guess: in `first` and `standalone` a client's own datagram may look like a header, so
//! any client could forge one.
//!
//! | dialect | header | who sends so |
//! |---|---|---|
//! | `every` | v2, in each datagram (PROXY 2.2 as of 2026/04) | dnsdist, udppp, frp 0.64 to 0.66, truepeer |
//! | `first` | v2, in the first datagram of a flow | frp ≥ 0.67, NGINX ≥ 1.31.4, Sōzu |
//! | `standalone` | v2, alone or with payload, before bare datagrams | Cloudflare Spectrum |
//! | `spp` | Simple Proxy Protocol, 38 bytes, in each datagram; the answers carry it back | Cloudflare Spectrum, EdgeOne |

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The position of the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// In each datagram.
    #[default]
    Every,
    /// In the first datagram of a flow.
    First,
    /// Before the first datagram of a flow, or in it.
    Standalone,
    /// In each datagram, as Simple Proxy Protocol.
    Spp,
}

/// Text that is not a dialect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected every (dnsdist, udppp), first (frp since 0.67, NGINX), standalone (Cloudflare Spectrum) or spp (Simple Proxy Protocol)"
)]
pub struct ParseDialectError;

impl FromStr for Dialect {
    type Err = ParseDialectError;

    fn from_str(text: &str) -> Result<Self, ParseDialectError> {
        let mut all = [Self::Every, Self::First, Self::Standalone, Self::Spp].into_iter();
        all.find(|dialect| dialect.as_str() == text).ok_or(ParseDialectError)
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Dialect {
    /// Its name on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::First => "first",
            Self::Standalone => "standalone",
            Self::Spp => "spp",
        }
    }

    /// Whether a flow is identified by the sender's address once its header has come.
    #[must_use]
    pub const fn has_bare_datagrams(self) -> bool {
        matches!(self, Self::First | Self::Standalone)
    }

    /// The default for how long a flow may be silent. A flow with bare datagrams must be forgotten before the
    /// sender forgets it; otherwise a port that the sender reuses would be taken for the old client. Spectrum
    /// forgets after 30 s, frp 30 s after the backend's last answer (or its first datagram), whatever the
    /// client sends meanwhile.
    #[must_use]
    pub const fn default_silence(self) -> Duration {
        Duration::from_secs(if self.has_bare_datagrams() { 28 } else { 60 })
    }

    /// The same when truepeer is the sender: its flow must end before the receiver's; otherwise the receiver
    /// would refuse later datagrams without a header. Its port is not reused before the receiver has
    /// forgotten the flow, too.
    #[must_use]
    pub const fn default_silence_sending(self) -> Duration {
        Duration::from_secs(if self.has_bare_datagrams() { 20 } else { 60 })
    }
}
