//! `attach --watch`: attaches again whenever the devices or addresses of the network namespace change; with
//! `--container NAME`, also when the container is started again, which gives it another network namespace.
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
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use truepeer_bpf::{Place, Traffic, counted_at_udp_ports, status};
use truepeer_sys::netns::NetNs;

use super::engine::{self, State};
use super::network::Network;
use super::{hints, privileges};
use truepeer_config::spec::{AttachSpec, AttachTarget, Engine, Port};
use truepeer_sys::tell;

/// How often the engine is asked for a container that doesn't run: often at first, because a restart is
/// quick.
const PAUSES: [(Duration, Duration); 3] = [
    (Duration::from_secs(10), Duration::from_millis(200)),
    (Duration::from_secs(60), Duration::from_secs(1)),
    (Duration::MAX, Duration::from_secs(5)),
];

/// How often the counters are read while the container runs, and how often the same is complained about.
const LOOK: Duration = Duration::from_secs(5);
const COMPLAINTS: Duration = Duration::from_secs(60);

/// Attaches; `true`: once more, to what has changed.
type Put<'a> = &'a mut dyn FnMut(bool, &mut (dyn Write + Send)) -> Result<()>;

/// `put` attaches to the network namespace, or to the container, as it is then.
pub(super) fn watch(spec: &AttachSpec, put: Put<'_>, out: &mut (dyn Write + Send)) -> Result<()> {
    let AttachTarget::Container { name, engine } = spec.place.target() else {
        let signals = Signals::catch()?;
        let mut network = Network::of(&spec.place.target(), super::names_of_devices(spec))?;
        put(false, out)?;
        out.flush()?;
        say(&[NotifyState::Ready, NotifyState::Status("attached")]);
        loop {
            match signals.wait(None, Some(&network), None)? {
                Woken::Network if !follow(spec, &mut network, put, out)? => {
                    writeln!(out, "detached by another command; the watch ends")?;
                    return Ok(());
                }
                Woken::Signal => return Ok(()),
                _ => {}
            }
        }
    };
    let signals = Signals::catch()?;
    let mut must_work = matches!(engine::look_for(&name, engine)?, State::Running(_));
    let mut last = None;
    loop {
        let Some(process) = wait_for_start(&name, engine, last, &signals, out)? else { return Ok(()) };
        last = Some(process);
        // Opened before attaching: a process that ends meanwhile is noticed.
        let Some(handle) = open(process) else { continue };
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
                        match signals.wait(Some(&handle), network.as_ref(), Some(LOOK))? {
                            Woken::Time => unlisted.look(&name, Instant::now()),
                            Woken::Network => {
                                let Some(network) = &mut network else { continue };
                                if let Err(error) = follow(spec, network, put, out) {
                                    tell!("error: {error:#}");
                                }
                            }
                            other => break other,
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

/// Attaches to what has changed. `false`: none of the ports is attached any more, so another command has
/// taken them out.
fn follow(
    spec: &AttachSpec,
    network: &mut Network,
    put: Put<'_>,
    out: &mut (dyn Write + Send),
) -> Result<bool> {
    // It may be a container's that is ending.
    if !network.has_changed()? {
        return Ok(true);
    }
    if !network.run(|| is_attached(spec))? {
        return Ok(false);
    }
    // A device may be gone again, and then there is another notice.
    match put(true, out) {
        Ok(()) => out.flush()?,
        Err(error) => tell!("error: {error:#}; what was attached stays"),
    }
    Ok(true)
}

/// Whether one of its ports is.
pub(super) fn is_attached(spec: &AttachSpec) -> Result<bool> {
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

fn pause_after(begun: Instant) -> Duration {
    let waited = begun.elapsed();
    PAUSES.iter().find(|(until, _)| waited < *until).map_or(Duration::from_secs(5), |(_, pause)| *pause)
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
            Ok(State::Running(process)) if Some(process) != last || open(process).is_some() => {
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

/// `None`: it has ended.
fn open(process: u32) -> Option<OwnedFd> {
    let process = Pid::from_raw(process.try_into().ok()?)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
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
        descriptors.extend(network.map(|network| PollFd::from_borrowed_fd(network.as_fd(), PollFlags::IN)));
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
