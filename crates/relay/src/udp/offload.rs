//! The kernel's programs for flows, as all workers share them, and the paths that they are told.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use truepeer_splice::{Reason, Ways};
use truepeer_sys::udp::{self, disable_gro};
use truepeer_udp_offload::{Ends, FlowTable, Path};

use crate::listener::Listener;

/// The time between two looks at what the kernel has sent on. A flow is forgotten so much later at most.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// The most paths that are remembered.
const PATHS: usize = 4096;

/// The kernel's programs for flows, for all workers.
#[derive(Debug, Clone)]
pub struct FlowOffload(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Arc<FlowTable>,
    ways: Arc<Ways>,
    /// How often the ways of packets have changed.
    changes: AtomicU64,
}

impl FlowOffload {
    /// With a thread that asks how the ways of packets change; it ends with the last clone. `ways`: of UDP.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(table: Arc<FlowTable>, ways: Arc<Ways>) -> io::Result<Self> {
        let shared = Arc::new(Shared { table, ways, changes: AtomicU64::new(0) });
        let seen = Arc::downgrade(&shared);
        let watch = move || {
            while let Some(shared) = seen.upgrade() {
                shared.look();
                drop(shared);
                thread::sleep(LOOK);
            }
        };
        thread::Builder::new().name("ways".into()).spawn(watch)?;
        Ok(Self(shared))
    }

    /// Has the programs learn by which devices answers of this socket leave, and see each of its datagrams.
    pub(super) fn add_listener(&self, socket: &OwnedFd, listener: &Listener) {
        // If it fails, answers go on through user space.
        let _ = self.0.table.add_listener(socket.as_fd());
        let settings = &listener.rules.settings;
        let have_headers = settings.udp.as_ref().is_some_and(|udp| !udp.dialect.has_bare_datagrams());
        if have_headers && settings.splice_after.is_some() {
            // The programs can't read merged headers. On older kernels there is nothing to disable.
            let _ = disable_gro(socket.as_fd());
        }
    }

    pub(super) fn table(&self) -> &Arc<FlowTable> {
        &self.0.table
    }

    pub(super) fn ways(&self) -> &Ways {
        &self.0.ways
    }

    /// How often the ways of packets have changed.
    pub(super) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// Err: why a flow between these ends stays.
    pub(super) fn may_leave(&self, ends: &Ends) -> Result<(), Reason> {
        let all = [ends.sender, ends.listener, ends.client, ends.backend];
        self.0.ways.may_offload_from(&all, ends.sender_by).map_err(|stays| stays.reason())
    }
}

impl Shared {
    fn look(&self) {
        if self.ways.have_changed() {
            self.table.leave_out(&self.ways.new_ports());
            self.table.forget_senders();
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// From listeners to senders, and when they were read.
#[derive(Debug, Default)]
pub(super) struct Paths(HashMap<(IpAddr, IpAddr), (Path, Instant)>);

impl Paths {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Those to sender and backend. `None`: there is no route to one of them.
    pub(super) fn of(
        &mut self,
        table: &FlowTable,
        ends: &Ends,
        upstream: BorrowedFd<'_>,
        now: Instant,
    ) -> Option<[Path; 2]> {
        Some([self.sender(table, ends, now)?, path_to_backend(ends, upstream)?])
    }

    /// No older than a look, and the device neither: if it was learnt before, it is learnt again.
    pub(super) fn sender(&mut self, table: &FlowTable, ends: &Ends, now: Instant) -> Option<Path> {
        let (local, remote) = (ends.listener.ip(), ends.sender.ip());
        if let Some((path, _)) = self.0.get(&(local, remote)).filter(|(_, read_at)| *read_at + LOOK > now) {
            return Some(*path);
        }
        table.forget_sender(local, remote);
        if self.0.len() >= PATHS {
            self.0.clear();
        }
        let path = told(udp::Path::between(local, ends.sender).ok()?);
        self.0.insert((local, remote), (path, now));
        Some(path)
    }
}

/// `None`: there is no route.
pub(super) fn path_to_backend(ends: &Ends, upstream: BorrowedFd<'_>) -> Option<Path> {
    udp::Path::of(upstream, ends.backend.is_ipv4()).ok().map(told)
}

fn told(path: udp::Path) -> Path {
    Path { mtu: path.mtu, hops: path.hops, may_be_cut: path.may_be_cut }
}
