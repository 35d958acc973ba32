//! `truepeer proxy -p udp` between senders and backends, in private networks.

mod buffers;
mod by_hand;
mod delivery;
mod dialects;
mod dropin;
mod flows;
mod hostile;
mod kit;
mod leaving;
mod no_memory;
mod operation;
mod programs;
mod tunnel;

use std::process::ExitCode;

use truepeer_testbed::{Bed, Test};

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
        leaving::tests(),
        by_hand::tests(),
        offloaded(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}

/// Once more, while each flow leaves user space as soon as it can.
fn offloaded() -> Vec<Test> {
    const AT_ONCE: [&str; 2] = ["--splice-after", "0"];
    let all = [
        dialects::tests(),
        flows::tests(),
        delivery::tests(),
        tunnel::tests(),
        programs::tests(),
        hostile::tests(),
        operation::tests(),
    ];
    let at_once = |bed: &Bed| {
        bed.add_proxy_options(&AT_ONCE);
        Ok(())
    };
    let offloaded = |test: Test| test.between(at_once, |_| Ok(())).of_group("offloaded");
    all.into_iter().flatten().map(offloaded).collect()
}
