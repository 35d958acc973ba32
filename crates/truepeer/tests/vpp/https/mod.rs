//! `truepeer https --stack vpp`, by a VPP of this machine's: what must hold on any network stack.

mod bodies;
mod learns;
mod lives;
mod neighbours;
mod stand;

use truepeer_testbed::Test;

pub(crate) fn tests() -> Vec<Test> {
    let all = [bodies::tests(), learns::tests(), lives::tests(), neighbours::tests()];
    // Each has a VPP of its own, which keeps a core busy.
    all.into_iter().flatten().map(|test| test.of_group("https").alone()).collect()
}
