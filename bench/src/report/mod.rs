//! Tables for people: on the terminal, and as a page with charts.

mod chart;
mod page;
mod table;
pub(crate) mod text;

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::args::Plan;
use crate::measure::machine::Machine;
use crate::rounds::Results;

/// Writes `benchmarks.md` and its charts into `dir`. What stands outside of the page's marks is kept.
pub(crate) fn write(dir: &Path, machine: &Machine, plan: &Plan, results: &Results) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut charts = Vec::new();
    for &load in &plan.loads {
        if let Some(svg) = chart::draw(plan, results, load) {
            let name = format!("benchmark-{}.svg", load.name());
            fs::write(dir.join(&name), svg).with_context(|| name.clone())?;
            charts.push((load, name));
        }
    }
    let file = dir.join("benchmarks.md");
    let old = fs::read_to_string(&file).ok();
    let text = page::renew(old.as_deref(), &page::measured(machine, plan, results, &charts));
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    println!("wrote {}", file.display());
    Ok(())
}
