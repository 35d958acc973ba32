//! The matrix of behaviours × ways of delivery. A behaviour is written once, against [`Deliver`], and runs
//! for each of truepeer's ways of delivery. A test binary runs one column:
//!
//! ```no_run
//! # let exe = "target/debug/truepeer";
//! use truepeer_testbed::matrix::{self, ByProxy};
//! let tests = matrix::tests(ByProxy::new(exe)); // exe: env!("CARGO_BIN_EXE_truepeer")
//! ```

mod attach;
mod bulk;
mod crowds;
mod endings;
mod headers;
mod hostile;
mod identity;
mod mixture;
mod optional;
mod proofs;
mod proxy;
mod run;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

pub use attach::{ByAttach, mount_bpf_in_place};
pub use proxy::ByProxy;
pub use run::ByRun;

use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client;
use crate::harness::Test;
use crate::running::Running;
use crate::skip::skip;

/// A way of delivery: how the backend gets to see the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A relay in between, bound to the client's address.
    Proxy,
    /// Programs in the kernel.
    Attach,
    /// A library or supervisor between the program and its `accept`.
    Run,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Proxy => "proxy",
            Way::Attach => "attach",
            Way::Run => "run",
        }
    }
}

/// Starts a backend behind truepeer, in the calling thread's network namespace.
pub trait Deliver: Send + Sync {
    /// The way.
    fn way(&self) -> Way;

    /// The first part of the tests' names: the way, and the user if that varies.
    fn column(&self) -> String {
        self.way().name().to_owned()
    }

    /// The requirements on the machine.
    fn needs(&self, test: Test) -> Test {
        test
    }

    /// Why a case doesn't apply to this way, if it doesn't.
    fn inapplicable(&self, _case: &str) -> Option<&'static str> {
        None
    }

    /// Checks the logs after a case has passed.
    ///
    /// # Errors
    /// What they lack.
    fn verify(&self, _bed: &Bed, _case: &str) -> anyhow::Result<()> {
        Ok(())
    }

    /// Starts a backend that serves IPv4 and IPv6 clients, and truepeer for it, with additional truepeer
    /// options (`--header-timeout`, `1s`). Senders on loopback are admitted. Everything is ready on
    /// return.
    fn put_behind(&self, bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Delivered>;
}

/// A backend behind truepeer.
#[derive(Debug)]
pub struct Delivered {
    /// The address that senders connect to over IPv4.
    pub v4: SocketAddr,
    /// The address that senders connect to over IPv6.
    pub v6: SocketAddr,
    /// truepeer, if the way has a process. Declared before the backend so that it ends first, and its
    /// sessions end in order.
    pub truepeer: Option<Running>,
    /// The backend. Its log says what it saw. If truepeer started it, this is truepeer's process and the log
    /// has both outputs.
    pub backend: Running,
}

impl Delivered {
    /// A connection on which nothing has been sent.
    fn knock(&self) -> anyhow::Result<TcpStream> {
        client::connect(self.v4)
    }

    /// A connection on which a header that names this client has been sent.
    fn session(&self, client: SocketAddr) -> anyhow::Result<TcpStream> {
        let mut stream = self.knock()?;
        stream.write_all(&header_of(client)?)?;
        Ok(stream)
    }

    /// Writes a header and the data after it at once, ends the sending direction, and returns the answer.
    fn ask(&self, header: &[u8], data: &[u8]) -> anyhow::Result<String> {
        client::ask(&mut self.knock()?, &[header, data].concat())
    }
}

/// Clients (RFC 5737, RFC 3849: addresses for documentation, so no host has them).
const CLIENT4: &str = "203.0.113.7:5000";
const CLIENT6: &str = "[2001:db8::7]:5000";
/// The destinations in the headers.
const DESTINATION4: &str = "192.0.2.1:443";
const DESTINATION6: &str = "[2001:db8::1]:443";

/// A v2 header for a client of either family.
fn header_of(client: SocketAddr) -> anyhow::Result<Vec<u8>> {
    client::v2(client, if client.is_ipv4() { DESTINATION4 } else { DESTINATION6 })
}

/// One behaviour, by name.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    run: fn(&Bed, &dyn Deliver) -> anyhow::Result<()>,
    adjust: fn(Test) -> Test,
}

impl Case {
    const fn new(name: &'static str, run: fn(&Bed, &dyn Deliver) -> anyhow::Result<()>) -> Case {
        Case { name, run, adjust: |test| test }
    }

    const fn adjusted(self, adjust: fn(Test) -> Test) -> Case {
        Case { adjust, ..self }
    }
}

/// `cases![f, g]`: a [`Case`] for each function, with the function's name.
macro_rules! cases {
    ($($function:ident),* $(,)?) => {
        &[$(Case::new(stringify!($function), $function)),*]
    };
}
use cases;

/// All behaviours for one way, named `proxy::half_close_reaches_the_backend`.
pub fn tests(deliver: impl Deliver + 'static) -> Vec<Test> {
    let deliver: Arc<dyn Deliver> = Arc::new(deliver);
    let cases = [
        identity::CASES,
        identity::CASES_WITH_NGINX,
        headers::CASES,
        optional::CASES,
        endings::CASES,
        bulk::CASES,
        crowds::CASES,
        mixture::CASES,
        hostile::CASES,
        proofs::CASES,
    ]
    .concat();
    cases.into_iter().map(|case| test(case, Arc::clone(&deliver))).collect()
}

fn test(case: Case, deliver: Arc<dyn Deliver>) -> Test {
    let name = format!("{}::{}", deliver.column(), case.name);
    let needing = Arc::clone(&deliver);
    let run = move |bed: &Bed| match deliver.inapplicable(case.name) {
        Some(reason) => skip(reason),
        None => {
            (case.run)(bed, deliver.as_ref())?;
            deliver.verify(bed, case.name)
        }
    };
    needing.needs((case.adjust)(Test::new(name, run)))
}
