//! Settings that an operator could change, as values. The front end names the options of the command that was
//! typed.

use std::fmt;

use truepeer_policy::Refusal;

/// A setting that has to do with what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// What the policy has refused; each refusal has its own setting.
    Refusal(Refusal),
    /// A header is longer than it may be.
    HeaderTooLong,
    /// A sender claims a special address, and is believed because of a setting.
    SpecialClaimAllowed,
    /// The client's address and port are in use by another session.
    TupleInUse,
    /// A program holds the client's port, and no other port may be taken.
    PortHeld,
    /// The backend sees another port than the client's.
    PortReplaced,
    /// A datagram whose header is not where it was looked for.
    Dialect,
    /// A bare datagram where only the first one of a flow has a header.
    FlowWithoutHeader,
    /// A flow was forgotten before its sender forgot it.
    FlowForgotten,
    /// A flow was forgotten to make room.
    FlowEvicted,
    /// A client has as many connections as it may have.
    MaxPerClient,
    /// A client is slower than it may be.
    MinRate,
    /// A request's body is longer than it may be.
    MaxBody,
    /// A message's head is longer than it may be.
    MaxHead,
    /// A message's head has more fields than it may have.
    MaxFields,
    /// A request's method is not allowed.
    Methods,
    /// A PROXY header came where TLS was expected.
    HeaderBeforeTls,
    /// A client's certificate is of an authority that is not trusted.
    ClientAuthority,
    /// A backend's certificate is of an authority that is not trusted.
    OriginAuthority,
    /// No cipher suite in common.
    Suites,
    /// A client asks for a host that no site has.
    UnknownHost,
    /// No TLS version in common.
    MinVersion,
    /// A backend wants none of the application protocols that it was offered.
    OriginProtocols,
    /// A backend does not speak HTTP/2.
    OriginHttp2,
    /// A backend does not speak HTTP/1.1.
    OriginHttp1,
}

/// Puts a hint into words. `None`: the command has no such setting.
pub type Advise = fn(&Hint) -> Option<String>;

/// A text, and the advice after it.
#[derive(Clone)]
pub struct Advised<'a> {
    pub(crate) text: &'a dyn fmt::Display,
    pub(crate) advice: Option<String>,
}

impl fmt::Display for Advised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)?;
        self.advice.iter().try_for_each(|advice| write!(f, "; {advice}"))
    }
}
