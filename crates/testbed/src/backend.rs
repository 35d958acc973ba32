//! Backends that show one behaviour each. For truepeer they are unmodified servers: they don't understand the
//! PROXY protocol, and answer with the result of `getpeername`.
//!
//! A backend is a separate process (the test binary, started with other arguments), so that every way of
//! delivery can be applied to it, even a preloaded library. It writes a line to its standard output when it
//! accepts a connection, and one when the connection has ended:
//! ```text
//! 203.0.113.7:5000 accepted
//! 203.0.113.7:5000 eof 1048576
//! ```
//! The last word is the number of bytes that it has read. The middle one is `eof`, `reset`, or another event.
//! `Account` and `Counted` add the digest of these bytes.

mod serve;

use std::env;
use std::fmt::Display;
use std::process::ExitCode;

use anyhow::Context;

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;

/// The first argument that turns a test binary into a backend.
const AS_BACKEND: &str = "__backend";

/// What a backend does with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Sends back what it reads, until the end.
    Echo,
    /// Reads to the end, answers with [`crate::pattern::Digest::report`], ends.
    Digest,
    /// Like `Digest`, but reads 64 KiB every 5 ms into a small buffer.
    SlowDigest,
    /// Reads a line with a number, sends that many bytes of [`crate::pattern::Pattern`], ends.
    Source,
    /// Like `Source`, but sends 64 KiB every 5 ms.
    SlowSource,
    /// Sends first: `SSH-2.0-testbed ADDRESS:PORT`, CR LF; then echoes.
    Banner,
    /// Reads to the end, answers with the address and port from `getpeername`, ends.
    Who,
    /// Reads to the end, answers with both: `ADDRESS:PORT COUNT DIGEST`, ends.
    Account,
    /// The same, but the client does not end its direction first: its first 8 bytes are the number of all its
    /// bytes (big endian), and the answer comes after so many.
    Counted,
    /// Reads some bytes, then resets the connection.
    Reset,
    /// Accepts the connection, and neither reads nor writes.
    Hold,
}

impl Behaviour {
    const ALL: [(Behaviour, &'static str); 11] = [
        (Behaviour::Echo, "echo"),
        (Behaviour::Digest, "digest"),
        (Behaviour::SlowDigest, "slow-digest"),
        (Behaviour::Source, "source"),
        (Behaviour::SlowSource, "slow-source"),
        (Behaviour::Banner, "banner"),
        (Behaviour::Who, "who"),
        (Behaviour::Account, "account"),
        (Behaviour::Counted, "counted"),
        (Behaviour::Reset, "reset"),
        (Behaviour::Hold, "hold"),
    ];

    /// Starts a backend in the calling thread's network and waits until it listens on all `addresses`.
    pub fn start<A: Display>(self, bed: &Bed, addresses: &[A]) -> anyhow::Result<Running> {
        self.start_program(bed, addresses, |program| program)
    }

    /// The same; the caller can change how the program is run: `|program| program.in_netns(&host.netns)`.
    pub fn start_program<A: Display>(
        self,
        bed: &Bed,
        addresses: &[A],
        adjust: impl FnOnce(Program) -> Program,
    ) -> anyhow::Result<Running> {
        let backend = adjust(self.program(addresses)?).start(bed)?;
        for address in addresses {
            backend.wait_listening(address)?;
        }
        Ok(backend)
    }

    /// The command line of such a backend, for a way of delivery that starts it.
    pub fn program<A: Display>(self, addresses: &[A]) -> anyhow::Result<Program> {
        let exe = env::current_exe().context("the path of this program")?;
        let addresses = addresses.iter().map(ToString::to_string);
        Ok(Program::new(exe).arg(AS_BACKEND).arg(self.name()).args(addresses))
    }

    fn name(self) -> &'static str {
        Behaviour::ALL.iter().find(|(behaviour, _)| *behaviour == self).map_or("", |(_, name)| name)
    }

    fn from_name(name: &str) -> Option<Behaviour> {
        Behaviour::ALL.iter().find(|(_, own)| *own == name).map(|(behaviour, _)| *behaviour)
    }
}

/// If this process was started as a backend, runs it to its end. Call it first in each `main`.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = env::args().skip(1);
    if args.next().as_deref() != Some(AS_BACKEND) {
        return None;
    }
    let name = args.next().unwrap_or_default();
    let outcome = match Behaviour::from_name(&name) {
        Some(behaviour) => serve::run(behaviour, args.collect()),
        None => Err(anyhow::anyhow!("no backend {name:?}")),
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("backend: {error:#}");
            ExitCode::FAILURE
        }
    })
}
