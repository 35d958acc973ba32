//! Sessions that have exchanged one byte (or one page) and are idle: the cost of one more.

use std::io::{Read, Write};

use anyhow::Context;
use socket2::Socket;

use crate::clients::{Clients, v1_header};
use crate::contestant::Stand;
use crate::link;
use crate::measure::memory::{Footprint, kernel_bytes, settle};
use crate::metric::{Metric, Sample};
use crate::suites::Scale;

/// After this many sessions the contestant is measured, in case it fails later.
const STEP: usize = 1000;

/// The measured values at one moment.
struct Look {
    sessions: usize,
    footprint: Footprint,
    kernel_bytes: u64,
}

pub(super) fn run(stand: &Stand, scale: &Scale) -> anyhow::Result<Sample> {
    measure(stand, scale.idle, |clients| open(stand, clients), |session| exchange(session).is_ok())
}

/// Measures `count` sessions. `open` opens them, and `is_alive` checks that they still exist.
pub(super) fn measure<S>(
    stand: &Stand,
    count: usize,
    mut open: impl FnMut(&mut Clients) -> anyhow::Result<S>,
    is_alive: impl Fn(&mut S) -> bool,
) -> anyhow::Result<Sample> {
    let mut clients = Clients::share(stand.at.entrance, 0, 1);
    // Open one session before the first measurement: one-time costs belong to no session.
    let _first = open(&mut clients)?;
    settle()?;
    let mut sessions: Vec<S> = Vec::with_capacity(count);
    let before = Look::now(stand, 0)?;
    let mut after = None;
    let mut sample = Sample::default();
    while sessions.len() < count {
        match open(&mut clients) {
            Ok(session) => sessions.push(session),
            Err(error) => {
                sample.flaw(format!("had {} idle sessions, then: {error:#}", sessions.len()));
                break;
            }
        }
        if sessions.len().is_multiple_of(STEP) || sessions.len() == count {
            after = Some(Look::now(stand, sessions.len())?);
        }
    }
    after.with_context(|| sample.flaws.join(", "))?.put_since(&before, &mut sample);
    let all = sessions.len();
    let alive = sessions.iter_mut().map(is_alive).filter(|is_alive| *is_alive).count();
    if alive < all {
        sample.flaw(format!("{} of {all} sessions did not survive", all - alive));
    }
    Ok(sample)
}

impl Look {
    fn now(stand: &Stand, sessions: usize) -> anyhow::Result<Self> {
        Ok(Self { sessions, footprint: Footprint::of(stand.groups()), kernel_bytes: kernel_bytes()? })
    }

    fn put_since(&self, before: &Self, sample: &mut Sample) {
        let each = |before: u64, after: u64| (after as f64 - before as f64) / self.sessions as f64;
        let (footprint, old) = (self.footprint, before.footprint);
        sample.put(Metric::Resident, each(old.resident_bytes, footprint.resident_bytes) / 1024.0);
        sample.put(Metric::Kernel, each(before.kernel_bytes, self.kernel_bytes) / 1024.0);
        sample.put(Metric::Descriptors, each(old.descriptors, footprint.descriptors));
    }
}

fn open(stand: &Stand, clients: &mut Clients) -> anyhow::Result<Socket> {
    let (client, sender) = clients.take();
    let header = if stand.header { v1_header(client, stand.at.entrance)? } else { Vec::new() };
    let socket = link::connect(sender, stand.at.entrance, &header)?;
    exchange(&socket).context("the first byte")?;
    Ok(socket)
}

fn exchange(mut socket: &Socket) -> std::io::Result<()> {
    socket.write_all(b"?")?;
    socket.read_exact(&mut [0])
}
