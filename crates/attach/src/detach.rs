//! Detaching: waits for open connections, in one network namespace or in all.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use truepeer_bpf::{
    FlowCount, NewConnections, Place, detach_now, drain, finish, port_list, remove, still_open,
};

use super::{all, pins, tidy_up};
use truepeer_config::spec::{AttachPorts, PlaceArgs, Port};
use truepeer_sys::tell;

/// How often it checks whether the last connection has ended.
const INTERVAL: Duration = Duration::from_millis(200);

/// How to go on, by command: to cut connections off, and after an interruption.
#[derive(Clone, Copy)]
pub(super) struct Words {
    now: &'static str,
    again: &'static str,
}

pub(super) const OF_DETACH: Words = Words { now: "--now", again: "type detach again" };
const AFTER_REMOVE: Words = Words { now: "attach detach --now", again: "type attach detach" };

/// Stops checking new connections, and detaches when the last open one has ended.
pub(super) fn drain_and_detach(
    place: &Place,
    new: NewConnections,
    words: Words,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let mut waiting = Waiting::begin(new, words)?;
    let mut open = Some(drain(place, new)?);
    loop {
        match open.map(FlowCount::total) {
            Some(0) if finish(place, new)? => return Ok(()),
            None | Some(0) => bail!("{AGAIN}"),
            Some(count) => waiting.wait(count, out)?,
        }
        open = still_open(place)?;
    }
}

/// Takes ports out. If none is left, the rest goes, too; `now`: without waiting for open connections.
pub(super) fn remove_ports(
    place: &Place,
    ports: &[AttachPorts],
    now: bool,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let all = || ports.iter().flat_map(|ports| &ports.0);
    let tcp = all().filter_map(|port| if let Port::Tcp(port) = *port { Some(port) } else { None });
    let udp = all().filter_map(|port| if let Port::Udp { from, .. } = *port { Some(from) } else { None });
    let (tcp, udp) = (tcp.collect(), udp.collect());
    let is_any_left = remove(place, &tcp, &udp)?;
    let named = [port_list(tcp, ""), port_list(udp, "/udp")].concat();
    writeln!(out, "no longer served: port {}", named.join(", "))?;
    if is_any_left {
        return Ok(());
    }
    if now {
        // Not if another process has attached here meanwhile.
        if !finish(place, NewConnections::Pass)? {
            return Ok(());
        }
    } else {
        drain_and_detach(place, NewConnections::Pass, AFTER_REMOVE, out)?;
    }
    tidy_up(place, out)
}

/// What others attach while this waits is theirs.
const AGAIN: &str = "attached again meanwhile; not detached";

/// The same in every network namespace. One that can't be detached holds up no other.
pub(super) fn all(
    place: &PlaceArgs,
    now: bool,
    new: NewConnections,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let (found, mut failed) = all::find(&pins(place.pins.as_deref(), false)?)?;
    let mut waiting = Waiting::begin(new, OF_DETACH)?;
    let mut left: Vec<(all::Namespace, bool)> = found.into_iter().map(|one| (one, false)).collect();
    while !left.is_empty() {
        let mut open = 0;
        let mut later = Vec::new();
        for (namespace, is_drained) in left {
            match step(&namespace, is_drained, now, new) {
                Ok(0) => writeln!(out, "detached: {}", namespace.name())?,
                Ok(count) => {
                    open += count;
                    later.push((namespace, true));
                }
                Err(error) => {
                    tell!("error: {error:#}");
                    failed += 1;
                }
            }
        }
        left = later;
        if open > 0 {
            waiting.wait(open, out)?;
        }
    }
    ensure!(failed == 0, "not detached: {failed} network namespaces");
    Ok(())
}

/// How many connections one namespace has to wait for; 0: it is detached. One that can't be entered is left
/// as it is.
fn step(namespace: &all::Namespace, is_drained: bool, now: bool, new: NewConnections) -> Result<usize> {
    let netns = namespace.enter()?;
    let ended = if now {
        netns.run(|| detach_now(&namespace.place, new)).with_context(|| namespace.name())??;
        return Ok(0);
    } else if is_drained {
        still_open(&namespace.place)?
    } else {
        Some(drain(&namespace.place, new)?)
    };
    let again = || format!("{}: {AGAIN}", namespace.name());
    let open = ended.with_context(again)?.total();
    if open == 0 {
        let has_ended = netns.run(|| finish(&namespace.place, new)).with_context(|| namespace.name())??;
        ensure!(has_ended, again());
    }
    Ok(open)
}

/// For open connections, or for a signal.
struct Waiting {
    is_interrupted: Arc<AtomicBool>,
    new: NewConnections,
    words: Words,
    told: usize,
}

impl Waiting {
    fn begin(new: NewConnections, words: Words) -> Result<Self> {
        let is_interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&is_interrupted)).context("can't wait for signals")?;
        }
        Ok(Self { is_interrupted, new, words, told: 0 })
    }

    fn wait(&mut self, open: usize, out: &mut (dyn Write + Send)) -> Result<()> {
        let (fate, Words { now, again }) = (fate_of(self.new), self.words);
        if self.is_interrupted.load(Ordering::Relaxed) {
            bail!(
                "interrupted: {open} open connections are still served; new ones {fate}; {again} to resume waiting and \
                 then remove everything, detach --now to cut them off, attach to check new ones again"
            );
        }
        if open != self.told {
            writeln!(out, "waiting for {open} open connections ({now} cuts them off); new ones {fate}")?;
            out.flush()?;
            self.told = open;
        }
        thread::sleep(INTERVAL);
        Ok(())
    }
}

/// Describes how new connections are treated while `detach` waits.
fn fate_of(new: NewConnections) -> &'static str {
    match new {
        NewConnections::Pass => "pass unchecked, with their header (fail-open; --refuse-new refuses them)",
        NewConnections::Refuse => "are refused if their sender must send a header",
    }
}
