//! `proxy --splice auto`: sessions whose packets the kernel translates, and what remains of them in truepeer.

mod again;
mod bridge;
mod busy;
mod crowd;
mod devices;
mod family;
mod firewalls;
mod heirs;
mod keeper;
mod killed;
mod later;
mod leftovers;
mod life;
mod lossy;
mod silent;
mod stand;
mod ways;
mod wire;

use std::process::ExitCode;

use truepeer_testbed::matrix::{self, ByProxy};

fn main() -> ExitCode {
    let mut all = [
        life::tests(),
        again::tests(),
        busy::tests(),
        heirs::tests(),
        keeper::tests(),
        killed::tests(),
        leftovers::tests(),
        silent::tests(),
        bridge::tests(),
        crowd::tests(),
        lossy::tests(),
        wire::tests(),
        ways::tests(),
        devices::tests(),
        later::tests(),
        firewalls::tests(),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    all.extend(matrix::tests(ByProxy::new(env!("CARGO_BIN_EXE_truepeer")).spliced()));
    truepeer_testbed::main(all)
}
