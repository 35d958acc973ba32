//! Notices that the devices or the addresses of a network namespace have changed, for `attach --watch`
//! and `[[attach]]`.
//!
//! A process does this, because the kernel has no place where a program could be attached to devices that
//! don't exist yet. It sleeps until rtnetlink tells of a change. If it is killed, what is attached stays.

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use truepeer_bpf::{Device, Place, Traffic, status};

use super::devices;
use super::target::{self, Found};
use truepeer_config::spec::{AttachSpec, AttachTarget, Port};
use truepeer_routes::netlink::{Netlink, Notices};
use truepeer_routes::options::local_addresses;

/// A new device is up, has its address or is a port of a bridge some moments after it was made: one look is
/// enough for all of that.
const SETTLE: Duration = Duration::from_millis(100);

/// How often it looks whether a name leads to another network namespace.
const LOOK: Duration = Duration::from_secs(2);

/// The longest pause in seconds after failures to attach again; the first one is a second.
const MOST: u32 = 5;

/// The time until the next look for a container or network namespace that is gone since then. Short at first,
/// because a restart is quick.
pub(super) fn pause_after(gone: Instant) -> Duration {
    match gone.elapsed().as_secs() {
        0..10 => Duration::from_millis(200),
        10..60 => Duration::from_secs(1),
        _ => Duration::from_secs(5),
    }
}

/// The failure that was told last, so that the same one is told once.
#[derive(Default)]
pub(super) struct LastFailure(String);

impl LastFailure {
    /// The words of a failure; `None`: they were told last.
    pub(super) fn news(&mut self, error: &anyhow::Error) -> Option<String> {
        let words = format!("{error:#}");
        (mem::replace(&mut self.0, words.clone()) != words).then_some(words)
    }
}

pub(super) struct Network {
    target: AttachTarget,
    place: Found,
    /// Of a container's first process; readable when it has ended.
    process: Option<OwnedFd>,
    names: Vec<String>,
    notices: Notices,
    known: State,
    /// How often it has failed in a row to attach to what has changed.
    failures: u32,
    last_failure: LastFailure,
}

/// The devices and addresses for which an attachment was made.
#[derive(PartialEq, Eq)]
struct State {
    devices: Vec<(u32, Device)>,
    addresses: BTreeSet<IpAddr>,
}

impl Network {
    /// To be called before attaching: a change meanwhile is noticed.
    pub(super) fn of(target: &AttachTarget, names: Vec<String>) -> Result<Self> {
        let place = target::find(target)?;
        let process = match target {
            AttachTarget::Container { name, .. } => {
                let process = place.process().and_then(open_process);
                Some(process.with_context(|| format!("--container {name}: it has just ended"))?)
            }
            _ => None,
        };
        let notices = place.run(|_| Notices::open().context("--watch"))?;
        let known = place.run(|_| State::read(&names))?;
        let (target, last_failure) = (target.clone(), LastFailure::default());
        Ok(Self { target, place, process, names, notices, known, failures: 0, last_failure })
    }

    /// Whether the name still leads to this network namespace. A container that is started again, and a name
    /// that is deleted and added, have another one.
    pub(super) fn is_current(&self) -> bool {
        match &self.process {
            Some(process) => !is_ready(process),
            None => self.place.is_still(&self.target),
        }
    }

    /// When to call [`Self::is_current`] and [`Self::follow`] without a notice.
    pub(super) fn pause(&self) -> Option<Duration> {
        let again = (self.failures > 0).then(|| Duration::from_secs(self.failures.min(MOST).into()));
        let is_name = matches!(self.target, AttachTarget::Netns(_)) && self.place.process().is_none();
        let look = is_name.then_some(LOOK);
        again.into_iter().chain(look).min()
    }

    /// Whether it has failed to attach to what has changed.
    pub(super) fn is_pending(&self) -> bool {
        self.failures > 0
    }

    /// To be called after a notice, which may be about something else, and after a pause while it is pending.
    /// Attaches by `put` to what has changed. `false`: none of the ports is attached any more, so another
    /// command has taken them out.
    ///
    /// # Errors
    /// It can't attach to what has changed; what was attached before stays. `Ok(true)` for an error that the
    /// last call had, too.
    pub(super) fn follow(&mut self, args: &AttachSpec, put: impl FnOnce() -> Result<()>) -> Result<bool> {
        thread::sleep(SETTLE);
        self.notices.forget();
        let followed = self.attach_again(args, put);
        let Err(error) = &followed else {
            (self.failures, self.last_failure) = (0, LastFailure::default());
            return followed;
        };
        self.failures = self.failures.saturating_add(1);
        if self.last_failure.news(error).is_none() { Ok(true) } else { followed }
    }

    fn attach_again(&mut self, args: &AttachSpec, put: impl FnOnce() -> Result<()>) -> Result<bool> {
        let now = self.place.run(|_| State::read(&self.names))?;
        if now == self.known {
            return Ok(true);
        }
        if !self.place.run(|_| is_attached(args))? {
            return Ok(false);
        }
        put()?;
        // Not before: there may be no further notice of what has changed.
        self.known = now;
        Ok(true)
    }

    /// Readable when there is a notice, and when the container's first process has ended.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.notices.as_fd()).chain(self.process.as_ref().map(AsFd::as_fd))
    }
}

impl State {
    fn read(names: &[String]) -> Result<Self> {
        Ok(Self {
            devices: devices::numbered(names)?,
            addresses: local_addresses(&mut Netlink::open()?)?.into_iter().collect(),
        })
    }
}

/// Whether one of its ports is attached.
fn is_attached(spec: &AttachSpec) -> Result<bool> {
    let place = Place::here(&super::pins(spec.place.pins.as_deref(), false)?)?;
    let all = || spec.port.iter().flat_map(|ports| &ports.0);
    Ok(status(&place)?.is_some_and(|status| {
        status.ports.iter().filter(|port| !port.draining).any(|port| {
            all().any(|own| match (*own, port.traffic) {
                (Port::Tcp(own), Traffic::Tcp(_)) => port.ports.contains(&own),
                (Port::Udp { from, .. }, Traffic::Udp(..)) => port.ports.contains(&from),
                _ => false,
            })
        })
    }))
}

/// `None`: it has ended.
pub(super) fn open_process(process: u32) -> Option<OwnedFd> {
    let process = Pid::from_raw(process.try_into().ok()?)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
}

fn is_ready(descriptor: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
