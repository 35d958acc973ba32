//! Which program the faults happen to: truepeer, or the one that `FAULTS_OF` names
//! ([`truepeer_testbed::peers`]). For the peers' columns of docs/reliability.md; those tests are expected to
//! fail.

use truepeer_testbed::peers::{Place, classic_rules, over_tcp};
use truepeer_testbed::{Bed, Program, Running};

pub(crate) use truepeer_testbed::peers::peer;

use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, proxy};

/// Starts it. `options` are truepeer's; the others wait for headers as long.
pub(crate) fn start(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    start_with(bed, options, |program| program)
}

/// The same; the caller can change how the program is run.
pub(crate) fn start_with(
    bed: &Bed,
    options: &[&str],
    adjust: impl FnOnce(Program) -> Program,
) -> anyhow::Result<Running> {
    let Some(name) = peer() else { return proxy().args(options).with(adjust).start(bed) };
    add_rules(bed)?;
    let place = Place { listen: DOOR_V4, ipv4: BACKEND_V4, ipv6: BACKEND_V6 };
    let peer = adjust(over_tcp(bed, &name, place)?).start(bed)?;
    peer.wait_listening(DOOR_V4)?;
    Ok(peer)
}

/// Those that a peer needs, unless a fault left them.
pub(crate) fn add_rules(bed: &Bed) -> anyhow::Result<()> {
    let rules = Program::new("ip").args(["rule"]).run(bed)?;
    if rules.contains("lookup 123") { Ok(()) } else { classic_rules(bed) }
}
