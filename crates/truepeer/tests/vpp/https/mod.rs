//! `truepeer https --stack vpp` on this machine's VPP: behaviour that is the same on every network stack.

mod bodies;
mod learns;
mod lives;
mod neighbours;
mod stand;

use truepeer_testbed::Test;

pub(crate) fn tests() -> Vec<Test> {
    let all = [bodies::tests(), learns::tests(), lives::tests(), neighbours::tests()];
    // Each has its own VPP, which keeps a core busy.
    all.into_iter().flatten().map(|test| test.of_group("https").alone()).collect()
}
