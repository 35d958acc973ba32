//! Notices that the devices or the addresses of a network namespace have changed, for `attach --watch`.
//!
//! A process does this, because the kernel has no place where a program could be attached to devices that
//! don't exist yet. It sleeps until rtnetlink tells of a change. If it is killed, what is attached stays.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use truepeer_bpf::Device;

use super::devices;
use super::target::{self, Found};
use truepeer_config::spec::AttachTarget;
use truepeer_routes::netlink::{Netlink, Notices};
use truepeer_routes::options::local_addresses;

/// A new device is up, has its address or is a port of a bridge some moments after it was made: one look is
/// enough for all of that.
const SETTLE: Duration = Duration::from_millis(100);

pub(super) struct Network {
    place: Found,
    names: Vec<String>,
    notices: Notices,
    known: State,
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
        let notices = place.run(|_| Notices::open().context("--watch"))?;
        let known = place.run(|_| State::read(&names))?;
        Ok(Self { place, names, notices, known })
    }

    /// To be called after a notice. It may be about something else.
    pub(super) fn has_changed(&mut self) -> Result<bool> {
        thread::sleep(SETTLE);
        self.notices.forget();
        let now = self.place.run(|_| State::read(&self.names))?;
        let has_changed = now != self.known;
        self.known = now;
        Ok(has_changed)
    }

    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        self.place.run(|_| work())
    }
}

impl AsFd for Network {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
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
