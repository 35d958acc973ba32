//! `truepeer doctor`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::DoctorArgs;

const PAGE: Page = Page {
    which: table::DOCTOR,
    examples: &[
        example(
            "Why does the server on port 443 not see its clients? And: what is there on this host",
            "truepeer doctor 443\ntruepeer doctor",
        ),
        example(
            "Check that a web server on this machine can see its clients",
            "truepeer doctor -4 127.0.0.1:80 -6 [::1]:80",
        ),
        example(
            "The same, with missing routes added for the duration of the test",
            "truepeer doctor -4 127.0.0.1:80 --try",
        ),
    ],
    notes: "Without a port or a backend it looks at the configuration file, the truepeer that runs by it, what is attached, its devices, and servers. With a port it tells who listens, who takes headers off, by which devices, who came and who was refused in the last ten minutes, and makes a connection. With -4, -6 or --listen-transparent it checks whether proxy would work for them, and lists what each way needs. Refusals of attach are taken from attach status --follow. The commands that it prints refuse nobody who is served now.\n\nNothing is changed without --try. The exit status is 0 if all required checks pass, otherwise 1.",
};

pub(super) fn command() -> Command {
    dress(DoctorArgs::augment_args(Command::new("doctor")), &PAGE)
}
