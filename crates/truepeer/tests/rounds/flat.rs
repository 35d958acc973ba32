//! Whether what is held stays flat: two moments of the first process, and the last process beside the first
//! one.

use anyhow::{Context as _, ensure};

use crate::samples::Sample;

/// What a value may grow by: a share of it (one part in so many; 0: none), and this much more.
struct Measure {
    name: &'static str,
    of: fn(&Sample) -> u64,
    one_in: u64,
    more: u64,
}

const MEASURES: [Measure; 9] = [
    Measure { name: "KiB that are resident", of: |one| one.resident_kib, one_in: 10, more: 8 << 10 },
    // Pipes have a limit of their own: see `pooled_pipes`.
    Measure { name: "descriptors", of: own_descriptors, one_in: 4, more: 8 },
    Measure { name: "UDP flows", of: |one| one.flows, one_in: 4, more: 100 },
    Measure { name: "TCP sockets of the host", of: |one| one.sockets, one_in: 4, more: 40 },
    Measure { name: "KiB of these sockets", of: |one| one.kernel.tcp_kib, one_in: 2, more: 8 << 10 },
    // Ended ones rest for five seconds: more of them, the less busy the machine is with other work.
    Measure { name: "sessions in BPF tables", of: |one| one.kernel.spliced, one_in: 4, more: 200 },
    Measure { name: "routing rules", of: |one| one.kernel.rules, one_in: 0, more: 0 },
    Measure { name: "routes", of: |one| one.kernel.routes, one_in: 0, more: 0 },
    Measure { name: "pins", of: |one| one.kernel.pins, one_in: 0, more: 0 },
];

/// Descriptors of pipes that a process may keep: each worker keeps at most 16 empty pipes for the next
/// transfer.
pub(crate) fn pooled_pipes() -> anyhow::Result<u64> {
    Ok(2 * 16 * std::thread::available_parallelism()?.get() as u64)
}

/// Without those of pipes and flows, which come and go. The figures are of slightly different moments.
fn own_descriptors(one: &Sample) -> u64 {
    one.descriptors.saturating_sub(one.pipes + one.flows)
}

/// The first two steps of the first process, its last two, and the last two of the last process: it has been
/// reloaded as often by then. `steps`: those of each of the three parts.
pub(crate) fn stays_flat(samples: &[Sample], steps: usize) -> anyhow::Result<()> {
    let early = of_steps(samples, [1, 2])?;
    let late = of_steps(samples, [steps - 1, steps])?;
    let last = of_steps(samples, [3 * steps - 1, 3 * steps])?;
    for Measure { name, of, one_in, more } in &MEASURES {
        let [early, late, last] = [&early, &late, &last].map(|samples| median(samples, of));
        let most = |before: u64| before + before.checked_div(*one_in).unwrap_or_default() + more;
        eprintln!("soak: {name}: {early}, {late}; the last process: {last}");
        ensure!(late <= most(early), "{name}: {early}, and later {late}");
        ensure!(last <= most(late), "{name}: {late} of the first process, {last} of the last one");
    }
    pipes_are_used_and_kept_within_limits(samples)?;
    let most = |of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap_or_default();
    ensure!(most(|sample| sample.spliced) > 0, "no session has left user space");
    ensure!(most(|sample| sample.kernel.spliced.min(sample.kernel.keys)) > 0, "the BPF tables were empty");
    Ok(())
}

fn pipes_are_used_and_kept_within_limits(samples: &[Sample]) -> anyhow::Result<()> {
    let most = |is_load: bool| {
        let samples = samples.iter().filter(|sample| (sample.step > 0) == is_load);
        samples.map(|sample| sample.pipes).max().unwrap_or_default()
    };
    let (idle, load) = (most(false), most(true));
    ensure!(load > idle, "no session has used a pipe: {load} descriptors of pipes");
    ensure!(load <= idle + pooled_pipes()?, "{load} descriptors of pipes, {idle} without load");
    Ok(())
}

fn of_steps(samples: &[Sample], steps: [usize; 2]) -> anyhow::Result<Vec<Sample>> {
    let of_steps: Vec<_> =
        samples.iter().copied().filter(|sample| steps.contains(&(sample.step.saturating_sub(1)))).collect();
    let first = of_steps.first().with_context(|| format!("no looks in the steps {steps:?}"))?;
    ensure!(
        of_steps.iter().all(|sample| sample.pid == first.pid),
        "several processes in the steps {steps:?}"
    );
    Ok(of_steps)
}

fn median(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<_> = samples.iter().map(of).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or_default()
}
