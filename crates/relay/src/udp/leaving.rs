//! Flows that leave user space: the kernel sends their datagrams on. Their sockets stay, so any datagram that
//! is not as usual comes to them, and the whole flow whenever something changes. docs/internals/splice.md
//! tells what the programs look at.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use truepeer_policy::{Dialect, HeaderRule};
use truepeer_session::counters::Counter;
use truepeer_session::settings::SpliceAfter;
use truepeer_session::table::Key;
use truepeer_splice::Reason;
use truepeer_sys::socket::local_address;
use truepeer_sys::udp::{disable_gro, enable_gro};
use truepeer_udp_offload::{Ends, Header, Moved, NotBegun};

use super::flow::{Flow, SentHeader};
use super::offload::{FlowOffload, LOOK, Paths, path_to_backend};
use super::table::Gone;
use super::tuples::UpstreamTuple;
use super::up::At;
use super::whereabouts::{Left, Whereabouts};
use super::{FlowContext, UdpFlows};

/// After so long one datagram of each end passes the sockets again: conntrack remembers the flow for 30 s at
/// least, and routes may lead by another device.
const LEARN_AGAIN: Duration = Duration::from_secs(10);
/// A flow passes other devices, if so many datagrams come to user space while the kernel sends none on.
const PASSED: u32 = 1000;
/// A sender whose address changes so often stays in user space.
const BEGINS: u8 = 8;
/// A flow with more aggregates than these in [`LEARN_AGAIN`] stays in user space: single datagrams would
/// overtake them.
const MERGED: u32 = 3;

/// A worker's flows that are in the kernel's tables.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) offload: Result<FlowOffload, Reason>,
    /// Those that have begun to leave; some may have ended.
    keys: HashSet<Key>,
    look_at: Option<Instant>,
    /// [`FlowOffload::changes`] at the last look.
    changes: u64,
    paths: Paths,
}

impl Default for Leaving {
    fn default() -> Self {
        let offload = Err(Reason::NotLoaded);
        Self { offload, keys: HashSet::new(), look_at: None, changes: 0, paths: Paths::default() }
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

    /// All further datagrams come to the sockets. Answers go where [`Flow::back`] says: to the sender of the
    /// datagram at hand.
    pub(super) fn recall(&mut self) {
        if let Whereabouts::Left(left) = &self.whereabouts {
            left.offload.recall();
        }
        self.take_moved();
    }

    /// The same, while no datagram of the sender is at hand: answers go to the port that it used last.
    pub(super) fn bring_back(&mut self) {
        self.take_moved();
        self.recall();
    }

    /// It stays in user space, and that is counted.
    fn stay(&mut self, reason: Reason) {
        self.recall();
        self.whereabouts = Whereabouts::Stays;
        // It was disabled where answers need headers.
        let _ = enable_gro(self.upstream.as_fd());
        self.listener.shard.stay(reason.label());
    }

    /// The backend's path has told that it is narrower.
    pub(super) fn read_path_again(&mut self) {
        self.take_moved();
        if let Whereabouts::Left(left) = &self.whereabouts {
            match path_to_backend(&left.ends, self.upstream.as_fd()) {
                Some(path) => left.offload.set_backend_path(path),
                None => left.offload.recall(),
            }
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
        if let Err(reason) = self.leaving.take(cx, at, key, flow, raw) {
            flow.stay(reason);
        }
    }

    /// Looks at what the kernel has sent on.
    pub(super) fn look(&mut self, cx: &FlowContext<'_>) {
        let leaving = &mut self.leaving;
        let Ok(offload) = &leaving.offload else { return };
        let (changes, table) = (offload.changes(), offload.table());
        let have_changed = std::mem::replace(&mut leaving.changes, changes) != changes;
        if have_changed {
            leaving.paths.clear();
        }
        leaving.look_at = Some(cx.now + LOOK);
        for key in std::mem::take(&mut leaving.keys) {
            let Some(flow) = self.table.get_mut(key) else { continue };
            // Before it is recalled: a flow in user space no longer follows the kernel's note of the port.
            flow.take_moved();
            let Whereabouts::Left(left) = &mut flow.whereabouts else { continue };
            if left.offload.merged() > MERGED {
                flow.stay(Reason::Header);
                continue;
            }
            if have_changed {
                left.offload.recall();
            } else if left.offload.is_sent_on() {
                let is_due = cx.now.saturating_duration_since(left.learnt_at) >= LEARN_AGAIN;
                let has_path = if is_due {
                    left.learnt_at = cx.now;
                    let paths = leaving.paths.of(table, &left.ends, flow.upstream.as_fd(), cx.now);
                    paths.map(|paths| left.offload.send_on(paths))
                } else if left.has_answered() {
                    let path = leaving.paths.sender(table, &left.ends, cx.now);
                    path.map(|path| left.offload.set_sender_path(path))
                } else {
                    Some(())
                };
                if has_path.is_none() {
                    left.offload.recall();
                }
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
            offload.table().recall_answers(flow.route.backend.get(), client);
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
                flow.bring_back();
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
        if is_here && flow.down.datagrams == 0 && offload.ways().are_any_filtered() {
            return Ok(());
        }
        let ends = flow.ends(at)?;
        let is_bare = flow.is_bare(at);
        if let Whereabouts::Left(left) = &mut flow.whereabouts {
            // A reload may have decided otherwise about headers: the backend would get them, or lose bytes.
            if left.is_of(&ends) && left.has_header != is_bare {
                left.offload.set_sender_port(ends.sender.port());
                if left.pass() > PASSED {
                    let is_changed = !offload.ways().new_ports().is_empty();
                    return Err(if is_changed { Reason::Device } else { Reason::PacketsNotSeen });
                }
                if !left.offload.is_sent_on() {
                    offload.may_leave(&ends)?;
                    // No route at this moment: the next datagram asks again.
                    let upstream = flow.upstream.as_fd();
                    let Some(paths) = self.paths.of(offload.table(), &left.ends, upstream, cx.now) else {
                        return Ok(());
                    };
                    left.offload.send_on(paths);
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
        if self.keys.is_empty() {
            // Earlier changes concern no flow.
            self.changes = offload.changes();
        }
        offload.may_leave(&ends)?;
        let header = if is_bare { None } else { Some(Header::of(raw).ok_or(Reason::Header)?) };
        let upstream = flow.upstream.as_fd();
        let Some(paths) = self.paths.of(offload.table(), &ends, upstream, cx.now) else { return Ok(()) };
        if header.is_some() && at.udp.dialect == Dialect::Spp {
            // Each answer needs a header, so they must not be merged before the programs see them. On older
            // kernels there is nothing to disable.
            let _ = disable_gro(upstream);
        }
        let begun = offload.table().begin(&ends, header.as_ref(), upstream);
        let begun = begun.map_err(|not_begun| match not_begun {
            NotBegun::Full => Reason::TableFull,
            NotBegun::Taken => Reason::AddressesInUse,
            NotBegun::Failed(_) => Reason::Failed,
        })?;
        // Another worker may have opened its successor meanwhile, and found no key to remove.
        if flow.tuple.as_ref().is_some_and(UpstreamTuple::is_shared) {
            return Ok(());
        }
        begun.send_on(paths);
        flow.begins += 1;
        flow.whereabouts = Whereabouts::Left(Box::new(Left {
            offload: begun,
            ends,
            has_header: header.is_some(),
            counted: [Moved::default(); 2],
            seen: [0, 0],
            passed: (0, 0),
            learnt_at: cx.now,
        }));
        self.look_at.get_or_insert(cx.now + LOOK);
        self.keys.insert(key);
        Ok(())
    }
}
