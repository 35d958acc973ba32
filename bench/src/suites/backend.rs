//! The backends of the loads.

use clap::ValueEnum;

/// What a backend does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Sends back what it reads. Connections are long and are divided evenly among the threads.
    Echo,
    /// The same, but connections are short and stay with the accepting thread.
    EchoShort,
    /// Reads [`crate::pattern::Pattern::bulk`] to its end.
    Sink,
    /// Writes it until the other side has ended its direction.
    Source,
    /// Sends each datagram back.
    Datagrams,
    /// Serves the page by HTTPS.
    Origin(OriginKind),
}

/// The origin of the HTTPS loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OriginKind {
    /// NGINX, as in the guide that these loads follow.
    Nginx,
    /// This program: it leaves more of the cores to the proxies.
    Lean,
}

impl Kind {
    /// Those that this program can be.
    const OWN: [(Kind, &'static str); 6] = [
        (Kind::Echo, "echo"),
        (Kind::EchoShort, "echo-short"),
        (Kind::Sink, "sink"),
        (Kind::Source, "source"),
        (Kind::Datagrams, "datagrams"),
        (Kind::Origin(OriginKind::Lean), "origin"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Kind::OWN.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Kind> {
        Kind::OWN.iter().find(|(_, own)| *own == name).map(|(kind, _)| *kind)
    }
}
