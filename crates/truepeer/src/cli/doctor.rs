//! `truepeer doctor`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::spec::{DoctorArgs, table};

const PAGE: Page = Page {
    which: table::DOCTOR,
    examples: &[
        example(
            "Whether a web server on this machine can be shown its clients",
            "truepeer doctor -4 127.0.0.1:80 -6 [::1]:80",
        ),
        example(
            "The same, with the missing routes made for the time of the test",
            "truepeer doctor -4 127.0.0.1:80 --try",
        ),
    ],
    notes: "Nothing is changed without --try. Ends with status 0 if everything that is needed holds, else with 1.",
};

pub(super) fn command() -> Command {
    dress(DoctorArgs::augment_args(Command::new("doctor")), &PAGE)
}
