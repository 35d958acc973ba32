//! Tests of `truepeer attach` alone. `matrix` has those that every way shares.

mod accept_queue;
mod bans;
mod cgroups;
mod changes;
mod containers;
mod counted;
mod cut;
#[path = "../run_notify/destinations.rs"]
mod destinations;
mod entries;
mod everywhere;
mod flows;
mod following;
mod full_cgroup;
mod hidden;
mod io_uring;
mod kit;
mod leftovers;
mod links;
mod needs;
mod offloads;
mod other_users;
mod own_address;
mod pools;
mod programs;
mod refusals;
mod reloads;
mod restarts;
mod rules;
mod servers;
mod several;
mod stacks;
mod surroundings;
mod tables;
mod udp;
mod watch;
mod whois;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = io_uring::run_if_asked() {
        return status;
    }
    let all = [
        flows::tests(),
        following::tests(),
        refusals::tests(),
        reloads::tests(),
        rules::tests(),
        changes::tests(),
        bans::tests(),
        containers::tests(),
        counted::tests(),
        cut::tests(),
        destinations::tests(),
        cgroups::tests(),
        entries::tests(),
        everywhere::tests(),
        full_cgroup::tests(),
        links::tests(),
        needs::tests(),
        other_users::tests(),
        own_address::tests(),
        hidden::tests(),
        programs::tests(),
        servers::tests(),
        several::tests(),
        restarts::tests(),
        stacks::tests(),
        pools::tests(),
        accept_queue::tests(),
        leftovers::tests(),
        surroundings::tests(),
        tables::tests(),
        udp::tests(),
        watch::tests(),
        whois::tests(),
        words::tests(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
