//! `truepeer check`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::CheckArgs;

const PAGE: Page = Page {
    which: table::CHECK,
    examples: &[
        example("Before a reload", "truepeer check -c truepeer.toml && systemctl reload truepeer"),
        example("The configuration with every default", "truepeer check --show"),
    ],
    notes: "\
Every problem is printed, with its line and column: keys, values, contradictions, files that can't be read, names that can't be resolved. Nothing is opened or changed.

Exit status: 0 if truepeer serve can carry the file out, perhaps with warnings; 2 if not.",
};

pub(super) fn command() -> Command {
    dress(CheckArgs::augment_args(Command::new("check")), &PAGE)
}
