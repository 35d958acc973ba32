//! `truepeer proxy -p udp` between senders and backends, in private networks.

mod buffers;
mod by_hand;
mod changes;
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
        changes::tests(),
        by_hand::tests(),
        offloaded(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}

/// Once more, while each flow leaves user space as soon as it can. Not those of order: while a flow leaves, a
/// datagram may overtake those that wait in truepeer's socket.
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
    let is_of_order = |test: &Test| test.name() == "order_is_kept_within_a_flow";
    let offloaded = |test: Test| test.between(at_once, |_| Ok(())).of_group("offloaded");
    all.into_iter().flatten().filter(|test| !is_of_order(test)).map(offloaded).collect()
}
