//! Programs' versions.

use truepeer_testbed::{Bed, Program};

/// The first line of a program's version output.
pub(crate) fn first_line_of(bed: &Bed, program: &str, args: &[&str]) -> String {
    let said = Program::new(program).args(args).start(bed).and_then(|running| {
        running.wait_end()?;
        Ok(running.log())
    });
    said.ok()
        .and_then(|text| Some(text.lines().next()?.to_owned()))
        .unwrap_or("of unknown version".to_owned())
}
