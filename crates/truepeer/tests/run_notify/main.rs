//! `truepeer run` by notification: real programs, and tests of this mechanism alone. Behaviours of every way
//! are in `matrix`.

mod after_wait;
mod bans;
mod bodies;
mod connects;
mod crowds;
mod destinations;
mod edges;
mod inherited;
mod kit;
mod lives;
mod names;
mod obstacles;
mod obstructed;
mod pollers;
mod programs;
mod rings;
mod sends;
mod service_manager;
mod sockets;

use std::process::ExitCode;

fn main() -> ExitCode {
    kit::choose("notify");
    let mut all = after_wait::tests();
    all.extend(bans::tests());
    all.extend(programs::tests());
    all.extend(sockets::tests());
    all.extend(names::tests());
    all.extend(edges::tests());
    all.extend(inherited::tests());
    all.extend(lives::tests());
    all.extend(connects::tests());
    all.extend(sends::tests());
    all.extend(service_manager::tests());
    all.extend(crowds::tests());
    all.extend(destinations::tests());
    all.extend(obstacles::tests());
    all.extend(pollers::tests());
    all.extend(rings::tests());
    truepeer_testbed::main(all)
}
