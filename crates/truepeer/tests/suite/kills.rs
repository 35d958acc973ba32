//! kill -9 again and again, at random moments, and what the kernel must hold after it.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::{Bed, KernelState, Running, ip_here};

use crate::peers;

/// A backend for IPv6 clients at an address of this host: for its sake truepeer sets a switch of the kernel,
/// for TCP.
pub(crate) const BACKEND_OF_THIS_HOST: &str = "[fd09::1]:8000";

/// Starts the program. True: waits until it serves.
pub(crate) type Start = fn(&Bed, bool) -> Result<Running>;

/// A program that is killed again and again.
pub(crate) struct Killed<'a> {
    bed: &'a Bed,
    start: Start,
    running: Running,
    /// While it serves.
    serves: KernelState,
    /// After an orderly end without any kill.
    ended: KernelState,
    chance: Chance,
}

impl<'a> Killed<'a> {
    /// Starts and stops it once, to see what the kernel holds then, and starts it again.
    pub(crate) fn make(bed: &'a Bed, seed: u64, start: Start) -> Result<Self> {
        ip_here(&["-6 addr add fd09::1/128 dev lo nodad"])?;
        let before = KernelState::now(bed, None)?;
        let once = start(bed, true)?;
        let serves = KernelState::now(bed, None)?;
        once.stop()?;
        if peers::peer().is_none() {
            let is_spliced = serves.programs.contains("truepeer-splice");
            let empty = if is_spliced { "/sys/fs/bpf/truepeer-splice\n" } else { "" };
            let expected = KernelState { programs: format!("{empty}{}", before.programs), ..before };
            expected.wait_until_again(bed, None).context("after an end without a kill")?;
        }
        let ended = KernelState::now(bed, None)?;
        eprintln!("seed {seed}");
        Ok(Self { bed, start, running: start(bed, true)?, serves, ended, chance: Chance::new(seed) })
    }

    /// Whether it sets this switch while it serves.
    pub(crate) fn sets(&self, switch: &str) -> bool {
        let line = format!("{switch}=1");
        self.serves.routing.contains(&line) && !self.ended.routing.contains(&line)
    }

    /// Kills it. The next one must serve, with nothing in the kernel but what the first one had.
    pub(crate) fn times(&mut self, times: usize, serves: impl Fn() -> Result<()>) -> Result<()> {
        let mut counts = [0; 4];
        for number in 0..times {
            thread::sleep(Duration::from_millis(self.chance.below(100) as u64));
            let way = if peers::peer().is_some() { 0 } else { self.chance.below(counts.len()) };
            counts[way] += 1;
            self.kill(way).with_context(|| format!("kill {number} in way {way}"))?;
            self.running = (self.start)(self.bed, true).with_context(|| format!("start {number}"))?;
            if peers::peer().is_none() {
                self.serves.wait_until_again(self.bed, None).with_context(|| format!("start {number}"))?;
            }
            serves()?;
        }
        let [alone, with_keeper, at_its_end, at_its_start] = counts;
        eprintln!(
            "killed alone {alone} times, after its keepers {with_keeper}, while it ended {at_its_end}, and {at_its_start} times also while the next one started"
        );
        Ok(())
    }

    fn kill(&mut self, way: usize) -> Result<()> {
        let running = &self.running;
        match way {
            1 => {
                for keeper in running.children()? {
                    kill_process(Pid::from_raw(keeper).context("0")?, Signal::KILL)?;
                }
            }
            2 => {
                running.signal(Signal::TERM)?;
                thread::sleep(Duration::from_millis(self.chance.below(20) as u64));
            }
            _ => {}
        }
        // It may have ended.
        let _ = running.signal(Signal::KILL);
        running.wait_end()?;
        if way == 3 {
            let next = (self.start)(self.bed, false)?;
            thread::sleep(Duration::from_millis(self.chance.below(150) as u64));
            next.signal(Signal::KILL)?;
            next.wait_end()?;
        }
        Ok(())
    }

    /// Ends the last one in order. Nothing is left that an end without a kill does not leave.
    pub(crate) fn end(self) -> Result<()> {
        self.running.stop()?;
        self.ended.wait_until_again(self.bed, None).context("at the end")
    }
}
