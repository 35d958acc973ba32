//! The assignment of cores. By default the scheduler decides. Pinned, the contestant has one core, and
//! backend and load have the others, so the result is what a contestant can do with one core.

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Set for a thread, and inherited by everything that it starts.
#[derive(Debug, Default)]
pub(crate) struct Pin(Option<Cores>);

#[derive(Debug)]
struct Cores {
    contestant: CpuSet,
    others: CpuSet,
    others_count: usize,
}

impl Pin {
    /// The first of this process's cores for the contestant, the others for everything else.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let all = sched_getaffinity(None).context("sched_getaffinity")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core));
        let (mut contestant, mut others) = (CpuSet::new(), CpuSet::new());
        contestant.set(cores.next().context("a core")?);
        let mut others_count = 0;
        for core in cores {
            others.set(core);
            others_count += 1;
        }
        anyhow::ensure!(others_count > 0, "pinning needs two cores");
        Ok(Self(Some(Cores { contestant, others, others_count })))
    }

    /// Cores of load and backend, if they are pinned.
    pub(crate) fn others_count(&self) -> Option<usize> {
        self.0.as_ref().map(|cores| cores.others_count)
    }

    /// The contestant's core, if they are pinned.
    pub(crate) fn contestants_core(&self) -> Option<usize> {
        let cores = self.0.as_ref()?;
        (0..CpuSet::MAX_CPU).find(|core| cores.contestant.is_set(*core))
    }

    /// Programs that the calling thread starts from now on belong to the contestant.
    pub(crate) fn for_contestant(&self) -> anyhow::Result<()> {
        self.0.as_ref().map_or(Ok(()), |cores| set(&cores.contestant))
    }

    /// The calling thread, and programs that it starts from now on, are load or backend.
    pub(crate) fn for_others(&self) -> anyhow::Result<()> {
        self.0.as_ref().map_or(Ok(()), |cores| set(&cores.others))
    }
}

fn set(cores: &CpuSet) -> anyhow::Result<()> {
    sched_setaffinity(None, cores).context("sched_setaffinity")
}
