//! Behaviour that doesn't depend on VPP, with two scripts in its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use truepeer_testbed::{Bed, Program, find_program, skip};

use crate::kit::{TRUEPEER, ensure_nothing_left, outcome, place, run, vpp};

const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vpp/stand_in");

fn up(bed: &Bed, words: &str) -> Program {
    vpp(bed, &format!("up --vpp {STAND_IN} {words}"))
}

/// The commands that it got, in order.
fn told(bed: &Bed) -> Result<Vec<String>> {
    let text = fs::read_to_string(bed.dir().join("told"))?;
    Ok(text.lines().filter(|line| *line != "show version").map(str::to_owned).collect())
}

fn process(bed: &Bed) -> Result<Pid> {
    let number = fs::read_to_string(bed.dir().join("pid"))?.trim().parse()?;
    Pid::from_raw(number).context("a process number")
}

fn ensure_ended(bed: &Bed, process: Pid) -> Result<()> {
    // Its parent has ended; init needs a moment to reap it.
    let is_zombie = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
        stat.contains(") Z ")
    };
    bed.wait_for("the stand-in's end", || test_kill_process(process).is_err() || is_zombie())
}

pub(crate) fn the_loopback_layout_comes_up_and_goes_down(bed: &Bed) -> Result<()> {
    let printed = outcome(bed, &up(bed, "--loopback"))?.well()?;
    let told = told(bed)?;
    ensure!(told.len() == 22, "{told:?}");
    for line in &told {
        ensure!(printed.contains(&format!("cli.sock {line}\n")), "{line} is not printed: {printed}");
    }
    ensure!(printed.contains("up: vpp v0-stand-in"), "{printed}");
    ensure!(place(bed).join("vcl-proxy-threads.conf").exists(), "no configuration for programs");

    let status = run(bed, "status")?.well()?;
    for part in ["vpp v0-stand-in", "server 172.16.1.1", "here would be: show app ns"] {
        ensure!(status.contains(part), "no {part:?} in {status}");
    }
    let process = process(bed)?;
    let down = run(bed, "down")?.well()?;
    ensure!(down.contains(&format!("ended VPP (process {})", process.as_raw_nonzero())), "{down}");
    ensure_ended(bed, process)?;
    ensure_nothing_left(bed)?;
    ensure!(run(bed, "down")?.well()?.contains("nothing to end"), "a second end is no failure");
    ensure!(run(bed, "status")?.failed()?.contains("truepeer vpp up"), "nothing runs");
    Ok(())
}

pub(crate) fn the_ethernet_layout_is_of_the_named_devices(bed: &Bed) -> Result<()> {
    outcome(bed, &up(bed, "--ethernet va,vb --address 10.0.0.1/24,10.0.1.1/24"))?.well()?;
    let expected = [
        "create host-interface v2 name va hw-addr 02:fe:0a:00:00:01",
        "set interface state host-va up",
        "set interface ip address host-va 10.0.0.1/24",
        "create host-interface v2 name vb hw-addr 02:fe:0a:00:01:01",
        "set interface state host-vb up",
        "set interface ip address host-vb 10.0.1.1/24",
    ];
    ensure!(told(bed)? == expected, "{:?}", told(bed)?);
    run(bed, "down")?.well()?;
    ensure_nothing_left(bed)
}

pub(crate) fn a_line_that_fails_leaves_nothing(bed: &Bed) -> Result<()> {
    let said = outcome(bed, &up(bed, "--loopback").env("STAND_IN", "refuses"))?.failed()?;
    for part in ["app ns add id client secret 1234 if loop2` failed", "VPP said: app ns: out of namespaces"] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    ensure_ended(bed, process(bed)?)?;
    ensure_nothing_left(bed)
}

pub(crate) fn a_vpp_that_ends_at_once_is_told_with_its_last_words(bed: &Bed) -> Result<()> {
    let said = outcome(bed, &up(bed, "--loopback").env("STAND_IN", "ends"))?.failed()?;
    for part in ["the stand-in has seen enough", "VPP ended at once (exit status: 3)"] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }
    ensure_nothing_left(bed)
}

pub(crate) fn a_second_one_needs_another_place(bed: &Bed) -> Result<()> {
    outcome(bed, &up(bed, "--loopback"))?.well()?;
    let first = process(bed)?;
    let said = outcome(bed, &up(bed, "--loopback"))?.failed()?;
    ensure!(said.contains("up already") && said.contains("--dir"), "{said}");
    ensure!(test_kill_process(first).is_ok(), "the first one was ended");
    run(bed, "down")?.well()?;
    ensure_ended(bed, first)
}

pub(crate) fn one_that_ended_by_itself_is_cleared_and_replaced(bed: &Bed) -> Result<()> {
    outcome(bed, &up(bed, "--loopback"))?.well()?;
    let first = process(bed)?;
    kill_process(first, Signal::KILL)?;
    ensure_ended(bed, first)?;
    let said = run(bed, "status")?.failed()?;
    ensure!(said.contains("has ended unexpectedly"), "{said}");
    outcome(bed, &up(bed, "--loopback"))?.well()?;
    ensure!(process(bed)? != first, "another one");

    let second = process(bed)?;
    kill_process(second, Signal::KILL)?;
    ensure_ended(bed, second)?;
    ensure!(run(bed, "down")?.well()?.contains("had ended already"), "there is nothing to end");
    ensure_nothing_left(bed)
}

pub(crate) fn an_interrupted_start_leaves_nothing(bed: &Bed) -> Result<()> {
    let waiting = up(bed, "--loopback").env("STAND_IN", "silent").start(bed)?;
    bed.wait_for("the stand-in", || bed.dir().join("pid").exists())?;
    bed.wait_for("its number", || process(bed).is_ok())?;
    waiting.signal(Signal::INT)?;
    let status = waiting.wait_end()?;
    ensure!(!status.success() && waiting.log().contains("interrupted"), "{status}: {}", waiting.log());
    ensure_ended(bed, process(bed)?)?;
    ensure_nothing_left(bed)
}

pub(crate) fn programs_are_told_where_vpp_is(bed: &Bed) -> Result<()> {
    outcome(bed, &up(bed, "--loopback"))?.well()?;
    let env = vpp(bed, "run --namespace client").args(["--", "env"]);
    let said = outcome(bed, &env)?.well()?;
    for part in [
        format!("LD_PRELOAD={STAND_IN}/lib/libvcl_ldpreload.so\n"),
        format!("VCL_CONFIG={}/vcl-client.conf\n", place(bed).display()),
        "LDP_SID_BIT=12\n".to_owned(),
    ] {
        ensure!(said.contains(&part), "no {part:?} in {said}");
    }
    let said = outcome(bed, &vpp(bed, "run --namespace nobody").args(["--", "env"]))?.failed()?;
    ensure!(said.contains("server, proxy, client"), "{said}");
    let said = outcome(bed, &vpp(bed, "run --library /nowhere").args(["--", "env"]))?.failed()?;
    ensure!(said.contains("/nowhere: no such library"), "{said}");
    run(bed, "down")?.well().map(drop)
}

pub(crate) fn programs_that_load_no_library_are_refused(bed: &Bed) -> Result<()> {
    // For the kernel it is no program: it isn't linked against anything.
    let program = bed.write("program", "")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    outcome(bed, &up(bed, "--loopback"))?.well()?;
    let said = outcome(bed, &vpp(bed, "run").arg("--").arg(&program))?.failed()?;
    ensure!(said.contains("loads no library"), "{said}");
    run(bed, "down")?.well().map(drop)
}

pub(crate) fn without_vpp_one_line_says_so(bed: &Bed) -> Result<()> {
    if find_program("vpp").is_some() {
        return skip("VPP is installed here");
    }
    let said = run(bed, "up --loopback")?.failed()?;
    ensure!(said.contains("vpp-plugin-core") && said.trim().lines().count() == 1, "{said}");
    let said = run(bed, "up --loopback --vpp /nowhere")?.failed()?;
    ensure!(said.contains("/nowhere"), "{said}");
    ensure_nothing_left(bed)
}

pub(crate) fn a_plan_is_printed_without_vpp(bed: &Bed) -> Result<()> {
    let plan = run(bed, "up --ethernet 0000:01:00.0,0000:01:00.1 --core 1 --print")?.well()?;
    for part in ["main-core 1\n", "dev 0000:01:00.1 { name eth1 }\n", " set interface state eth1 up\n"] {
        ensure!(plan.contains(part), "no {part:?} in {plan}");
    }
    ensure_nothing_left(bed)?;
    for words in ["up", "up --loopback --ethernet va,vb", "up --loopback --address 1.1.1.1/8,2.2.2.2/8"] {
        let usage = Program::new(TRUEPEER).arg("vpp").args(words.split(' ')).start(bed)?;
        ensure!(usage.wait_end()?.code() == Some(2), "{words}: {}", usage.log());
    }
    Ok(())
}

pub(crate) fn the_demonstration_is_the_program_beside_truepeer(bed: &Bed) -> Result<()> {
    let own = bed.dir().join("bin/truepeer");
    bed.write("bin/truepeer", "")?;
    fs::copy(TRUEPEER, &own)?;
    let demo = |options: &[&str]| outcome(bed, &Program::new(&own).args(["vpp", "demo"]).args(options));
    let said = demo(&[])?.failed()?;
    ensure!(said.contains("bin/demo-https: no such program") && said.contains("make demo-https"), "{said}");

    let beside = bed.write("bin/demo-https", "#!/bin/sh\necho \"$@\"\n")?;
    for file in [&own, &beside] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o755))?;
    }
    let said = demo(&["--stack", "kernel", "-d", "2s"])?.well()?;
    ensure!(said.trim() == format!("{} --stack kernel -d 2s", own.display()), "{said}");
    Ok(())
}
