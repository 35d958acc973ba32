//! Tables for people: on the terminal, and as a page with charts.

mod chart;
mod introduction;
mod machine;
mod page;
mod table;
pub(crate) mod text;

use std::fs;
use std::path::Path;

use anyhow::Context;

use truepeer_testbed::Bed;

use crate::args::Plan;
use crate::rounds::Results;
use crate::suites::Suite;

use self::machine::Machine;

/// The machine of each suite. Reads its state now, before the loads.
pub(crate) fn examine(bed: &Bed, plan: &Plan) -> anyhow::Result<Vec<(Suite, Machine)>> {
    plan.suites().map(|suite| Ok((suite, Machine::examine(bed, plan, suite)?))).collect()
}

/// Writes the page of each measured suite, and its charts, into `dir`. Text outside of the marks is kept.
pub(crate) fn write(
    dir: &Path,
    machines: &[(Suite, Machine)],
    plan: &Plan,
    results: &Results,
) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    for (suite, machine) in machines {
        let part = page::Part { suite: *suite, origin: plan.origin };
        let mut charts = Vec::new();
        for load in plan.loads_of(*suite) {
            if let Some(svg) = chart::draw(plan, results, load) {
                let name = page::chart_name(part, load);
                fs::write(dir.join(&name), svg).with_context(|| name.clone())?;
                charts.push((load, name));
            }
        }
        let file = dir.join(page::file_name(*suite));
        let old = fs::read_to_string(&file).ok();
        let tables = dir.join(page::tables_name(*suite));
        fs::write(&tables, page::tables(plan, results, *suite))
            .with_context(|| tables.display().to_string())?;
        let measured = page::measured(machine, part, plan, results, &charts);
        let text = page::renew(part, old.as_deref(), &measured);
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        println!("wrote {}", file.display());
    }
    Ok(())
}
