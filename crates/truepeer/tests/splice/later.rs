//! Devices that come after truepeer's start: sessions over them leave user space without a restart.
//!
//! ```text
//! sender ── wire ═══ near ── truepeer ── backend on loopback
//! ```

use std::fs;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Test, Truepeer, ip_here, skip};

use crate::bridge::bridged;
use crate::family::{Family, in_both};
use crate::stand::{BACKEND, Stand, TRUEPEER, echo, open_at, spliced_at, spliced_to};
use crate::ways::{behind_a_router, by_near, leaves, macvlan, open_from};
use crate::wire::{link, linked, stays};

const PINS: &str = "/sys/fs/bpf/truepeer-splice";

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for (name, come) in ARRIVALS {
        all.extend(in_both(&format!("sessions_leave_over_a_device_that_{name}"), move |bed, family| {
            after_the_start(bed, family, &[], come)
        }));
    }
    all.extend(in_both("sessions_leave_over_a_later_device_without_confinement", |bed, family| {
        after_the_start(bed, family, &["--confine", "off"], |_| linked())
    }));
    all.extend(in_both("sessions_leave_over_a_macvlan_that_comes_later", over_a_later_macvlan));
    all.extend([
        Test::new("a_sender_and_a_backend_at_a_bridge_that_comes_later_with_its_port", at_a_later_bridge),
        Test::new("the_reason_is_told_until_a_later_device_has_the_programs", the_reason_before_and_after),
        Test::new("several_truepeers_attach_one_program_to_a_later_device", one_for_several),
        Test::new("another_programs_filter_on_a_later_device_stays", beside_another_filter)
            .needs_program("tc"),
    ]);
    all
}

type Arrival = fn(&Stand) -> Result<NetNs>;

const ARRIVALS: [(&str, Arrival); 4] = [
    ("comes_later", |_| linked()),
    ("is_made_anew", |stand| {
        let far = with_programs(stand)?;
        ip_here(&["link del near"])?;
        link(&far)?;
        Ok(far)
    }),
    ("was_elsewhere", |stand| {
        let far = with_programs(stand)?;
        elsewhere_and_back()?;
        Ok(far)
    }),
    ("gets_its_name_and_address_later", |_| {
        let far = linked()?;
        ip_here(&["addr flush dev near", "link set near down", "link set near name other"])?;
        ip_here(&[
            "link set other up",
            "addr add 10.78.9.1/24 dev other",
            "addr add fd78:9::1/64 dev other nodad",
        ])?;
        Ok(far)
    }),
];

fn with_programs(stand: &Stand) -> Result<NetNs> {
    let far = linked()?;
    stand.truepeer.wait_for_log("sessions may leave user space, on near, too")?;
    Ok(far)
}

fn elsewhere_and_back() -> Result<()> {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    let elsewhere = NetNs::create()?;
    let own = rustix::thread::gettid().as_raw_nonzero();
    let here = format!("/proc/{}/task/{own}/ns/net", std::process::id());
    let there = format!("/proc/{}/fd/{}", std::process::id(), elsewhere.as_fd().as_raw_fd());
    ip_here(&[&format!("link set near netns {there}")])?;
    elsewhere.run(|| ip_here(&[&format!("link set near netns {here}")]))??;
    ip_here(&["addr add 10.78.9.1/24 dev near", "addr add fd78:9::1/64 dev near nodad", "link set near up"])
}

/// It listens at all addresses, also of devices that are not there yet.
fn started(bed: &Bed, family: Family, options: &[&str]) -> Result<Stand> {
    let listener = family.pick("0.0.0.0:8443", "[::]:8443");
    let options = [&["--allow", "10.0.0.0/8,fd00::/8"][..], options].concat();
    let backend = Behaviour::Echo.start(bed, &[family.backend()])?;
    let truepeer = spliced_at(bed, listener, &options).start(bed)?;
    Ok(Stand { truepeer, backend, admin: bed.dir().join("admin") })
}

fn after_the_start(
    bed: &Bed,
    family: Family,
    options: &[&str],
    come: impl FnOnce(&Stand) -> Result<NetNs>,
) -> Result<()> {
    mount_bpf_in_place()?;
    let stand = started(bed, family, options)?;
    let far = come(&stand)?;
    // On a busy machine the kernel notices seconds later that there is a carrier. Questions for neighbours
    // that are lost until then end in "no route to host".
    bed.wait_for("the sender's device to be up", || {
        let shown = Program::new("ip").args(["link", "show", "wire"]).in_netns(&far).run(bed);
        shown.is_ok_and(|shown| shown.contains("state UP"))
    })?;
    leaves(bed, &stand, far.run(|| open_at(family.listener(), 0))??)
}

/// Packets pass the programs of `near`, too. By those alone, a session would leave by the wrong device.
fn over_a_later_macvlan(bed: &Bed, family: Family) -> Result<()> {
    mount_bpf_in_place()?;
    let far = linked()?;
    let stand = started(bed, family, &[])?;
    macvlan("near", "bridge")?;
    behind_a_router(&far)?;
    ip_here(&[by_near(family)])?;
    stand.truepeer.wait_for_log("sessions may leave user space, on top, too")?;
    leaves(bed, &stand, open_from(&far, family, 0)?)
}

/// As Docker does.
fn at_a_later_bridge(bed: &Bed) -> Result<()> {
    const INSIDE: &str = "10.79.0.2:8000";
    mount_bpf_in_place()?;
    // The sender's segments must fit through the bridge.
    ip_here(&["link set lo mtu 1500"])?;
    let stand = started(bed, Family::V4, &[])?;
    let container = bridged()?;
    leaves(bed, &stand, container.run(|| open_at("10.79.0.1:8443", 0))??)?;
    stand.truepeer.wait_for_log("on bridge, too")?;
    ensure!(!stand.truepeer.log().contains(" port, too"), "the port has the programs, too");
    stand.truepeer.stop()?;
    ip_here(&["link del bridge", "link del port"])?;
    fs::remove_file(&stand.admin)?;
    let truepeer = spliced_to(bed, INSIDE, &[]).start(bed)?;
    let container = bridged()?;
    let backend = container.run(|| Behaviour::Echo.start(bed, &[INSIDE]))??;
    let stand = Stand { truepeer, backend, admin: stand.admin };
    leaves(bed, &stand, open_at(Family::V4.listener_here(), 0)?)
}

/// While the process that attaches them stands still, sessions stay, and are told to.
fn the_reason_before_and_after(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let stand = started(bed, Family::V4, &[])?;
    let keeper = Pid::from_raw(stand.truepeer.helper("truepeer-pins")?).context("0")?;
    kill_process(keeper, Signal::STOP)?;
    let far = linked()?;
    let open = |number| far.run(|| open_at(Family::V4.listener(), number))?;
    stays(bed, &stand, open(0)?, "packets_not_seen")?;
    kill_process(keeper, Signal::CONT)?;
    stand.truepeer.wait_for_log("sessions may leave user space, on near, too")?;
    leaves(bed, &stand, open(1)?)?;
    let status = stand.ask(bed, &["status"])?;
    ensure!(crate::wire::counts_one(&status, "packets_not_seen"), "{status}");
    Ok(())
}

/// Any of them attaches it. It is removed with the last one.
fn one_for_several(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let stand = started(bed, Family::V4, &[])?;
    let others = ["0.0.0.0:8444", "0.0.0.0:8445"].map(|listener| {
        let always = ["--allow", "10.0.0.0/8", "--routes", "auto", "--splice-after", "0"];
        Truepeer::proxy(TRUEPEER).listen(listener).args(&always).ipv4(BACKEND).start(bed)
    });
    let others = others.into_iter().collect::<Result<Vec<_>>>()?;
    let far = linked()?;
    let open = |listener: &str, number| far.run(|| open_at(listener, number))?;
    leaves(bed, &stand, open("10.78.9.1:8443", 0)?)?;
    let shown = Program::new("ip").args(["-o", "link", "show", "dev", "near"]).run(bed)?;
    let number = shown.split(':').next().context("no number")?.to_owned();
    let pins = || Program::new("find").args([PINS, "-name", "splice_*-*"]).run(bed);
    let of_near =
        || pins().map(|pins| pins.lines().filter(|pin| pin.ends_with(&format!("-{number}"))).count());
    ensure!(of_near()? == 2, "{}", pins()?);
    for other in others {
        let mut stream = open("10.78.9.1:8444", 1).or_else(|_| open("10.78.9.1:8445", 1))?;
        echo(&mut stream, &[3; 3000])?;
        drop(stream);
        other.stop()?;
    }
    leaves(bed, &stand, open("10.78.9.1:8443", 2)?)?;
    ensure!(of_near()? == 2, "{}", pins()?);
    stand.truepeer.stop()?;
    ensure!(pins()?.is_empty(), "{}", pins()?);
    Ok(())
}

fn beside_another_filter(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let stand = started(bed, Family::V4, &[])?;
    let far = linked()?;
    let tc = |words: &str| Program::new("tc").args(words.split(' ')).run(bed);
    if tc("qdisc add dev near clsact").is_err()
        || tc("filter add dev near ingress matchall action ok").is_err()
    {
        return skip("this kernel lacks clsact, matchall or gact");
    }
    let shown = || tc("filter show dev near ingress");
    let before = shown()?;
    ensure!(before.contains("matchall"), "{before}");
    leaves(bed, &stand, far.run(|| open_at(Family::V4.listener(), 0))??)?;
    stand.truepeer.stop()?;
    ensure!(shown()?.contains("matchall"), "{}", shown()?);
    Ok(())
}
