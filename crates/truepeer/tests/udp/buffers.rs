//! Buffers beyond net.core.rmem_max, in a process that may not have them itself: its keeper grows them. The
//! limit seems small here, whatever it is.

use std::fs;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use rustix::net::{getpeername, getsockname, ipproto, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, wait_for};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, TRUEPEER, ask, counted, sender_towards, start, v2,
    wait_counted,
};

pub(crate) fn tests() -> Vec<Test> {
    let all = truepeer_testbed::tests![
        a_process_without_net_admin_has_large_buffers,
        buffers_stay_large_over_a_reload_and_an_upgrade,
        a_keeper_that_stops_or_ends_holds_up_no_flow,
    ];
    all.into_iter().map(|test| test.needs_program("/usr/bin/python3")).collect()
}

/// truepeer, for a machine with small limits.
fn small() -> Program {
    Program::new("/usr/bin/python3").args(["-c", include_str!("small_buffers.py"), TRUEPEER])
}

fn start_proxy(bed: &Bed, options: &str) -> Result<Running> {
    let options: Vec<&str> = options.split_whitespace().collect();
    let proxy = Truepeer::of(small().args(["proxy", "-p", "udp"])).args(&options);
    start(bed, proxy.ipv4(BACKENDS[0]).ipv6(BACKENDS[1]), &LISTENERS)
}

/// As the kernel reports them: twice of what was asked for.
const LISTENERS_BYTES: usize = 2 * (8 << 20);
const FLOWS_BYTES: usize = 2 * (1 << 20);
/// Of the listeners.
const PORT: u16 = 5300;
const NET_ADMIN: u64 = 1 << 12;

/// Duplicates of its UDP sockets.
fn udp_sockets(process: i32) -> Result<Vec<OwnedFd>> {
    let handle = pidfd_open(Pid::from_raw(process).context("0")?, PidfdFlags::empty())?;
    let mut sockets = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let number: i32 = entry?.file_name().to_string_lossy().parse()?;
        // It may have been closed meanwhile.
        let Ok(copy) = pidfd_getfd(&handle, number, PidfdGetfdFlags::empty()) else { continue };
        if sockopt::socket_protocol(&copy) == Ok(Some(ipproto::UDP)) {
            sockets.push(copy);
        }
    }
    Ok(sockets)
}

/// The smallest buffers: of the listeners' sockets, and of the flows'. The tokens of the rules are neither.
fn smallest(process: i32) -> Result<[Option<usize>; 2]> {
    let mut smallest = [None; 2];
    for socket in udp_sockets(process)? {
        let bytes =
            sockopt::socket_recv_buffer_size(&socket)?.min(sockopt::socket_send_buffer_size(&socket)?);
        let is_flow = getpeername(&socket).is_ok_and(|peer| peer.is_some());
        let local: std::net::SocketAddr = getsockname(&socket)?.try_into()?;
        if !is_flow && local.port() != PORT {
            continue;
        }
        let place = &mut smallest[usize::from(is_flow)];
        *place = Some(place.map_or(bytes, |least: usize| least.min(bytes)));
    }
    Ok(smallest)
}

/// The keeper needs a moment. The first client keeps its flow meanwhile.
fn wait_large(process: i32) -> Result<()> {
    wait_large_for(process, || answers(0))
}

fn wait_large_for(process: i32, mut asks: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = [None; 2];
    let is_large = || {
        last = asks().and_then(|()| smallest(process)).unwrap_or_default();
        last == [Some(LISTENERS_BYTES), Some(FLOWS_BYTES)]
    };
    wait_for("large buffers", is_large).with_context(|| format!("{last:?}"))
}

fn has_no_net_admin(process: i32) -> Result<()> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).context("no CapPrm")?;
    ensure!(u64::from_str_radix(line, 16)? & NET_ADMIN == 0, "it has CAP_NET_ADMIN: {line}");
    Ok(())
}

fn keeper_of(truepeer: &Running) -> Result<Pid> {
    Pid::from_raw(truepeer.helper("truepeer-keeper")?).context("0")
}

fn answers(number: usize) -> Result<()> {
    let (family, port) = (number % 2, 5000 + number);
    let client = CLIENTS[family].replace(":5000", &format!(":{port}"));
    let answer = ask(&sender_towards(LISTENERS[family])?, &[&v2(&client, DESTINATIONS[family])?, b"?"])?;
    ensure!(answer == format!("{client} ?").as_bytes(), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

fn a_process_without_net_admin_has_large_buffers(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    // With IPv6 this adds the rules that `manual` uses.
    let first = start_proxy(bed, "--workers 2")?;
    (0..2).try_for_each(answers)?;
    has_no_net_admin(first.pid())?;
    wait_large(first.pid())?;
    Program::new(TRUEPEER).args(["routes", "apply", "-4", BACKENDS[0], "-6", BACKENDS[1]]).run(bed)?;
    first.stop()?;
    let manual = start_proxy(bed, "--workers 2 --routes manual")?;
    (0..100).try_for_each(answers)?;
    has_no_net_admin(manual.pid())?;
    wait_large(manual.pid())
}

const FILE: &str = "[admin]\nlisten = [\"./admin.sock\"]\n";
const TCP: &str = "[[proxy]]\nlisten = [\"127.0.0.1:8443\"]\nipv4 = \"127.0.0.1:8000\"\nroutes = \"auto\"\n";
const UDP: &str = "[[proxy]]\nprotocol = \"udp\"\nlisten = [\"127.0.0.1:5300\"]\nipv4 = \"127.0.0.1:53\"\nroutes = \"auto\"\n";

fn buffers_stay_large_over_a_reload_and_an_upgrade(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS[..1])?;
    bed.write("truepeer.toml", [FILE, TCP].concat())?;
    let serve = || small().args(["serve", "-c", "truepeer.toml"]);
    let old = serve().start(bed)?;
    old.wait_listening("127.0.0.1:8443")?;
    old.wait_for_log("admin: listening on")?;
    bed.write("truepeer.toml", [FILE, TCP, UDP].concat())?;
    old.signal(Signal::HUP)?;
    old.wait_for_log("reloaded: listener 127.0.0.1:5300 (UDP) was opened")?;
    answers(0)?;
    has_no_net_admin(old.pid())?;
    wait_large(old.pid())?;
    let new = serve().args(["--take-over"]).start(bed)?;
    new.wait_for_log("1 of 1 flows go on")?;
    has_no_net_admin(new.pid())?;
    wait_large(new.pid())?;
    answers(2)?;
    wait_large(new.pid())
}

/// How many sockets its epolls watch.
fn watched(process: i32) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo"))? {
        let text = fs::read_to_string(entry?.path()).unwrap_or_default();
        count += text.lines().filter(|line| line.starts_with("tfd:")).count();
    }
    Ok(count)
}

/// More flows than its queue has room for, one message each; and flows that end while their sockets are in
/// the queue.
fn a_keeper_that_stops_or_ends_holds_up_no_flow(bed: &Bed) -> Result<()> {
    const FLOWS: usize = 300;
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--close-after 1s")?;
    wait_large(truepeer.pid())?;
    let wait_silent = || wait_counted(&truepeer, "flows_expired", counted(&truepeer, "flows_opened")?);
    wait_silent()?;
    let before = watched(truepeer.pid())?;
    let keeper = keeper_of(&truepeer)?;
    kill_process(keeper, Signal::STOP)?;
    (0..FLOWS).try_for_each(answers)?;
    let flows = smallest(truepeer.pid())?[1].context("no flows")?;
    ensure!(flows < FLOWS_BYTES, "a flow did not need its keeper: {flows}");
    wait_silent()?;
    ensure!(watched(truepeer.pid())? == before, "flows that have ended are still watched");
    kill_process(keeper, Signal::CONT)?;
    // Flows that open before it has gone on keep small buffers.
    let mut clients = FLOWS..;
    wait_large_for(truepeer.pid(), || clients.next().map_or(Ok(()), answers))?;
    kill_process(keeper, Signal::KILL)?;
    truepeer.wait_for_log("new UDP flows have the buffers of net.core.rmem_max")?;
    (0..FLOWS).try_for_each(answers)?;
    ensure!(counted(&truepeer, "datagrams_dropped")? == 0, "{}", truepeer.log());
    Ok(())
}
