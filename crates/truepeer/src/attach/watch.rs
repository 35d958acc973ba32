//! `attach --container NAME --watch`: attaches again whenever the container is started again, which gives it another network namespace.
//!
//! While the container runs, this process sleeps until the container's first process ends. While it doesn't, the engine is asked, less often as
//! time goes by. What is attached stays when the watch ends: a restart of the watch cuts nothing off.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::engine::{self, State};
use super::privileges;
use crate::output::tell;
use crate::spec::{AttachSpec, AttachTarget, Engine};

/// How often the engine is asked for a container that doesn't run: often at first, because a restart is quick.
const PAUSES: [(Duration, Duration); 3] = [
    (Duration::from_secs(10), Duration::from_millis(200)),
    (Duration::from_secs(60), Duration::from_secs(1)),
    (Duration::MAX, Duration::from_secs(5)),
];

/// `put` attaches to the container as it is then.
pub(super) fn watch(
    spec: &AttachSpec,
    put: &mut dyn FnMut(&mut (dyn Write + Send)) -> Result<()>,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let AttachTarget::Container { name, engine } = spec.place.target() else {
        bail!("--watch: expected --container NAME, which its engine can find again");
    };
    let signals = Signals::catch()?;
    let mut is_first = true;
    let mut last = None;
    loop {
        let Some(process) = wait_for_start(&name, engine, last, &signals, out)? else { return Ok(()) };
        // Opened before attaching: a process that ends meanwhile is noticed.
        let handle = open(process);
        match put(out).map_err(privileges::explain) {
            Ok(()) => {
                out.flush()?;
                say(&[
                    NotifyState::Ready,
                    NotifyState::Status(&format!("attached to {name} (process {process})")),
                ]);
            }
            Err(error) if is_first => return Err(error),
            Err(error) => tell!("error: {error:#}; {name} is attached when it starts again"),
        }
        (is_first, last) = (false, Some(process));
        let Some(handle) = handle else { continue };
        if signals.come_before(Some(&handle), None)? {
            return Ok(());
        }
        say(&[NotifyState::Status(&format!("{name} has ended"))]);
        writeln!(out, "{name} has ended; waiting for its start")?;
        out.flush()?;
    }
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
        let waited = begun.elapsed();
        let pause = PAUSES
            .iter()
            .find(|(until, _)| waited < *until)
            .map_or(Duration::from_secs(5), |(_, pause)| *pause);
        if signals.come_before(None, Some(pause))? {
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

    /// Whether one comes before the process ends, or before the time is over.
    fn come_before(&self, end: Option<&OwnedFd>, time: Option<Duration>) -> Result<bool> {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut descriptors = vec![PollFd::new(&self.0, PollFlags::IN)];
        descriptors.extend(end.map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)));
        loop {
            match poll(&mut descriptors, time.as_ref()) {
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let has_come = !descriptors[0].revents().is_empty();
        if has_come {
            say(&[NotifyState::Stopping]);
        }
        Ok(has_come)
    }
}
