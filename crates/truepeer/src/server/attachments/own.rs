//! Attachments of this process. One that leaves is detached when its last connection has ended, by a thread
//! of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use tracing::{error, info, warn};
use truepeer_bpf::{Rules, Status};

use super::Shown;
use truepeer_attach as attach;
use truepeer_config::plan::{AttachKey, CheckedAttach};
use truepeer_config::spec::AttachSpec;
use truepeer_policy::Claims;

/// How often a leaving attachment is polled.
const INTERVAL: Duration = Duration::from_millis(200);

/// Called when an attachment has been detached.
pub(in crate::server) type Detached = Arc<dyn Fn() + Send + Sync>;

/// What this process has attached.
pub(in crate::server) struct Own {
    running: BTreeMap<AttachKey, Attachment>,
    /// Of each running one, unless it could not be attached anew.
    following: BTreeMap<AttachKey, attach::Following>,
    leaving: BTreeMap<AttachKey, Leaving>,
    /// The names of those that the old process has attached, until it lets go: if this process fails, the
    /// old one renews its rules, and no connection may meet a port without programs meanwhile.
    others: BTreeSet<String>,
    detached: Detached,
}

#[derive(Debug, Clone)]
struct Attachment {
    args: AttachSpec,
    rules: Rules,
}

impl Own {
    pub(super) fn new(detached: Detached) -> Self {
        let (running, following, leaving, others) = Default::default();
        Self { running, following, leaving, others, detached }
    }

    /// Attaches what `wanted` has, and lets the rest leave. Describes each change.
    ///
    /// # Errors
    /// The first that can't be attached. Everything is then as it was.
    pub(super) fn apply(&mut self, wanted: &[&CheckedAttach]) -> anyhow::Result<Vec<String>> {
        let wanted: BTreeMap<_, _> =
            wanted.iter().map(|attach| (attach.key.clone(), Attachment::of(attach))).collect();
        let (mut changes, mut returned) = (Vec::new(), BTreeSet::new());
        for (key, attachment) in &wanted {
            let before = self.running.get(key).cloned();
            if before.as_ref().is_some_and(|before| before.is_same(attachment)) {
                match self.put_again(key, attachment) {
                    Ok(true) => changes.push((key.clone(), before)),
                    Ok(false) => {}
                    Err(failure) => {
                        self.undo(&changes, returned);
                        return Err(failure.context(format!("attachment {}", key.pins.display())));
                    }
                }
                continue;
            }
            returned.extend(self.stay(key).then(|| key.clone()));
            // With its old rules it must not attach again when the new ones are there.
            let renamed = if before.is_none() { self.at_place_of(key) } else { None };
            let renamed = renamed.filter(|(old, _)| !wanted.contains_key(old));
            renamed.iter().for_each(|(old, _)| _ = self.following.remove(old));
            if let Err(failure) = self.put(key, attachment) {
                // It goes on as before, and is followed.
                let as_before = before.map(|before| (key.clone(), before)).or(renamed);
                changes.extend(as_before.map(|(key, before)| (key, Some(before))));
                self.undo(&changes, returned);
                return Err(failure.context(format!("attachment {}", key.pins.display())));
            }
            changes.push((key.clone(), before));
        }
        let mut said: Vec<_> = changes
            .into_iter()
            .map(|(key, before)| match before {
                Some(before) if wanted.get(&key).is_some_and(|new| before.is_same(new)) => {
                    format!("{} was attached again", key.pins.display())
                }
                Some(_) => format!("{} has new rules", key.pins.display()),
                None => format!("{} was attached", key.pins.display()),
            })
            .collect();
        let gone = self.running.keys().filter(|key| !wanted.contains_key(*key)).cloned();
        let gone: Vec<_> = gone.collect();
        self.running = wanted;
        for key in gone {
            if self.at_place_of(&key).is_some() {
                // Another entry names the same place, and has attached there.
                self.following.remove(&key);
                continue;
            }
            said.push(format!(
                "{} checks no new connections, and is detached with its last one",
                key.pins.display()
            ));
            self.leave(key);
        }
        Ok(said)
    }

    /// Attaches, or gives an attachment other rules, and follows the network with these.
    fn put(&mut self, key: &AttachKey, attachment: &Attachment) -> anyhow::Result<()> {
        self.following.remove(key);
        let following = attach::Following::begin(key, &attachment.args, &attachment.rules)?;
        self.following.insert(key.clone(), following);
        Ok(())
    }

    /// `returned`: those that were about to leave.
    fn undo(&mut self, changes: &[(AttachKey, Option<Attachment>)], returned: BTreeSet<AttachKey>) {
        for (key, before) in changes.iter().rev() {
            let undone = match before {
                Some(before) => self.put(key, before),
                None if returned.contains(key) => Ok(()),
                None => {
                    self.following.remove(key);
                    match self.at_place_of(key) {
                        Some((old, attachment)) => self.put(&old, &attachment),
                        None if is_among(&self.others, key) => Ok(()),
                        None => attach::leave(key, true, true).map(drop),
                    }
                }
            };
            if let Err(failure) = undone {
                error!("can't take a change back: {failure:#}");
            }
        }
        returned.into_iter().for_each(|key| self.leave(key));
    }

    /// Another running one at the same place, which other words name.
    fn at_place_of(&self, key: &AttachKey) -> Option<(AttachKey, Attachment)> {
        let mut others = self.running.iter().filter(|(other, _)| *other != key).peekable();
        others.peek()?;
        let place = place(key)?;
        let (other, attachment) = others.find(|(other, _)| self::place(other) == Some(place))?;
        Some((other.clone(), attachment.clone()))
    }

    /// Attaches the same again if another command has detached it. `false`: it is attached, or it is followed
    /// and can't be attached now: it is attached when it can be.
    fn put_again(&mut self, key: &AttachKey, attachment: &Attachment) -> anyhow::Result<bool> {
        let is_followed = self.following.get(key).is_some_and(attach::Following::is_running);
        let is_attached = |status: Status| status.ports.iter().any(|port| !port.draining);
        let status = attach::status_of(key);
        if is_followed && status.map_or(true, |status| status.is_some_and(is_attached)) {
            return Ok(false);
        }
        match attach::Following::begin(key, &attachment.args, &attachment.rules) {
            Ok(following) => _ = self.following.insert(key.clone(), following),
            Err(failure) if is_followed => {
                warn!("attachment {}: {failure:#}; trying again", key.pins.display());
                return Ok(false);
            }
            Err(failure) => return Err(failure),
        }
        Ok(true)
    }

    /// An attachment that was about to leave is wanted again. Returns whether there is one.
    fn stay(&mut self, key: &AttachKey) -> bool {
        let Some(leaving) = self.leaving.remove(key) else { return false };
        let is_there = !leaving.has_ended();
        leaving.stop();
        is_there
    }

    fn leave(&mut self, key: AttachKey) {
        self.following.remove(&key);
        match Leaving::begin(key.clone(), Arc::clone(&self.detached)) {
            Ok(leaving) => _ = self.leaving.insert(key, leaving),
            Err(failure) => error!("{failure:#}"),
        }
    }

    /// The running attachments, for the admin thread.
    pub(super) fn shown(&self) -> Shown {
        Shown::Own(self.running.keys().cloned().collect())
    }

    /// The names by which two processes speak of them.
    pub(super) fn names(&self) -> Vec<String> {
        let names = |key| std::iter::once(name(key)).chain(name_of_place(key));
        self.running.keys().flat_map(names).collect()
    }

    /// An old process has these attached.
    pub(super) fn begin_take_over(&mut self, names: &[String]) {
        self.others = names.iter().cloned().collect();
    }

    /// The old process has let go.
    pub(super) fn end_take_over(&mut self) {
        self.others.clear();
    }

    /// Another process has these attached now, and the rest leaves.
    pub(super) fn hand_over(&mut self, names: &[String]) {
        let names = names.iter().cloned().collect();
        self.running.retain(|key, _| !is_among(&names, key));
        self.following.retain(|key, _| self.running.contains_key(key));
        self.drain();
    }

    /// A process that was to take over has failed, and may have left its rules.
    pub(super) fn renew(&mut self) {
        for (key, attachment) in self.running.clone() {
            if let Err(failure) = self.put(&key, &attachment) {
                error!("attachment {}: {failure:#}", key.pins.display());
            }
        }
    }

    /// Lets all leave.
    pub(super) fn drain(&mut self) {
        for key in std::mem::take(&mut self.running).into_keys() {
            self.leave(key);
        }
    }

    /// Whether none is left.
    pub(super) fn have_ended(&self) -> bool {
        self.running.is_empty() && self.leaving.values().all(Leaving::has_ended)
    }
}

/// What is still attached is detached at once.
impl Drop for Own {
    fn drop(&mut self) {
        self.following.clear();
        let mut left: Vec<_> = std::mem::take(&mut self.running).into_keys().collect();
        for (key, leaving) in std::mem::take(&mut self.leaving) {
            if !leaving.has_ended() {
                leaving.stop();
                left.push(key);
            }
        }
        for key in left.iter().filter(|key| !is_among(&self.others, key)) {
            if let Err(failure) = attach::leave(key, true, true) {
                warn!("not detached: {failure:#}; truepeer attach detach --now does it");
            }
        }
    }
}

/// The same pins in two network namespaces are two attachments.
pub(super) fn name(key: &AttachKey) -> String {
    match key.target.to_string().as_str() {
        "" => format!("{} in this network namespace", key.pins.display()),
        target => format!("{} in {target}", key.pins.display()),
    }
}

/// By its place: the files of two processes may have other words for it.
fn name_of_place(key: &AttachKey) -> Option<String> {
    place(key).map(|(device, inode)| format!("place {device}:{inode}"))
}

fn is_among(names: &BTreeSet<String>, key: &AttachKey) -> bool {
    !names.is_empty()
        && (names.contains(&name(key)) || name_of_place(key).is_some_and(|name| names.contains(&name)))
}

fn place(key: &AttachKey) -> Option<(u64, u64)> {
    attach::place_of(key).ok().flatten()
}

impl Attachment {
    fn of(attach: &CheckedAttach) -> Self {
        Self { args: attach.args.clone(), rules: attach.rules.clone() }
    }

    /// Whether the kernel has what `other` would put there.
    fn is_same(&self, other: &Self) -> bool {
        let place = |args: &AttachSpec| (args.dev.clone(), args.cgroup.clone(), args.unit.clone());
        // Without `..`: a field that is left out here would make reloads ignore its option.
        let rules = |rules: &Rules| {
            let Rules {
                tcp_ports,
                udp_ports,
                tcp_ranges,
                udp_ranges,
                senders,
                header,
                exceptions,
                required_tlvs,
                claims: Claims { allow, deny, host: _ },
                // Those of the moment at which it is attached.
                own_addresses: _,
                header_timeout,
                header_wait,
                header_max,
                refuse_unshowable,
                shows_destination,
                udp_silence,
                max_flows,
                max_udp_flows,
            } = rules.clone();
            let ports = (tcp_ports, udp_ports, tcp_ranges, udp_ranges);
            let senders = (senders, header, exceptions, required_tlvs, allow, deny);
            let times = (header_timeout, header_wait, udp_silence);
            (
                ports,
                senders,
                times,
                (header_max, refuse_unshowable, shows_destination, max_flows, max_udp_flows),
            )
        };
        rules(&self.rules) == rules(&other.rules) && place(&self.args) == place(&other.args)
    }
}

/// A thread that detaches when no connection needs the programs.
struct Leaving {
    is_stopped: Arc<AtomicBool>,
    /// It detaches no more. The thread ends a little later.
    is_done: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Leaving {
    fn begin(key: AttachKey, detached: Detached) -> anyhow::Result<Self> {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let is_done = Arc::new(AtomicBool::new(false));
        let (seen, done) = (Arc::clone(&is_stopped), Arc::clone(&is_done));
        let work = move || {
            detach(&key, &seen);
            done.store(true, Ordering::Release);
            detached();
        };
        let thread = thread::Builder::new().name("detach".to_owned()).spawn(work);
        Ok(Self { is_stopped, is_done, thread: thread.context("can't start a thread that detaches")? })
    }

    fn has_ended(&self) -> bool {
        self.is_done.load(Ordering::Acquire) || self.thread.is_finished()
    }

    /// The attachment stays as it is now.
    fn stop(self) {
        self.is_stopped.store(true, Ordering::Release);
        self.thread.thread().unpark();
        // A panic has already been reported.
        let _ = self.thread.join();
    }
}

fn detach(key: &AttachKey, is_stopped: &AtomicBool) {
    let mut told = None;
    while !is_stopped.load(Ordering::Acquire) {
        match attach::leave(key, false, told.is_none()) {
            Ok(0) => return info!("attach: detached {}", key.pins.display()),
            Ok(open) => {
                if told.replace(open) != Some(open) {
                    info!("attach: waiting for {open} open connections of {}", key.pins.display());
                }
            }
            Err(failure) => return warn!("not detached: {failure:#}; truepeer attach detach does it"),
        }
        thread::park_timeout(INTERVAL);
    }
}
