//! Flows that leave user space, while something around them changes.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, mount};
use rustix::process::Signal;
use truepeer_sys::netns::NetNs;
use truepeer_sys::udp::{Run, send_runs};
use truepeer_testbed::{Bed, Program, Running, Test, Topology, ip_here, wait_for};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, TRUEPEER, ask, counted, proxy, receive, send,
    sender_towards, socket, start, start_proxy, v2, wait_counted,
};
use crate::leaving::{Talk, at_once, while_stopped};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = truepeer_testbed::tests![
        headers_that_a_reload_admits_are_no_payload,
        answers_follow_the_newest_port_of_a_flow_that_comes_back,
        a_route_that_is_missing_for_a_while_keeps_no_flow,
        a_device_that_becomes_a_port_loses_nothing,
        flows_leave_over_devices_that_come_later,
        a_narrower_path_to_the_sender_is_noticed_within_a_second,
        aggregates_with_headers_keep_a_flow,
    ];
    let tap = "aggregates_of_a_tap_device_are_counted_by_their_datagrams";
    let by_tap = Test::new(tap, aggregates_of_a_tap_device_are_counted_by_their_datagrams);
    all.push(by_tap.needs_program("/usr/bin/python3"));
    let order = "answers_in_spp_keep_their_order_behind_a_device_that_merges";
    all.push(Test::new(order, answers_in_spp_keep_their_order).needs_program("ethtool"));
    all
}

/// Whether it is answered while truepeer stands still. Otherwise truepeer answers later.
fn is_answered_by_the_kernel(truepeer: &Running, talk: &mut Talk, payload: &[u8]) -> Result<bool> {
    talk.socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let is_answered = while_stopped(truepeer, || Ok(talk.ask(payload).is_ok()))?;
    talk.socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    if !is_answered {
        receive(&talk.socket)?;
    }
    Ok(is_answered)
}

fn headers_that_a_reload_admits_are_no_payload(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let write = |rule: &str| {
        let text = format!(
            "[[proxy]]\nprotocol = \"udp\"\nlisten = [\"{}\"]\nipv4 = \"{}\"\nroutes = \"auto\"\n\
             splice-after = \"0\"\nheader = \"{rule}\"\n",
            LISTENERS[0], BACKENDS[0]
        );
        bed.write("truepeer.toml", text)
    };
    write("forbid")?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_for_log(&format!("listening on {}", LISTENERS[0]))?;
    let sender = sender_towards(LISTENERS[0])?;
    let bare = || (0..3).try_for_each(|_| ask(&sender, &[b"bare"]).map(drop));
    bare()?;
    while_stopped(&truepeer, || ask(&sender, &[b"in the kernel"]))?;
    write("optional")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded: new sessions of listener 127.0.0.1:5300 (UDP) have")?;
    bare()?;
    let answer = ask(&sender, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"with a header"])?;
    ensure!(answer == format!("{} with a header", CLIENTS[0]).as_bytes(), "{answer:?}");
    Ok(())
}

fn answers_follow_the_newest_port_of_a_flow_that_comes_back(bed: &Bed) -> Result<()> {
    let backend = socket(BACKENDS[0])?;
    bed.write("allow", "127.0.0.0/8\n")?;
    let truepeer = start_proxy(bed, &at_once("--allow ./allow"))?;
    let mut talks = Vec::new();
    for _ in 0..2 {
        talks.push(Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?);
    }
    let hear = || -> Result<SocketAddr> { Ok(backend.recv_from(&mut [0; 100]).context("at the backend")?.1) };
    for round in 0..6 {
        let talk = &mut talks[round % 2];
        for _ in 0..3 {
            talk.say(b"through the kernel")?;
            backend.send_to(b"an answer", hear()?)?;
            receive(&talk.socket)?;
        }
        // Sooner than truepeer looks at what the kernel has sent on.
        let client = while_stopped(&truepeer, || {
            talks[(round + 1) % 2].say(b"from another port")?;
            let client = hear()?;
            bed.write("allow", format!("127.0.0.0/8\n192.0.2.{round}\n"))?;
            truepeer.signal(Signal::HUP)?;
            Ok(client)
        })?;
        truepeer.wait_state("the reload", || {
            truepeer.log().matches("127.0.0.1:5300 (UDP) have new lists").count() > round
        })?;
        backend.send_to(b"late", client)?;
        let answer = receive(&talks[(round + 1) % 2].socket).with_context(|| format!("round {round}"))?;
        ensure!(answer == b"late", "{answer:?}");
    }
    Ok(())
}

fn a_route_that_is_missing_for_a_while_keeps_no_flow(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, host) = (hosts.host("lb"), hosts.host("proxy"));
    lb.ip(&["addr add 10.99.0.1/32 dev lo", "route add 10.77.0.2/32 dev proxy src 10.99.0.1"])?;
    host.ip(&["route del default"])?;
    host.run(|| {
        let set = |conf: &str| std::fs::write(format!("/proc/sys/net/ipv4/conf/{conf}/rp_filter"), "0");
        ["all", "lb"].into_iter().try_for_each(set)
    })??;
    let (at, listener) = (host.at(false, 53).to_string(), host.at(false, 5300).to_string());
    let backend = host.run(|| Backend::who(&[&at]))??;
    let truepeer = proxy(&at_once("--allow 10.99.0.1 --routes auto")).ipv4(&at);
    let truepeer = start(bed, truepeer.with(|program| program.in_netns(&host.netns)), &[&listener])?;
    let mut talk = lb.run(|| Talk::begin("every", &listener, CLIENTS[0], DESTINATIONS[0]))??;
    (0..3).try_for_each(|_| talk.say(b"no answer has a way"))?;
    backend.wait_seen(3)?;
    ensure!(counted(&truepeer, "sessions_not_spliced")? == 0);
    host.ip(&["route add 10.99.0.1/32 via 10.77.0.1"])?;
    talk.leave()?;
    while_stopped(&truepeer, || talk.ask(b"in the kernel"))
}

/// Behind `port`, which has the address 10.79.0.1.
fn container() -> Result<NetNs> {
    let container = NetNs::create()?;
    let there = {
        use std::os::fd::AsRawFd as _;
        format!("/proc/{}/fd/{}", std::process::id(), container.as_fd().as_raw_fd())
    };
    ip_here(&[
        &format!("link add port type veth peer name eth netns {there}"),
        "addr add 10.79.0.1/24 dev port",
        "link set port up",
    ])?;
    let commands = [
        "link set lo up",
        "addr add 10.79.0.2/24 dev eth",
        "link set eth up",
        "route add default via 10.79.0.1",
    ];
    container.run(|| ip_here(&commands))??;
    Ok(container)
}

fn a_device_that_becomes_a_port_loses_nothing(bed: &Bed) -> Result<()> {
    let container = container()?;
    let _backend = container.run(|| Backend::who(&["10.79.0.2:53"]))??;
    let truepeer = start(bed, proxy(&at_once("")).ipv4("10.79.0.2:53"), &LISTENERS[..1])?;
    let mut talk = Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
    talk.leave()?;
    while_stopped(&truepeer, || talk.ask(b"in the kernel"))?;
    ip_here(&[
        "link add bridge type bridge",
        "addr del 10.79.0.1/24 dev port",
        "link set port master bridge",
        "addr add 10.79.0.1/24 dev bridge",
        "link set bridge up",
    ])?;
    // Until then the kernel sends by the port.
    sleep(Duration::from_secs(2));
    (0..10).try_for_each(|_| talk.ask(b"by the bridge"))?;
    truepeer.wait_for_log("sessions may leave user space, on bridge, too")?;
    leaves_again(&truepeer, &mut talk)?;
    ensure!(counted(&truepeer, "sessions_not_spliced")? == 0);
    Ok(())
}

/// The kernel learns the way again after a change.
fn leaves_again(truepeer: &Running, talk: &mut Talk) -> Result<()> {
    wait_for("answers by the kernel", || {
        talk.leave().is_ok() && is_answered_by_the_kernel(truepeer, talk, b"?").is_ok_and(|is| is)
    })
}

/// As Docker's when it starts after truepeer; then it is made anew, and has the same name only.
fn flows_leave_over_devices_that_come_later(bed: &Bed) -> Result<()> {
    let truepeer = start(bed, proxy(&at_once("")).ipv4("10.79.0.2:53"), &LISTENERS[..1])?;
    for client in ["192.0.2.7:5000", "192.0.2.8:5000"] {
        let container = container()?;
        let _backend = container.run(|| Backend::who(&["10.79.0.2:53"]))??;
        let mut talk = Talk::begin("every", LISTENERS[0], client, DESTINATIONS[0])?;
        leaves_again(&truepeer, &mut talk).context(client)?;
        ip_here(&["link del port"])?;
    }
    ensure!(counted(&truepeer, "sessions_not_spliced")? == 0);
    Ok(())
}

fn a_narrower_path_to_the_sender_is_noticed_within_a_second(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, host) = (hosts.host("lb"), hosts.host("proxy"));
    let (at, listener) = (host.at(false, 53).to_string(), host.at(false, 5300).to_string());
    let _backend = host.run(|| Backend::who(&[&at]))??;
    let truepeer = proxy(&at_once("--allow 10.77.0.1 --routes auto")).ipv4(&at);
    let truepeer = start(bed, truepeer.with(|program| program.in_netns(&host.netns)), &[&listener])?;
    let mut talk = lb.run(|| Talk::begin("every", &listener, CLIENTS[0], DESTINATIONS[0]))??;
    talk.leave()?;
    let ask_for_a_while = |talk: &mut Talk| {
        (0..30).try_for_each(|_| {
            sleep(Duration::from_millis(50));
            talk.ask(b"short")
        })
    };
    // The first looks read all of it anew.
    ask_for_a_while(&mut talk)?;
    while_stopped(&truepeer, || talk.ask(&[b'x'; 1000]))?;
    host.ip(&["route add 10.77.0.1/32 dev lb mtu 900"])?;
    ask_for_a_while(&mut talk)?;
    // The kernel's program cuts nothing; truepeer's socket does.
    ensure!(!is_answered_by_the_kernel(&truepeer, &mut talk, &[b'x'; 1000])?);
    ensure!(is_answered_by_the_kernel(&truepeer, &mut talk, b"short")?);
    Ok(())
}

/// In one packet, as far as the device can (UDP_SEGMENT).
fn send_together(socket: &UdpSocket, to: Option<SocketAddr>, parts: &[Vec<u8>]) -> Result<()> {
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let run = Run { parts: &slices, segment_bytes: Some(u16::try_from(parts[0].len())?) };
    ensure!(send_runs(socket.as_fd(), to.as_ref(), None, &[run])? == 1);
    Ok(())
}

fn aggregates_with_headers_keep_a_flow(bed: &Bed) -> Result<()> {
    for dialect in ["every", "spp"] {
        let backend = socket(BACKENDS[0])?;
        let truepeer = start_proxy(bed, &at_once(&format!("--udp-dialect {dialect}")))?;
        let mut talk = Talk::begin(dialect, LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
        let mut buffer = [0; 100];
        for round in 0..8 {
            for _ in 0..3 {
                talk.say(b"alone")?;
                let (_, client) = backend.recv_from(&mut buffer)?;
                backend.send_to(b"alone", client)?;
                receive(&talk.socket)?;
            }
            if dialect == "every" {
                send_together(&talk.socket, None, &vec![[&talk.header[..], b"together"].concat(); 8])?;
                for _ in 0..8 {
                    let (length, _) = backend.recv_from(&mut buffer)?;
                    ensure!(buffer[..length] == *b"together", "round {round}");
                }
            } else {
                let client = CLIENTS[0].parse()?;
                send_together(&backend, Some(client), &vec![b"together".to_vec(); 8])?;
                for _ in 0..8 {
                    ensure!(receive(&talk.socket)? == [&talk.header[..], b"together"].concat());
                }
            }
        }
        wait_counted(&truepeer, "sessions_not_spliced", 1)?;
        let (up, down) = if dialect == "every" { (8 * 11, 8 * 3) } else { (8 * 3, 8 * 11) };
        wait_counted(&truepeer, "datagrams_up", up)?;
        wait_counted(&truepeer, "datagrams_down", down)?;
        truepeer.stop()?;
    }
    Ok(())
}

fn aggregates_of_a_tap_device_are_counted_by_their_datagrams(bed: &Bed) -> Result<()> {
    let backend = Backend::silent(&BACKENDS)?;
    let first = v2("192.0.2.7:5000", "10.9.9.1:53")?;
    let first: String = first.iter().map(|byte| format!("{byte:02x}")).collect();
    let host = Program::new("/usr/bin/python3").args(["-c", include_str!("tap.py"), &first]).start(bed)?;
    host.wait_for_log("the device is there")?;
    ip_here(&[
        "link set tap address 02:00:00:00:00:02",
        "addr add 10.9.9.1/24 dev tap",
        "link set tap up",
        "neigh add 10.9.9.2 lladdr 02:00:00:00:00:01 dev tap",
    ])?;
    let truepeer = proxy(&at_once("--udp-dialect first --allow 10.9.9.2")).ipv4(BACKENDS[0]);
    let truepeer = start(bed, truepeer, &["10.9.9.1:5300"])?;
    for count in 1..5 {
        host.signal(Signal::USR1)?;
        backend.wait_seen(count)?;
    }
    while_stopped(&truepeer, || {
        host.signal(Signal::USR1)?;
        backend.wait_seen(14)
    })?;
    wait_counted(&truepeer, "datagrams_up", 14)?;
    ensure!(counted(&truepeer, "bytes_up")? == 3 * 5 + 10 * 8);
    Ok(())
}

fn answers_in_spp_keep_their_order(bed: &Bed) -> Result<()> {
    const ANSWERS: u8 = 8;
    let hosts = Topology::line(&["lb", "proxy", "backend"])?;
    let (lb, host, far) = (hosts.host("lb"), hosts.host("proxy"), hosts.host("backend"));
    Program::new("ethtool").args(["-K", "backend", "gro", "on"]).in_netns(&host.netns).run(bed)?;
    // A veth device merges only what comes one by one (veth_skb_is_eligible_for_gro).
    Program::new("ethtool").args(["-K", "proxy", "tso", "off"]).in_netns(&far.netns).run(bed)?;
    // Datagrams wait so long, in nanoseconds, for those that they are merged with.
    let sys = bed.dir().join("sys");
    std::fs::create_dir(&sys)?;
    host.run(|| mount("sysfs", &sys, "sysfs", MountFlags::empty(), None))??;
    std::fs::write(sys.join("class/net/backend/gro_flush_timeout"), "20000000")?;
    let at = far.at(false, 53).to_string();
    let (backend, listener) = (far.run(|| socket(&at))??, host.at(false, 5300).to_string());
    let truepeer = proxy(&at_once("--allow 10.77.0.1 --routes auto --udp-dialect spp")).ipv4(&at);
    let truepeer = start(bed, truepeer.with(|program| program.in_netns(&host.netns)), &[&listener])?;
    let mut talk = lb.run(|| Talk::begin("spp", &listener, CLIENTS[0], DESTINATIONS[0]))??;
    let client: SocketAddr = CLIENTS[0].parse()?;
    for _ in 0..4 {
        talk.say(b"?")?;
        backend.recv_from(&mut [0; 100])?;
        backend.send_to(b"begin", client)?;
        receive(&talk.socket)?;
    }
    while_stopped(&truepeer, || {
        (0..ANSWERS).try_for_each(|n| backend.send_to(&[n], client).map(drop))?;
        sleep(Duration::from_millis(100));
        backend.send_to(b"alone", client)?;
        for n in 0..=ANSWERS {
            let answer = receive(&talk.socket)?;
            let expected = if n == ANSWERS { b"alone".to_vec() } else { vec![n] };
            ensure!(answer == [&talk.header, &expected[..]].concat(), "{answer:?} in place {n}");
        }
        Ok(())
    })?;
    send(&talk.socket, &[&talk.header, b"at last"])?;
    ensure!(counted(&truepeer, "sessions_not_spliced")? == 0);
    Ok(())
}
