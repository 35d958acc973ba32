//! `truepeer doctor`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::DoctorArgs;

const PAGE: Page = Page {
    which: table::DOCTOR,
    examples: &[
        example(
            "Check that a web server on this machine can see its clients",
            "truepeer doctor -4 127.0.0.1:80 -6 [::1]:80",
        ),
        example(
            "The same, with missing routes added for the duration of the test",
            "truepeer doctor -4 127.0.0.1:80 --try",
        ),
    ],
    notes: "Nothing is changed without --try. The exit status is 0 if all required checks pass, otherwise 1.",
};

pub(super) fn command() -> Command {
    dress(DoctorArgs::augment_args(Command::new("doctor")), &PAGE)
}
