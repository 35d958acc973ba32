//! Segments that reach the listener unjudged, and some that only seem to.

use anyhow::{Context, Result, ensure};
use truepeer_testbed::packets::Wire;
use truepeer_testbed::{Bed, Test, tests};

use crate::kit::{CLIENT, header, is_closed, is_served};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        the_end_of_a_handshake_on_an_unattached_device_bypasses_nothing,
        asymmetric_routes_work_without_rp_filter,
        a_plain_port_of_another_namespace_is_left_alone,
    ];
    all.into_iter().map(|test| test.of_group("unjudged")).collect()
}

const OTHER: [u8; 6] = [2, 0, 0, 0, 1, 2];

fn first_bytes() -> Vec<u8> {
    [header(CLIENT), b"DATA1".to_vec()].concat()
}

/// The SYN was judged. The kernel would take these bytes as the first ones after the header, without a
/// client.
fn the_end_of_a_handshake_on_an_unattached_device_bypasses_nothing(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    let other = stage.wire.another_device("other")?;
    // Named: where the test is slow, the other one has its link-local address by now.
    stage.attach(&["--port", "80", "--allow", "any", "--dev", "wire"])?;
    for v6 in [false, true] {
        let mut talker = stage.talker(v6, 4000 + u16::from(v6));
        talker.open()?;
        let before = stage.counter("refused_unjudged")?;
        other.send(&Wire::frame_to(OTHER, &talker.data(&first_bytes()).packet(), &[]))?;
        stage.nothing_is_accepted()?;
        ensure!(stage.counter("refused_unjudged")? == before + 1, "IPv6: {v6}: {}", stage.status()?);
        is_served(&stage, &mut talker)?;
    }
    Ok(())
}

fn asymmetric_routes_work_without_rp_filter(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    let other = stage.wire.another_device("other")?;
    stage.wire.host.ip(&["addr add 10.99.0.2/24 dev other", "addr add fd99::2/64 dev other nodad"])?;
    for name in ["all", "other"] {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        stage.wire.host.run(|| std::fs::write(&path, "0"))?.context(path.clone())?;
    }
    stage.attach(&["--port", "80", "--allow", "any"])?;
    for v6 in [false, true] {
        let mut talker = stage.talker(v6, 4000 + u16::from(v6));
        talker.open()?;
        let bytes = first_bytes();
        other.send(&Wire::frame_to(OTHER, &talker.data(&bytes).packet(), &[]))?;
        talker.seq = talker.seq.wrapping_add(u32::try_from(bytes.len())?);
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        talker.is_acknowledged()?;
        is_closed(&mut talker, stream)?;
    }
    Ok(())
}

/// The same addresses and ports, in the same cgroup.
fn a_plain_port_of_another_namespace_is_left_alone(bed: &Bed) -> Result<()> {
    let plain = Stage::without_attach(bed)?;
    let _attached = Stage::make(bed, &[])?; // start it afterwards: a new device drops its first packets
    for v6 in [false, true] {
        let mut talker = plain.talker(v6, 4000 + u16::from(v6));
        talker.open()?;
        talker.say(&first_bytes())?;
        let stream = plain.accepts(&talker.from.to_string(), &first_bytes())?;
        is_closed(&mut talker, stream)?;
    }
    Ok(())
}
