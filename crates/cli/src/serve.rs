//! `truepeer serve`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::ServeArgs;

const PAGE: Page = Page {
    which: table::SERVE,
    examples: &[example(
        "Everything that the file says, in one process",
        "truepeer serve -c /etc/truepeer/truepeer.toml",
    )],
    notes: "\
The file has a table for each job, [[proxy]], [[https]] or [[attach]], whose keys are the long options of the command of that name; a table [admin]; and a table [log]. The keys workers, drain-timeout and max-flows are for the whole process and come before the first table. Relative paths in the file begin at its directory.

Exit status: 2 if the file is wrong. Every problem is printed with its line and column.",
};

pub(super) fn command() -> Command {
    dress(ServeArgs::augment_args(Command::new("serve")), &PAGE)
}
