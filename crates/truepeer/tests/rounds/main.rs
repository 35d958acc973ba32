//! truepeer is reloaded, replaced and stopped while HAProxy and dnsdist send to it: nobody notices.

mod chart;
mod descriptors;
mod faults;
mod flat;
mod load;
mod samples;
mod soak;
mod stage;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Running, Test};

use crate::load::Load;
use crate::stage::Stage;

fn main() -> ExitCode {
    let test = |name: &str, count| {
        let test = Test::new(name, move |bed| nobody_notices(bed, count));
        test.needs_program("haproxy").needs_program("dnsdist").needs_program("unbound").needs_program("nginx")
    };
    let mut all = vec![
        test("nobody_notices_reload_upgrade_and_restart", 2),
        test("nobody_notices_20_rounds_of_reload_upgrade_and_restart", 20)
            .time_limit(Duration::from_secs(1200))
            .long(),
    ];
    all.extend(soak::tests());
    truepeer_testbed::main(all)
}

/// In each round the process is reloaded, replaced by `serve --take-over`, and stopped and started again as a
/// service manager does that keeps the listening sockets open.
fn nobody_notices(bed: &Bed, rounds: usize) -> anyhow::Result<()> {
    let stage = Stage::start(bed, "off", "6s")?;
    let mut running = stage.start_by_manager(bed)?;
    let load = Load::new(&stage)?;
    let outcome = thread::scope(|scope| {
        load.start(scope);
        let outcome = (0..rounds).try_for_each(|round| -> anyhow::Result<()> {
            running = one_round(bed, &stage, &load, round, &running)?;
            Ok(())
        });
        load.end();
        outcome
    });
    load.verdict(&stage.clients_that_asked())?;
    outcome
}

fn one_round(
    bed: &Bed,
    stage: &Stage,
    load: &Load<'_>,
    round: usize,
    running: &Running,
) -> anyhow::Result<Running> {
    load.begin_phase(format!("round {round}, reload"))?;
    stage.write_config(bed, round)?;
    let said = stage.truepeer(&["reload"]).run(bed)?;
    ensure!(said.contains("8443 have new ") && said.contains(":8446 was "), "{said}");

    load.begin_phase(format!("round {round}, upgrade"))?;
    let new = stage.truepeer(&["serve", "--take-over"]).start(bed)?;
    new.wait_for_log("upgrade: serves in place of process")?;
    load.begin_phase(format!("round {round}, after the upgrade"))?;
    ends_in_order(running)?;

    load.begin_phase(format!("round {round}, restart"))?;
    new.signal(Signal::TERM)?;
    ends_in_order(&new)?;
    let next = stage.start_by_manager(bed)?;
    load.begin_phase(format!("round {round}, after the restart"))?;
    Ok(next)
}

/// All its sessions have ended before it. Flows may be left after a stop: their clients go on asking.
fn ends_in_order(truepeer: &Running) -> anyhow::Result<()> {
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(status.success() && log.contains("stopping with 0 sessions"), "{status}: {log}");
    Ok(())
}
