//! `attach --watch`: attaches again whenever the devices or addresses of the network namespace change; with
//! `--container NAME` or `--netns NAME`, also when the name leads to another network namespace.
//!
//! It sleeps until the kernel tells of a change (`network.rs`), or the container's first process ends. While
//! the container doesn't run, the engine is asked, less often as time goes by. What is attached stays when
//! the watch ends: a restart of the watch cuts nothing off.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use truepeer_bpf::{Place, counted_at_udp_ports};
use truepeer_sys::netns::NetNs;

use super::engine::{self, State};
use super::network::{LastFailure, Network, open_process, pause_after};
use super::{hints, privileges};
use truepeer_config::spec::{AttachSpec, AttachTarget, Engine};
use truepeer_sys::tell;

/// How often the counters are read while the container runs, and how often the same is complained about.
const LOOK: Duration = Duration::from_secs(5);
const COMPLAINTS: Duration = Duration::from_secs(60);

/// Attaches; `true`: once more, to what has changed.
type Put<'a> = &'a mut dyn FnMut(bool, &mut (dyn Write + Send)) -> Result<()>;

/// `put` attaches to the network namespace, or to the container, as it is then.
pub(super) fn watch(spec: &AttachSpec, put: Put<'_>, out: &mut (dyn Write + Send)) -> Result<()> {
    let AttachTarget::Container { name, engine } = spec.place.target() else {
        return watch_network(spec, put, out);
    };
    let signals = Signals::catch()?;
    let mut must_work = matches!(engine::look_for(&name, engine)?, State::Running(_));
    let mut last = None;
    loop {
        let Some(process) = wait_for_start(&name, engine, last, &signals, out)? else { return Ok(()) };
        last = Some(process);
        // Opened before attaching: a process that ends meanwhile is noticed.
        let Some(handle) = open_process(process) else { continue };
        let begun = Instant::now();
        let mut is_told = false;
        let mut unlisted = Unlisted::before(spec, process);
        let in_it = AttachTarget::Process(process);
        let mut network = Network::of(&in_it, super::names_of_devices(spec)).ok();
        let woken = loop {
            match put(false, out).map_err(privileges::explain) {
                Ok(()) => {
                    out.flush()?;
                    let status = format!("attached to {name} (process {process})");
                    say(&[NotifyState::Ready, NotifyState::Status(&status)]);
                    unlisted.place = Unlisted::place(spec, process);
                    break loop {
                        let pause = network.as_ref().and_then(Network::pause).unwrap_or(LOOK).min(LOOK);
                        let woken = signals.wait(Some(&handle), network.as_ref(), Some(pause))?;
                        match woken {
                            Woken::Time => unlisted.look(&name, Instant::now()),
                            Woken::Network => {}
                            other => break other,
                        }
                        let is_notice = matches!(woken, Woken::Network);
                        let due = network.as_mut().filter(|network| is_notice || network.is_pending());
                        if let Some(network) = due {
                            follow(spec, network, put, out)?;
                        }
                    };
                }
                Err(error) if must_work => return Err(error),
                // It may have no address yet.
                Err(error) if !is_told => {
                    tell!("error: {error:#}; trying again while {name} runs");
                    is_told = true;
                }
                Err(_) => {}
            }
            match signals.wait(Some(&handle), None, Some(pause_after(begun)))? {
                Woken::Time | Woken::Network => {}
                other => break other,
            }
        };
        must_work = false;
        if let Woken::Signal = woken {
            return Ok(());
        }
        say(&[NotifyState::Status(&format!("{name} has ended"))]);
        writeln!(out, "{name} has ended; waiting for its start")?;
        out.flush()?;
    }
}

/// Attaches to what has changed. `false`: another command has taken all ports out.
fn follow(
    spec: &AttachSpec,
    network: &mut Network,
    put: Put<'_>,
    out: &mut (dyn Write + Send),
) -> Result<bool> {
    // A device may be gone again, and then there is another notice.
    match network.follow(spec, || put(true, out)) {
        Ok(is_attached) => {
            out.flush()?;
            Ok(is_attached)
        }
        Err(error) => {
            tell!("error: {error:#}; what was attached stays; trying again");
            Ok(true)
        }
    }
}

/// Of a network namespace that is no container's.
fn watch_network(spec: &AttachSpec, put: Put<'_>, out: &mut (dyn Write + Send)) -> Result<()> {
    let signals = Signals::catch()?;
    let target = spec.place.target();
    let find = || Network::of(&target, super::names_of_devices(spec));
    let mut network = Some(find()?);
    let (mut gone, mut last) = (Instant::now(), LastFailure::default());
    put(false, out)?;
    out.flush()?;
    say(&[NotifyState::Ready, NotifyState::Status("attached")]);
    loop {
        let pause = network.as_ref().map_or(Some(pause_after(gone)), Network::pause);
        let woken = signals.wait(None, network.as_ref(), pause)?;
        if let Woken::Signal = woken {
            return Ok(());
        }
        if network.as_ref().is_some_and(|network| !network.is_current()) {
            // Without a handle to it, the network namespace can end.
            (network, gone) = (None, Instant::now());
            writeln!(out, "{target} leads to another network namespace, or to none")?;
            out.flush()?;
        }
        let Some(known) = &mut network else {
            match find().and_then(|found| put(false, out).map(|()| found)).map_err(privileges::explain) {
                Ok(found) => {
                    out.flush()?;
                    (network, last) = (Some(found), LastFailure::default());
                }
                Err(error) => {
                    if let Some(words) = last.news(&error) {
                        tell!("error: {words}; trying again");
                    }
                }
            }
            continue;
        };
        let is_due = matches!(woken, Woken::Network) || known.is_pending();
        if is_due && !follow(spec, known, put, out)? {
            writeln!(out, "detached by another command; the watch ends")?;
            return Ok(());
        }
    }
}

/// Warns about headers that come from addresses that are not allowed: their senders' addresses changed when
/// the container was started again.
struct Unlisted {
    place: Option<Place>,
    counted: u64,
    told: Option<Instant>,
}

impl Unlisted {
    /// Something may be attached already, by an earlier watch: what was counted then is no news.
    fn before(spec: &AttachSpec, process: u32) -> Self {
        let place = Self::place(spec, process);
        let counted = place.as_ref().map_or(0, |place| count_in(&ports_of(place)));
        Self { place, counted, told: None }
    }

    /// `None`: the container has ended meanwhile, so there is nothing to warn about.
    fn place(spec: &AttachSpec, process: u32) -> Option<Place> {
        let here = || anyhow::Ok(Place::here(&super::pins(spec.place.pins.as_deref(), false)?)?);
        NetNs::open(Path::new(&format!("/proc/{process}/ns/net"))).ok()?.run(here).ok()?.ok()
    }

    fn look(&mut self, name: &str, now: Instant) {
        let Some(place) = &self.place else { return };
        let ports = ports_of(place);
        let count = count_in(&ports);
        let is_due = self.told.is_none_or(|told| now.duration_since(told) >= COMPLAINTS);
        let Some((port, _)) = ports.iter().find(|(_, count)| *count > 0) else { return };
        if count > self.counted && is_due {
            tell!(
                "warning: {name}: {} datagrams began with a header, but came from an address that --allow does not list: \
                 the server reads the header as data ({}); {}",
                count - self.counted,
                hints::HEADER_UNLISTED,
                hints::unlisted(*port)
            );
            (self.counted, self.told) = (count, Some(now));
        }
    }
}

fn ports_of(place: &Place) -> Vec<(u16, u64)> {
    counted_at_udp_ports(place, hints::HEADER_UNLISTED).unwrap_or_default()
}

fn count_in(ports: &[(u16, u64)]) -> u64 {
    ports.iter().map(|(_, count)| count).sum()
}

/// Its first process; `None`: a signal came. `last`: the one that has ended, which an engine may still name.
fn wait_for_start(
    name: &str,
    engine: Option<Engine>,
    last: Option<u32>,
    signals: &Signals,
    out: &mut (dyn Write + Send),
) -> Result<Option<u32>> {
    let begun = Instant::now();
    let mut is_told = last.is_some();
    loop {
        match engine::look_for(name, engine) {
            Ok(State::Running(process)) if Some(process) != last || open_process(process).is_some() => {
                return Ok(Some(process));
            }
            Ok(_) => {}
            // It may be removed and made again under its name.
            Err(error) if last.is_none() => return Err(error),
            Err(_) => {}
        }
        if !is_told {
            writeln!(out, "{name} is not running; waiting for its start")?;
            out.flush()?;
            is_told = true;
        }
        if let Woken::Signal = signals.wait(None, None, Some(pause_after(begun)))? {
            return Ok(None);
        }
    }
}

fn say(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tell!("warning: the service manager can't be told: {error}");
    }
}

/// SIGTERM and SIGINT.
struct Signals(UnixStream);

impl Signals {
    fn catch() -> Result<Self> {
        let (read, write) = UnixStream::pair().context("can't wait for signals")?;
        for signal in [SIGINT, SIGTERM] {
            pipe::register(signal, write.try_clone()?).context("can't wait for signals")?;
        }
        Ok(Self(read))
    }

    /// For one of them, the end of the process, a change of the network, or the time.
    fn wait(
        &self,
        end: Option<&OwnedFd>,
        network: Option<&Network>,
        time: Option<Duration>,
    ) -> Result<Woken> {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut descriptors = vec![PollFd::new(&self.0, PollFlags::IN)];
        let of_signals = descriptors.len();
        descriptors.extend(end.map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)));
        let of_network = descriptors.len();
        let wakes = network.into_iter().flat_map(Network::descriptors);
        descriptors.extend(wakes.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)));
        let ready = loop {
            match poll(&mut descriptors, time.as_ref()) {
                Ok(ready) => break ready,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if !descriptors[0].revents().is_empty() {
            say(&[NotifyState::Stopping]);
            return Ok(Woken::Signal);
        }
        let is_ended = descriptors[of_signals..of_network].iter().any(|end| !end.revents().is_empty());
        Ok(match ready {
            0 => Woken::Time,
            _ if is_ended => Woken::End,
            _ => Woken::Network,
        })
    }
}

enum Woken {
    Signal,
    End,
    Network,
    Time,
}
