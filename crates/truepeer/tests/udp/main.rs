//! `truepeer proxy -p udp` between senders and backends, in private networks.

mod buffers;
mod delivery;
mod dialects;
mod dropin;
mod flows;
mod hostile;
mod kit;
mod no_memory;
mod operation;
mod programs;
mod tunnel;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [
        dialects::tests(),
        flows::tests(),
        delivery::tests(),
        tunnel::tests(),
        dropin::tests(),
        programs::tests(),
        hostile::tests(),
        operation::tests(),
        buffers::tests(),
        no_memory::tests(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
