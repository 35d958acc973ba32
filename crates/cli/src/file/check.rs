//! `truepeer check`.

use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;

use super::keys::in_keys;
use super::source::renderer;
use super::{as_service, judge, show};
use truepeer_sys::tell;

/// Prints every finding on standard error. Without errors, prints on `out` the whole configuration
/// (`wants_show`) or its numbers of entries and listeners. `as_service`: what the packaged service's user
/// can't read is an error; where its unit is installed, root is warned of it in any case.
pub fn check(path: &Path, wants_show: bool, as_service: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let judged = judge::read(path);
    if !judged.findings.is_empty() {
        tell!("{}", judged.findings.render(&renderer(io::stderr().is_terminal())));
    }
    let Some((process, _)) = judged.plan else { return Ok(ExitCode::from(2)) };
    if as_service || as_service::concerns(path) {
        let files = [vec![path.to_owned()], process.files()].concat();
        let unreadable = as_service::unreadable(&files);
        let word = if as_service { "error" } else { "warning" };
        unreadable.iter().for_each(|file| tell!("{word}: {file}"));
        if as_service && !unreadable.is_empty() {
            return Ok(ExitCode::from(2));
        }
    }
    if wants_show {
        let dir = std::path::absolute(path)?;
        out.write_all(show::whole(&judged.written, dir.parent().unwrap_or(Path::new("/"))).as_bytes())?;
    } else {
        for entry in &process.entries {
            for note in entry.notes().into_iter().chain(entry.notes_of_senders()) {
                writeln!(out, "note: {}", in_keys(&note))?;
            }
        }
        let count = |number: usize, one: &str, many: &str| {
            format!("{number} {}", if number == 1 { one } else { many })
        };
        let (entries, listeners) = (process.entries.len(), process.binds().len());
        let (entries, listeners) =
            (count(entries, "entry", "entries"), count(listeners, "listener", "listeners"));
        writeln!(out, "{}: no errors; {entries}, {listeners}", path.display())?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
