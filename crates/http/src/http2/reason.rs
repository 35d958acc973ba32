//! Error codes.

use std::fmt;

/// The code of RST_STREAM and GOAWAY (RFC 9113 section 7). Unknown ones are passed on as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal,)+) => {
        impl Reason {
            $($(#[doc = $doc])+ pub const $name: Self = Self($code);)+

            /// Its name in RFC 9113.
            fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)+ _ => None }
            }
        }
    };
}

reasons! {
    /// No error.
    NO_ERROR = 0,
    /// The protocol was violated.
    PROTOCOL_ERROR = 1,
    /// The sender has failed.
    INTERNAL_ERROR = 2,
    /// More data than the window allows.
    FLOW_CONTROL_ERROR = 3,
    /// SETTINGS were not acknowledged in time.
    SETTINGS_TIMEOUT = 4,
    /// A frame for a stream that its sender has ended.
    STREAM_CLOSED = 5,
    /// A frame of a wrong size.
    FRAME_SIZE_ERROR = 6,
    /// The stream was not processed.
    REFUSED_STREAM = 7,
    /// The stream is not needed any more.
    CANCEL = 8,
    /// A header block can't be decoded.
    COMPRESSION_ERROR = 9,
    /// The connection of a CONNECT has failed.
    CONNECT_ERROR = 10,
    /// The other end causes too much work.
    ENHANCE_YOUR_CALM = 11,
    /// TLS is not good enough.
    INADEQUATE_SECURITY = 12,
    /// The request must be sent over HTTP/1.1.
    HTTP_1_1_REQUIRED = 13,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error code {:#x}", self.0),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The other end violates the protocol.
    Protocol(Reason),
    /// It floods the connection with frames that carry no request, or with a head without end.
    Excess,
    /// A client cancels most of its requests ("rapid reset", CVE-2023-44487).
    RapidReset,
}

impl Fault {
    /// The code that GOAWAY tells.
    #[must_use]
    pub fn reason(self) -> Reason {
        match self {
            Self::Protocol(reason) => reason,
            Self::Excess | Self::RapidReset => Reason::ENHANCE_YOUR_CALM,
        }
    }
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self::Protocol(reason)
    }
}
