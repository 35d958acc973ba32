//! Hosts that can't connect to their own listener: a program must still be woken for a connection whose
//! header comes late, however it waits.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Host, Program, Test, Topology, User, client, tests};

use crate::kit::{PYTHON, header_of, under, via};
use crate::obstructed::{
    CLIENT, QUESTION, SERVER, Server, are_served, is_served_in_parts, names_the_client, wait_until_accepted,
};

pub(crate) fn tests() -> Vec<Test> {
    let plain = tests![
        late_headers_without_ipv6,
        late_headers_at_a_listener_of_one_device,
        late_headers_without_a_loopback_device,
        late_headers_without_the_loopback_address_of_ipv6,
        late_headers_at_a_node_server_without_ipv6,
        late_headers_at_haproxy_on_one_device,
        a_late_header_stays_at_the_listener_of_its_device,
        a_late_header_wakes_another_thread_than_the_one_that_accepted,
        a_late_header_ends_a_wait_by_libaio,
        a_program_that_waits_by_libaio_and_cannot_be_woken_is_named,
    ];
    let nft = tests![
        late_headers_where_the_program_may_not_send_to_itself,
        late_headers_where_only_the_sender_may_connect,
    ];
    let plain = plain.into_iter().map(|test| match test.name() {
        name if name.contains("node") => test.needs_program("node"),
        name if name.contains("haproxy") => test.needs_program("haproxy"),
        _ => test,
    });
    let notifys = tests![a_program_that_cannot_be_woken_is_named];
    let plain = plain.chain(notifys.into_iter().filter(|_| via() == "notify"));
    let all = plain.chain(nft.into_iter().map(|test| test.needs_program("nft")));
    all.map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

fn late_headers_without_ipv6(bed: &Bed) -> Result<()> {
    are_served(bed, "", without_ipv6)
}

fn late_headers_at_a_listener_of_one_device(bed: &Bed) -> Result<()> {
    are_served(bed, "lb", |_, _| Ok(()))
}

fn late_headers_without_a_loopback_device(bed: &Bed) -> Result<()> {
    are_served(bed, "", |_, host| host.ip(&["link set lo down"]))
}

fn late_headers_without_the_loopback_address_of_ipv6(bed: &Bed) -> Result<()> {
    are_served(bed, "", |_, host| host.ip(&["addr del ::1/128 dev lo"]))
}

/// As a service manager does (`IPAddressDeny=any`): connect() fails with EPERM.
fn late_headers_where_the_program_may_not_send_to_itself(bed: &Bed) -> Result<()> {
    are_served(bed, "", |bed, host| {
        filtered(bed, host, "type filter hook output priority 0; oifname lo meta l4proto tcp drop")
    })
}

/// Its first packet is dropped: connect() waits for an answer.
fn late_headers_where_only_the_sender_may_connect(bed: &Bed) -> Result<()> {
    are_served(bed, "", |bed, host| {
        filtered(bed, host, "type filter hook input priority 0; iifname != lb meta l4proto tcp drop")
    })
}

fn without_ipv6(_: &Bed, host: &Host) -> Result<()> {
    host.run(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"))?.context("disable_ipv6")
}

fn filtered(bed: &Bed, host: &Host, chain: &str) -> Result<()> {
    let rules = format!("table inet t {{\n chain c {{\n  {}\n }}\n}}\n", chain.replace("; ", ";\n  "));
    Program::new("nft").args(["-f", "-"]).input(rules).in_netns(&host.netns).run(bed).map(drop)
}

/// By a connection of this host, where that is possible.
fn a_late_header_ends_a_wait_by_libaio(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let server = Server::start_by(via(), bed, host, ("libaio", 8089), "", &[])?;
    for _ in 0..3 {
        lb.run(|| is_served_in_parts(host, server.address))?.with_context(|| server.log())?;
    }
    Ok(())
}

/// Nothing tells what a context polls. The next connection wakes it.
fn a_program_that_waits_by_libaio_and_cannot_be_woken_is_named(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let server = Server::start_by(via(), bed, host, ("libaio", 8089), "lb", &[])?;
    let header = header_of(CLIENT)?;
    lb.run(|| -> Result<()> {
        let mut late = client::connect(server.address)?;
        late.write_all(&header[..20])?;
        wait_until_sent(&late)?;
        host.run(|| wait_until_accepted(server.address.port()))??;
        server.running.wait_for_log("waits")?;
        late.write_all(&[&header[20..], QUESTION].concat())?;
        server.running.wait_for_log("is ready, whose header came late")?;
        let mut next = client::connect(server.address)?;
        next.write_all(&[&header[..], QUESTION].concat())?;
        names_the_client(next)?;
        names_the_client(late)
    })?
    .with_context(|| server.log())
}

/// Executes its words under a filter that treats ptrace() in a special way (seccomp(2)).
const WITHOUT_PTRACE: &str = "\
import ctypes, os, platform, struct, sys
libc = ctypes.CDLL(None)
number = 117 if platform.machine() == 'aarch64' else 101
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, int(sys.argv[1], 0)), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
class Filter(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(len(steps), ctypes.addressof(code))), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";
const KILL_PROCESS: &str = "0x80000000";
const FAIL_WITH_EPERM: &str = "0x00050001";

/// Where the supervisor may not trace it. The next connection wakes it.
fn a_program_that_cannot_be_woken_is_named(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let filter = bed.write("without_ptrace.py", WITHOUT_PTRACE)?;
    let filter = filter.to_str().context("its path")?;
    let script = bed.write("server.py", SERVER)?;
    let header = header_of(CLIENT)?;
    for (way, port, action, why) in [
        ("poll", 8086, FAIL_WITH_EPERM, "ptrace(2) is forbidden (Operation not permitted"),
        ("select", 8087, KILL_PROCESS, "a seccomp filter kills whoever calls ptrace(2)"),
    ] {
        let python = Program::new(PYTHON).arg("-u").arg(&script).args([way, &port.to_string(), "lb"]);
        let truepeer = env!("CARGO_BIN_EXE_truepeer");
        let words = [filter, action, truepeer, "run", "--via", via(), "--allow", "10.77.0.1", "--"];
        let server = python.launched_by(PYTHON, &words).in_netns(&host.netns).as_user(User::TESTER);
        let (server, address) = (server.start(bed)?, host.at(false, port));
        server.wait_listening(address)?;
        ensure!(server.log().contains(why), "at the start: {}", server.log());
        let late = || -> Result<TcpStream> {
            let mut stream = client::connect(address)?;
            stream.write_all(&header[..20])?;
            wait_until_sent(&stream)?;
            host.run(|| wait_until_accepted(address.port()))??;
            // The supervisor has looked at its first part.
            server.wait_for_log("waits")?;
            stream.write_all(&[&header[20..], QUESTION].concat())?;
            Ok(stream)
        };
        let stream = lb.run(late)??;
        server.wait_for_log("can't be woken")?;
        for text in [why, "SystemCallFilter=ptrace"] {
            ensure!(server.log().matches(text).count() == 2, "{text}: {}", server.log());
        }
        lb.run(|| -> Result<()> {
            let mut next = client::connect(address)?;
            next.write_all(&[&header[..], QUESTION].concat())?;
            names_the_client(next)
        })??;
        names_the_client(stream)?;
    }
    Ok(())
}

/// Node listens on `::` by default.
fn late_headers_at_a_node_server_without_ipv6(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    without_ipv6(bed, host)?;
    let source = "\
require('net').createServer(connection => connection.once('data', () =>
    connection.end(`${connection.remoteAddress} ${connection.remotePort}\\n`))).listen(3000)
";
    let node = Program::new("node").arg(bed.write("server.js", source)?);
    serves_late_headers(bed, node, lb, host)
}

fn late_headers_at_haproxy_on_one_device(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let config = "\
defaults
    mode http
    timeout client 60s
    timeout http-request 60s
frontend late
    bind :3000 interface lb
    http-request return status 200 content-type text/plain lf-string \"%[src] %[src_port]\\n\"
";
    let haproxy = Program::new("haproxy").arg("-db").arg("-f").arg(bed.write("haproxy.cfg", config)?);
    serves_late_headers(bed, haproxy, line.host("lb"), line.host("host"))
}

fn serves_late_headers(bed: &Bed, server: Program, lb: &Host, host: &Host) -> Result<()> {
    let server = under(server.in_netns(&host.netns), &["--allow", "10.77.0.1"]).start(bed)?;
    let address = host.at(false, 3000);
    server.wait_listening(address)?;
    for _ in 0..3 {
        let parts = || is_served_in_parts(host, address);
        lb.run(parts)?.with_context(|| server.log())?;
    }
    Ok(())
}

/// Two listeners have the same address, on two devices. Each says by which one it was.
const DEVICES: &str = "\
import select, socket
listeners = {}
epoll = select.epoll()
for device in ('lan', 'dmz'):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
    listener.bind(('0.0.0.0', 3000))
    listener.listen()
    listener.setblocking(False)
    listeners[listener.fileno()] = listener, device
    epoll.register(listener, select.EPOLLIN)
def serve(listener, device):
    try:
        connection, peer = listener.accept()
    except BlockingIOError:
        return
    connection.setblocking(True)
    connection.recv(100)
    connection.sendall(b'%s %s %d\\n' % (device.encode(), peer[0].encode(), peer[1]))
    connection.close()
while True:
    for number, events in epoll.poll():
        # Each event may be late, so any listener may be asked first.
        for listener in listeners.values():
            serve(*listener)
";

fn a_late_header_stays_at_the_listener_of_its_device(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lan", "host", "dmz"])?;
    let (host, address) = (line.host("host"), line.host("host").at(false, 3000));
    let python = Program::new(PYTHON).arg("-u").arg(bed.write("devices.py", DEVICES)?);
    let server = under(python.in_netns(&host.netns), &["--allow", "10.77.0.0/16"]).start(bed)?;
    server.wait_listening(address)?;
    let header = header_of(CLIENT)?;
    for device in ["lan", "dmz", "lan", "dmz"] {
        let said = line.host(device).run(|| -> Result<String> {
            let mut stream = client::connect(address)?;
            stream.write_all(&header[..20])?;
            wait_until_sent(&stream)?;
            host.run(|| wait_until_accepted(address.port()))??;
            client::ask(&mut stream, &[&header[20..], QUESTION].concat())
        })??;
        ensure!(said == format!("{device} 203.0.113.7 5000\n"), "by {device}: {said:?}");
    }
    Ok(())
}

/// Four threads wait in a blocking accept(). Each says that it has a connection, and waits for a word.
const THREADS: &str = "\
import socket, threading
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lb')
listener.bind(('0.0.0.0', 3000))
listener.listen()
def serve():
    while True:
        connection, peer = listener.accept()
        connection.sendall(b'accepted\\n')
        connection.recv(100)
        connection.sendall(b'%s %d\\n' % (peer[0].encode(), peer[1]))
        connection.close()
for _ in range(4):
    threading.Thread(target=serve).start()
";

fn a_late_header_wakes_another_thread_than_the_one_that_accepted(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let address = host.at(false, 3000);
    let python = Program::new(PYTHON).arg("-u").arg(bed.write("threads.py", THREADS)?);
    let server = under(python.in_netns(&host.netns), &["--allow", "10.77.0.1"]).start(bed)?;
    server.wait_listening(address)?;
    let header = header_of(CLIENT)?;
    lb.run(|| -> Result<()> {
        // Whichever thread is left at the end, it has accepted a silent connection, or has waited all the
        // time.
        for _ in 0..3 {
            let mut late = client::connect(address)?;
            late.write_all(&header[..20])?;
            wait_until_sent(&late)?;
            host.run(|| wait_until_accepted(address.port()))??;
            let mut busy = Vec::new();
            for _ in 0..3 {
                let mut stream = client::connect(address)?;
                stream.write_all(&header)?;
                stream.read_exact(&mut [0; "accepted\n".len()])?;
                busy.push(stream);
            }
            late.write_all(&[&header[20..], QUESTION].concat())?;
            names_the_client(late)?;
            for mut stream in busy {
                stream.write_all(QUESTION)?;
                names_the_client(stream)?;
            }
        }
        Ok(())
    })?
}
