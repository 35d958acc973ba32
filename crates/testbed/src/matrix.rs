//! One matrix: behaviours × ways of delivery. A behaviour is written once, against [`Deliver`]; each way that
//! truepeer delivers by runs all of them. A test binary asks for a column:
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
mod proxy;
mod run;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

pub use attach::ByAttach;
pub use proxy::ByProxy;
pub use run::ByRun;

use crate::{Bed, Behaviour, Running, Test, client, skip};

/// A way of delivery: how the backend comes to see the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A relay in between, bound to the client's address.
    Proxy,
    /// Programs in the kernel.
    Attach,
    /// Something between the program and its `accept`.
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

/// Puts a backend behind truepeer, in the calling thread's network.
pub trait Deliver: Send + Sync {
    /// Which way this is.
    fn way(&self) -> Way;

    /// The first part of the tests' names: the way, and by whom where that differs.
    fn column(&self) -> String {
        self.way().name().to_owned()
    }

    /// What the machine must have for it.
    fn needs(&self, test: Test) -> Test {
        test
    }

    /// Why a case says nothing about this way.
    fn inapplicable(&self, _case: &str) -> Option<&'static str> {
        None
    }

    /// Starts a backend that reaches IPv4 and IPv6 clients, and truepeer for it, with further options of
    /// truepeer's (`--header-timeout`, `1s`). Senders on loopback may send; everything is ready on return.
    fn put_behind(&self, bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Delivered>;
}

/// A backend behind truepeer.
#[derive(Debug)]
pub struct Delivered {
    /// Where senders connect over IPv4.
    pub v4: SocketAddr,
    /// Where senders connect over IPv6.
    pub v6: SocketAddr,
    /// truepeer, if the way has a process; declared before the backend, so that it ends first and its sessions end in order.
    pub truepeer: Option<Running>,
    /// The backend, whose log says what it saw; where truepeer has started it, with truepeer in front and in the log.
    pub backend: Running,
}

impl Delivered {
    /// A connection on which nothing was sent yet.
    fn knock(&self) -> anyhow::Result<TcpStream> {
        client::connect(self.v4)
    }

    /// A connection whose header, already sent, names this client.
    fn session(&self, client: SocketAddr) -> anyhow::Result<TcpStream> {
        let mut stream = self.knock()?;
        stream.write_all(&header_of(client)?)?;
        Ok(stream)
    }

    /// A header and what comes behind it, written at once and half-closed; gives the answer.
    fn ask(&self, header: &[u8], data: &[u8]) -> anyhow::Result<String> {
        client::ask(&mut self.knock()?, &[header, data].concat())
    }
}

/// Clients (RFC 5737, RFC 3849: for documentation, so nobody's).
const CLIENT4: &str = "203.0.113.7:5000";
const CLIENT6: &str = "[2001:db8::7]:5000";
/// Where headers say that they wanted to go.
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

/// `cases![f, g]`: a [`Case`] for each function, named like it.
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
        headers::CASES,
        optional::CASES,
        endings::CASES,
        bulk::CASES,
        crowds::CASES,
        mixture::CASES,
        hostile::CASES,
    ]
    .concat();
    cases.into_iter().map(|case| test(case, Arc::clone(&deliver))).collect()
}

fn test(case: Case, deliver: Arc<dyn Deliver>) -> Test {
    let name = format!("{}::{}", deliver.column(), case.name);
    let needing = Arc::clone(&deliver);
    let run = move |bed: &Bed| match deliver.inapplicable(case.name) {
        Some(reason) => skip(reason),
        None => (case.run)(bed, deliver.as_ref()),
    };
    needing.needs((case.adjust)(Test::new(name, run)))
}
