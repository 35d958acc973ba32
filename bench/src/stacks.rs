//! The guide's case on two network stacks: origin, proxy and load in three network namespaces connected by
//! veth pairs, and in three of VPP's namespaces. Each is a separate program, even the load, so that VPP's
//! library can be preloaded.
//!
//! Two cores: on the kernel's stack the proxy has one, origin and load share the other. VPP, which polls, has
//! its own core, and all programs share the other.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use truepeer_testbed::{Bed, Program, Running};

use crate::credentials::KeyKind;
use crate::demo_https::{
    ABSENT, Figures, Ground, LOOPBACK, LoadArgs, Parties, Role, Stop, Vpp, installation,
};
use crate::measure::cpu;
use crate::metric::{Metric, Sample};
use crate::pin::Pin;
use crate::suites::{ON_STACKS, Scale};

/// The network stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stack {
    Kernel,
    Vpp,
}

/// The proxy before the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proxy {
    None,
    Nginx,
    Truepeer,
}

/// A proxy on a stack.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) stack: Stack,
    pub(crate) proxy: Proxy,
    /// truepeer, which also starts VPP.
    pub(crate) truepeer: PathBuf,
}

impl Case {
    /// What it lacks on this machine, if anything.
    pub(crate) fn missing(&self) -> Option<String> {
        (self.stack == Stack::Vpp && installation(None).is_none()).then(|| format!("skipped: {ABSENT}"))
    }

    /// VPP's version, as it reports it.
    pub(crate) fn version(&self, bed: &Bed) -> Option<String> {
        if self.stack == Stack::Kernel || self.proxy != Proxy::None {
            return None;
        }
        let vpp = installation(None)?;
        let program = if vpp.is_dir() { vpp.join("bin/vpp") } else { vpp };
        let said = Program::new(program).arg("--version").start(bed).ok()?;
        said.wait_end().ok()?;
        let log = said.log();
        let (version, _) = log.lines().next()?.split_once(" built ")?;
        Some(version.to_owned())
    }

    /// Starts everything, runs the load for a while, and stops everything.
    pub(crate) fn measure(&self, bed: &Bed, keys: KeyKind, scale: &Scale) -> anyhow::Result<Sample> {
        let load = LoadArgs::closed_loop(ON_STACKS, scale.warm_up, scale.window);
        let parties = Parties::new(bed, &self.truepeer, load, keys)?;
        // On a separate thread: the core assignment is inherited by everything that it starts, and by nothing
        // else.
        let (figures, cpu) = thread::scope(|scope| {
            let measuring = scope.spawn(|| self.figures(bed, &parties));
            measuring.join().unwrap_or_else(|_| anyhow::bail!("a panic"))
        })?;
        let mut sample = Sample::default();
        sample.put(Metric::Requests, figures.requests_per_second);
        sample.put(Metric::P50, figures.p50_micros);
        sample.put(Metric::P99, figures.p99_micros);
        sample.put(Metric::P999, figures.p999_micros);
        if let Some(cpu) = cpu {
            // The warm-up has the same rate.
            let requests = figures.requests_per_second * (scale.warm_up + scale.window).as_secs_f64();
            sample.put(Metric::CpuPerOne, cpu.as_secs_f64() * 1e6 / requests);
        }
        Ok(sample)
    }

    /// And the proxy's CPU time meanwhile, without VPP's.
    fn figures(&self, bed: &Bed, parties: &Parties<'_>) -> anyhow::Result<(Figures, Option<Duration>)> {
        let pin = Pin::make().unwrap_or_default();
        let ground = self.ground(bed, &pin)?;
        pin.for_others()?;
        self.measure_on(&ground, bed, &pin, parties)
    }

    fn ground<'a>(&self, bed: &'a Bed, pin: &Pin) -> anyhow::Result<Ground<'a>> {
        match self.stack {
            Stack::Kernel => Ground::kernel(),
            Stack::Vpp => {
                let vpp = installation(None).context(ABSENT)?;
                let core = pin.contestants_core().map(|core| format!("--core={core}"));
                let options: Vec<_> = [LOOPBACK].into_iter().chain(core.as_deref()).collect();
                Ok(Ground::Vpp(Vpp::up(bed, &self.truepeer, &vpp, &options, None)?))
            }
        }
    }

    fn measure_on(
        &self,
        ground: &Ground<'_>,
        bed: &Bed,
        pin: &Pin,
        parties: &Parties<'_>,
    ) -> anyhow::Result<(Figures, Option<Duration>)> {
        let (at, stop) = (ground.addresses(), Stop::never());
        let start = |program: &Program, at| ground.start(bed, program, at, &stop);
        let _origin = start(&ground.put(Role::Server, parties.origin(&at)?), at.origin())?;
        if self.stack == Stack::Kernel {
            pin.for_contestant()?;
        }
        let proxy = match self.proxy {
            Proxy::None => None,
            Proxy::Nginx => Some(start(&ground.put(Role::Proxy, parties.nginx_proxy(&at)?), at.entrance())?),
            Proxy::Truepeer => Some(start(&ground.put_truepeer(parties.proxy(&at)), at.entrance())?),
        };
        pin.for_others()?;
        let load = match self.proxy {
            // In the proxy's place: VPP's layout has no path around it.
            Proxy::None => ground.put(Role::Proxy, parties.load_without_proxy(&at)?),
            Proxy::Nginx | Proxy::Truepeer => ground.put(Role::Client, parties.load(&at)?),
        };
        let cpu_of =
            |proxy: &Running| cpu::members(proxy.pid()).into_iter().map(cpu::time_of).sum::<Duration>();
        let before = proxy.as_ref().map(cpu_of);
        let said = load.run(bed)?;
        let cpu = proxy.as_ref().map(cpu_of).zip(before).map(|(after, before)| after.saturating_sub(before));
        let figures = Figures::find(&said).with_context(|| format!("no figures in {said}"))?;
        Ok((figures, cpu))
    }
}
