//! With this machine's VPP: from PATH, or from `TRUEPEER_VPP` (its program, or its installation prefix).
//! Skipped if there is none.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::{Bed, Program, Running, find_program, ip_here, skip};

use crate::kit::{ensure_nothing_left, outcome, place, run, vpp};

/// VPP is slow on a busy machine, and slower if built for debugging.
pub(crate) fn up(bed: &Bed, words: &str) -> Result<Program> {
    let named = env::var_os("TRUEPEER_VPP").map(PathBuf::from);
    let Some(vpp_of_machine) = named.or_else(|| find_program("vpp")) else {
        return skip("VPP is not installed, and TRUEPEER_VPP names none");
    };
    Ok(vpp(bed, "up").args(words.split(' ')).arg("--vpp").arg(vpp_of_machine))
}

/// Answers each connection with its client's address and what it sent.
const SERVER: &str = "
import socket, sys
s = socket.socket(); s.bind((sys.argv[1], 7)); s.listen(8)
print('listening', flush=True)
while True:
    c, a = s.accept()
    c.sendall(a[0].encode() + b' ' + c.recv(100)); c.close()
";
const CLIENT: &str = "
import socket, sys
s = socket.create_connection((sys.argv[1], 7), 60); s.sendall(b'hello')
print(s.recv(100).decode()); s.close()
";

fn python(bed: &Bed, namespace: &str, script: &str, address: &str) -> Result<Program> {
    // Not a script that starts it: that would be a program on VPP, too.
    let python = "/usr/bin/python3";
    if find_program(python).is_none() {
        return skip("python3 is not installed");
    }
    Ok(vpp(bed, &format!("run --namespace {namespace}")).args(["--", python, "-c", script, address]))
}

fn serve(bed: &Bed, namespace: &str, address: &str) -> Result<Running> {
    let server = python(bed, namespace, SERVER, address)?.start(bed)?;
    server.wait_for_log("listening")?;
    Ok(server)
}

pub(crate) fn the_loopback_layout_carries_connections(bed: &Bed) -> Result<()> {
    outcome(bed, &up(bed, "--loopback")?)?.well()?;
    let _server = serve(bed, "server", "172.16.1.1")?;
    let said = outcome(bed, &python(bed, "proxy", CLIENT, "172.16.1.1")?)?.well()?;
    ensure!(said.contains("172.16.2.1 hello"), "{said}");
    let status = run(bed, "status")?.well()?;
    for part in ["172.16.3.1/24", "client", "172.16.1.1:7->0.0.0.0:0"] {
        ensure!(status.contains(part), "no {part:?} in {status}");
    }
    run(bed, "down")?.well()?;
    ensure_nothing_left(bed)
}

pub(crate) fn the_ethernet_layout_answers_on_the_wire(bed: &Bed) -> Result<()> {
    ip_here(&["link add va type veth peer name pa", "link add vb type veth peer name pb"])?;
    ip_here(&["link set va up", "link set pa up", "link set vb up", "link set pb up"])?;
    ip_here(&["addr add 172.16.2.2/24 dev pa"])?;
    outcome(bed, &up(bed, "--ethernet va,vb")?)?.well()?;
    let _server = serve(bed, "default", "172.16.2.1")?;
    let python = "/usr/bin/python3";
    let said = Program::new(python).args(["-c", CLIENT, "172.16.2.1"]).run(bed)?;
    ensure!(said.contains("172.16.2.2 hello"), "{said}");
    run(bed, "down")?.well()?;
    ensure_nothing_left(bed)
}

pub(crate) fn a_device_that_does_not_exist_leaves_nothing(bed: &Bed) -> Result<()> {
    let said = outcome(bed, &up(bed, "--ethernet nowhere0,nowhere1")?)?.failed()?;
    ensure!(
        said.contains("create host-interface v2 name nowhere0 hw-addr 02:fe:ac:10:02:01` failed, VPP said: "),
        "{said}"
    );
    ensure_nothing_left(bed)
}

pub(crate) fn one_that_is_killed_is_cleared_and_replaced(bed: &Bed) -> Result<()> {
    let printed = outcome(bed, &up(bed, "--loopback")?)?.well()?;
    let state = fs::read_to_string(place(bed).join("state.json"))?;
    let state: serde_json::Value = serde_json::from_str(&state)?;
    let prefix = format!("{}-", state["prefix"].as_str().context("no prefix")?);
    let (_, number) = printed.split_once("(process ").context("no number")?;
    let left = || -> Result<bool> {
        let ours = fs::read_dir("/dev/shm")?.filter_map(Result::ok).map(|entry| entry.file_name());
        Ok(ours.into_iter().any(|name| name.to_string_lossy().starts_with(&prefix)))
    };
    ensure!(left()?, "VPP's shared memory is not called {prefix}…: the test shows nothing");
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    kill_process(Pid::from_raw(number.parse()?).context("a number")?, Signal::KILL)?;
    bed.wait_for("VPP's end", || {
        run(bed, "status").is_ok_and(|outcome| outcome.said.contains("ended unexpectedly"))
    })?;
    outcome(bed, &up(bed, "--loopback")?)?.well()?;
    ensure!(!left()?, "{prefix}… is still in /dev/shm");
    run(bed, "down")?.well()?;
    ensure_nothing_left(bed)
}
