//! Flows that leave user space: the kernel sends their datagrams on. Their sockets stay, so any datagram that
//! is not as usual comes to them, and the whole flow whenever something changes. docs/internals/splice.md
//! tells what the programs look at.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use truepeer_policy::HeaderRule;
use truepeer_session::counters::Counter;
use truepeer_session::settings::SpliceAfter;
use truepeer_session::table::Key;
use truepeer_splice::{Reason, Ways};
use truepeer_sys::socket::local_address;
use truepeer_sys::udp::{path_mtu, path_mtu_between};
use truepeer_udp_offload::{Ends, FlowTable, Header, Moved, NotBegun};

use super::flow::{Flow, SentHeader};
use super::table::Gone;
use super::tuples::UpstreamTuple;
use super::up::At;
use super::whereabouts::{Left, Whereabouts};
use super::{FlowContext, UdpFlows};

/// The time between two looks at what the kernel has sent on. A flow is forgotten so much later at most.
const LOOK: Duration = Duration::from_millis(500);
/// After so long one datagram of each end passes the sockets again: conntrack remembers the flow for 30 s at
/// least, and routes may lead by another device.
const LEARN_AGAIN: Duration = Duration::from_secs(10);
/// A flow of which the kernel has sent nothing on passes other devices, if so many have come to user space.
const PASSED: u32 = 1000;
/// A sender whose address changes so often stays in user space.
const BEGINS: u8 = 8;
/// The most paths whose MTU is remembered.
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

    /// Has the programs learn by which devices answers of this socket leave.
    pub(super) fn add_listener(&self, socket: &OwnedFd) {
        // If it fails, answers go on through user space.
        let _ = self.0.table.add_listener(socket.as_fd());
    }

    fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    fn may_leave(&self, ends: &Ends) -> Result<(), Reason> {
        let all = [ends.sender, ends.listener, ends.client, ends.backend];
        self.0.ways.may_offload(&all).map_err(|stays| stays.reason())
    }
}

impl Shared {
    fn look(&self) {
        if self.ways.have_changed() {
            self.table.forget_senders();
            self.changes.fetch_add(1, Ordering::Release);
        }
    }
}

/// A worker's flows that are in the kernel's tables.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) offload: Result<FlowOffload, Reason>,
    /// Those that have begun to leave; some may have ended.
    keys: HashSet<Key>,
    look_at: Option<Instant>,
    /// [`FlowOffload::changes`] at the last look.
    changes: u64,
    /// From listeners to senders: the MTU, and when it was read.
    paths: HashMap<(IpAddr, IpAddr), (u32, Instant)>,
}

impl Default for Leaving {
    fn default() -> Self {
        let offload = Err(Reason::NotLoaded);
        Self { offload, keys: HashSet::new(), look_at: None, changes: 0, paths: HashMap::new() }
    }
}

impl Flow {
    /// Whether the kernel sends its datagrams on.
    pub(super) fn has_left(&self) -> bool {
        matches!(&self.whereabouts, Whereabouts::Left(left) if left.offload.has_left())
    }

    /// Datagrams that the kernel has sent on and that its counters lack.
    pub(super) fn uncounted(&self) -> [Moved; 2] {
        match &self.whereabouts {
            Whereabouts::Left(left) => left.uncounted(),
            _ => [Moved::default(); 2],
        }
    }

    /// Counts what the kernel has sent on, and notes where answers go.
    pub(super) fn take_moved(&mut self) {
        let Whereabouts::Left(left) = &mut self.whereabouts else { return };
        let [up, down] = left.uncounted();
        for (counted, new) in left.counted.iter_mut().zip([up, down]) {
            counted.datagrams += new.datagrams;
            counted.bytes += new.bytes;
        }
        if left.has_header && left.offload.is_sent_on() {
            self.back.sender.set_port(left.offload.sender_port());
        }
        let shard = &self.listener.shard;
        if up.datagrams + down.datagrams > 0 && !std::mem::replace(&mut self.is_counted, true) {
            shard.count(Counter::Spliced);
        }
        let both = [
            (&mut self.up, up, Counter::DatagramsUp, Counter::BytesUp),
            (&mut self.down, down, Counter::DatagramsDown, Counter::BytesDown),
        ];
        for (sent, moved, datagrams, bytes) in both.into_iter().filter(|(_, moved, ..)| moved.datagrams > 0) {
            sent.datagrams += moved.datagrams;
            sent.bytes += moved.bytes;
            shard.add(datagrams, moved.datagrams);
            shard.add(bytes, moved.bytes);
        }
    }

    /// Whether the kernel has sent on datagrams since the last look that prove that the flow goes on.
    fn has_spoken(&mut self) -> bool {
        let Whereabouts::Left(left) = &mut self.whereabouts else { return false };
        let seen = left.offload.moved().map(|moved| moved.datagrams);
        let [up, down] = std::mem::replace(&mut left.seen, seen);
        self.take_moved();
        up != seen[0] || (down != seen[1] && !self.is_kept_by_sender())
    }

    /// All further datagrams come to the sockets.
    pub(super) fn recall(&mut self) {
        if let Whereabouts::Left(left) = &self.whereabouts {
            left.offload.recall();
        }
        self.take_moved();
    }

    /// The backend's path has told that it is narrower.
    pub(super) fn read_path_again(&self) {
        if let Whereabouts::Left(left) = &self.whereabouts {
            let mtu = path_mtu(self.upstream.as_fd(), left.ends.backend.is_ipv4());
            mtu.map_or_else(|_| left.offload.recall(), |mtu| left.offload.set_backend_mtu(mtu));
        }
    }

    /// Whether only its sender's datagrams prove that it is still known.
    pub(super) fn is_kept_by_sender(&self) -> bool {
        let udp = self.listener.rules.settings.udp.as_ref();
        udp.is_some_and(|udp| udp.sending.unwrap_or(udp.dialect).has_bare_datagrams())
    }

    fn is_due(&self, after: &SpliceAfter, now: Instant) -> bool {
        self.up.bytes + self.down.bytes >= after.bytes
            || now.saturating_duration_since(self.began) >= after.age
    }

    fn is_bare(&self, at: &At<'_>) -> bool {
        at.rule == HeaderRule::Forbid || at.udp.dialect.has_bare_datagrams()
    }

    /// Err: why it stays.
    fn ends(&self, at: &At<'_>) -> Result<Ends, Reason> {
        let failed = |_| Reason::Failed;
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let listener = at.downstream.destination_of(at.arrival).filter(|_| self.back.own_socket.is_none());
        let ends = Ends {
            sender: canonical(at.arrival.from),
            listener: listener.ok_or(Reason::Address)?,
            client: match &self.whereabouts {
                Whereabouts::Left(left) => left.ends.client,
                _ => canonical(local_address(self.upstream.as_fd()).map_err(failed)?),
            },
            backend: canonical(self.route.backend.get()),
            sender_by: at.arrival.device,
        };
        let all = [ends.sender, ends.listener, ends.client, ends.backend];
        if all.iter().any(|end| end.is_ipv4() != ends.sender.is_ipv4()) {
            return Err(Reason::Families);
        }
        if all.iter().any(|end| !is_of_one_host(end.ip())) || self.back.local.is_none() {
            return Err(Reason::Address);
        }
        if ends.sender_by == 0 {
            return Err(Reason::PacketsNotSeen);
        }
        Ok(ends)
    }
}

/// Neither of many hosts nor of one link.
fn is_of_one_host(ip: IpAddr) -> bool {
    let is_of_link = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !ip.is_multicast() && !ip.is_unspecified() && !is_of_link
}

impl UdpFlows {
    /// A datagram of this flow has come to user space, with these bytes as its header: may the next ones go
    /// past it?
    pub(super) fn leave(&mut self, cx: &FlowContext<'_>, at: &At<'_>, key: Key, raw: &[u8]) {
        let Some(after) = &at.listener.rules.settings.splice_after else { return };
        let Some(flow) = self.table.get_mut(key) else { return };
        match &flow.whereabouts {
            Whereabouts::Stays => return,
            Whereabouts::Here if !flow.is_due(after, cx.now) => return,
            _ => {}
        }
        let outcome = self.leaving.take(cx, at, key, flow, raw);
        if let Err(reason) = outcome {
            flow.recall();
            flow.whereabouts = Whereabouts::Stays;
            at.listener.shard.stay(reason.label());
        }
    }

    /// Looks at what the kernel has sent on.
    pub(super) fn look(&mut self, cx: &FlowContext<'_>) {
        let leaving = &mut self.leaving;
        let Ok(offload) = &leaving.offload else { return };
        let changes = offload.changes();
        let have_changed = std::mem::replace(&mut leaving.changes, changes) != changes;
        if have_changed {
            leaving.paths.clear();
        }
        leaving.look_at = Some(cx.now + LOOK);
        for key in std::mem::take(&mut leaving.keys) {
            let Some(flow) = self.table.get_mut(key) else { continue };
            let Whereabouts::Left(left) = &mut flow.whereabouts else { continue };
            if have_changed {
                left.offload.recall();
            } else if left.offload.is_sent_on()
                && cx.now.saturating_duration_since(left.learnt_at) >= LEARN_AGAIN
            {
                match leaving.mtus(&left.ends, flow.upstream.as_fd(), cx.now) {
                    Some(mtus) => left.offload.send_on(mtus),
                    None => left.offload.recall(),
                }
                left.learnt_at = cx.now;
            }
            leaving.keys.insert(key);
            if flow.has_spoken() {
                self.table.touch(key, cx.now);
            }
        }
    }

    /// Whether datagrams that the kernel has sent on since the last look keep this flow; its silence begins
    /// anew then.
    pub(super) fn has_spoken(&mut self, key: Key, now: Instant) -> bool {
        let has_spoken = self.table.get_mut(key).is_some_and(Flow::has_spoken);
        if has_spoken {
            self.table.touch(key, now);
        }
        has_spoken
    }

    /// Removes the flow that was silent longest.
    pub(super) fn longest_silent(&mut self, now: Instant) -> Option<Gone<Flow>> {
        for _ in 0..=self.leaving.keys.len() {
            let (first, _) = self.table.first()?;
            if !self.has_spoken(first, now) {
                return self.table.remove(first);
            }
        }
        self.table.evict()
    }

    /// Another flow has this one's upstream addresses, and gets the answers from now on.
    pub(super) fn give_answers_to(&self, flow: &Flow) {
        let (Ok(offload), Some(tuple)) = (&self.leaving.offload, &flow.tuple) else { return };
        if tuple.is_shared()
            && let Ok(client) = local_address(flow.upstream.as_fd())
        {
            offload.0.table.recall_answers(flow.route.backend.get(), client);
        }
    }

    /// When to look.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.leaving.look_at.filter(|_| !self.leaving.keys.is_empty())
    }

    /// All flows come back to user space, or those of a listener.
    pub(super) fn recall(&mut self, is_meant: impl Fn(&Flow) -> bool) {
        for key in &self.leaving.keys {
            if let Some(flow) = self.table.get_mut(*key).filter(|flow| is_meant(flow)) {
                flow.recall();
            }
        }
    }

    /// Has the kernel's programs for flows from now on.
    pub(crate) fn set_offload(&mut self, offload: Result<FlowOffload, Reason>) {
        self.leaving.offload = offload;
    }
}

impl Leaving {
    /// Begins to send the flow on, or goes on with it. Err: why it stays.
    fn take(
        &mut self,
        cx: &FlowContext<'_>,
        at: &At<'_>,
        key: Key,
        flow: &mut Flow,
        raw: &[u8],
    ) -> Result<(), Reason> {
        if at.listener.rules.settings.splice_after.as_ref().is_some_and(|after| after.is_marked) {
            return Err(Reason::Mark);
        }
        if flow.sending != SentHeader::Nothing {
            return Err(Reason::SendProxy);
        }
        let offload = self.offload.clone()?;
        // The kernel's sockets give answers to the newest of them.
        if flow.tuple.as_ref().is_some_and(UpstreamTuple::is_shared) {
            flow.recall();
            return Ok(());
        }
        // conntrack takes a flow without answers for a new one with each datagram.
        let is_here = matches!(flow.whereabouts, Whereabouts::Here);
        if is_here && flow.down.datagrams == 0 && offload.0.ways.are_any_filtered() {
            return Ok(());
        }
        let ends = flow.ends(at)?;
        if let Whereabouts::Left(left) = &mut flow.whereabouts {
            if left.is_of(&ends) {
                left.offload.set_sender_port(ends.sender.port());
                left.passed += u32::from(!left.offload.has_left());
                if left.passed > PASSED {
                    return Err(Reason::PacketsNotSeen);
                }
                if !left.offload.is_sent_on() {
                    offload.may_leave(&ends)?;
                    let mtus = self.mtus(&left.ends, flow.upstream.as_fd(), cx.now);
                    left.offload.send_on(mtus.ok_or(Reason::Failed)?);
                }
                return Ok(());
            }
            // The next datagram may begin anew.
            flow.recall();
            flow.whereabouts = Whereabouts::Here;
            return Ok(());
        }
        if flow.begins == BEGINS {
            return Err(Reason::SenderMoves);
        }
        offload.may_leave(&ends)?;
        let header = if flow.is_bare(at) { None } else { Some(Header::of(raw).ok_or(Reason::Header)?) };
        let mtus = self.mtus(&ends, flow.upstream.as_fd(), cx.now).ok_or(Reason::Failed)?;
        let begun = offload.0.table.begin(&ends, header.as_ref(), flow.upstream.as_fd());
        let begun = begun.map_err(|not_begun| match not_begun {
            NotBegun::Full => Reason::TableFull,
            NotBegun::Taken => Reason::AddressesInUse,
            NotBegun::Failed(_) => Reason::Failed,
        })?;
        begun.send_on(mtus);
        flow.begins += 1;
        flow.whereabouts = Whereabouts::Left(Box::new(Left {
            offload: begun,
            ends,
            has_header: header.is_some(),
            counted: [Moved::default(); 2],
            seen: [0, 0],
            passed: 0,
            learnt_at: cx.now,
        }));
        self.look_at.get_or_insert(cx.now + LOOK);
        self.keys.insert(key);
        Ok(())
    }

    /// The MTUs of the paths to both ends. `None`: there is no path.
    fn mtus(&mut self, ends: &Ends, upstream: BorrowedFd<'_>, now: Instant) -> Option<[u32; 2]> {
        let path = (ends.listener.ip(), ends.sender.ip());
        let known = self.paths.get(&path).filter(|(_, read_at)| *read_at + LEARN_AGAIN > now);
        let to_sender = match known {
            Some((mtu, _)) => *mtu,
            None => {
                if let Ok(offload) = &self.offload {
                    offload.0.table.forget_sender(path.0, path.1);
                }
                if self.paths.len() >= PATHS {
                    self.paths.clear();
                }
                let mtu = path_mtu_between(path.0, ends.sender).ok()?;
                self.paths.insert(path, (mtu, now));
                mtu
            }
        };
        Some([to_sender, path_mtu(upstream, ends.backend.is_ipv4()).ok()?])
    }
}
