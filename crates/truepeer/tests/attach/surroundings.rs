//! Unusual namespaces, cgroups and TCP options.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};
use truepeer_testbed::{Bed, Behaviour, Program, Test, Topology, client, sockets, wait_for};

use crate::cgroups::Cgroup;
use crate::kit::{attach_on, backend_on, command, counter_on, header, python, who};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("another_network_namespace_is_named", another_network_namespace_is_named),
        Test::new(
            "only_the_processes_of_a_cgroup_are_shown_the_client",
            only_sockets_of_a_cgroup_see_the_client,
        ),
        Test::new("systemd_is_asked_for_a_units_cgroup", systemd_is_asked_for_a_units_cgroup),
        Test::new("ipv4_options_do_not_hide_the_header", ipv4_options_do_not_hide_the_header)
            .needs_program("python3"),
        Test::new("fast_open_is_declined", fast_open_is_declined).needs_program("python3"),
        Test::new("a_header_in_parts_reaches_a_server_that_defers_accept", a_server_that_defers_accept)
            .needs_program("python3"),
        Test::new("multipath_tcp_is_declined", multipath_tcp_is_declined).needs_program("python3"),
        Test::new("signed_connections_are_refused", signed_connections_are_refused).needs_program("python3"),
        Test::new("connections_signed_by_tcp_ao_are_refused", connections_signed_by_tcp_ao_are_refused)
            .needs_program("python3"),
        Test::new("a_syn_with_the_option_of_tcp_ao_is_refused", a_syn_with_the_option_of_tcp_ao_is_refused)
            .needs_program("python3"),
        Test::new("a_redirected_port_is_refused", a_redirected_port_is_refused).needs_program("nft"),
    ]
    .into_iter()
    .map(|test| test.of_group("surroundings"))
    .collect()
}

fn another_network_namespace_is_named(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    let pid = Program::new("sleep").arg("1000").in_netns(&host.netns).start(bed)?;
    let path = format!("/proc/{}/ns/net", pid.pid());
    // By its path, from here. Nothing is attached here.
    command(bed, &["--port", "80", "--allow", "any", "--netns", &path])?.run(bed)?;
    ensure!(who(lb, host.at(false, 80), &header("203.0.113.1:1001")?)? == "203.0.113.1:1001");
    ensure!(command(bed, &["status"])?.run(bed)?.contains("not attached"));
    ensure!(command(bed, &["status", "--netns", &path])?.run(bed)?.contains("port 80/tcp: attached"));
    command(bed, &["detach", "--now", "--netns", &path])?.run(bed)?;
    ensure!(command(bed, &["status", "--netns", &path])?.run(bed)?.contains("not attached"));
    Ok(())
}

/// The header is removed for all; those outside the cgroup see the sender.
fn only_sockets_of_a_cgroup_see_the_client(bed: &Bed) -> Result<()> {
    let cgroup = Cgroup::make("test")?;
    let result = in_and_outside(bed, &cgroup.0);
    let (moved, root) =
        (std::fs::read_to_string(cgroup.0.join("cgroup.procs"))?, truepeer_bpf::cgroup_root()?);
    moved.lines().try_for_each(|pid| std::fs::write(root.join("cgroup.procs"), pid))?;
    result
}

fn in_and_outside(bed: &Bed, cgroup: &std::path::Path) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    // A socket belongs to the cgroup that created it.
    let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.display());
    let _inside = Behaviour::Who.start_program(bed, &["0.0.0.0:80"], |program| {
        program.launched_by("/bin/sh", &["-c", &shell, "sh"]).in_netns(&host.netns)
    })?;
    let _outside = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:81"])?;
    attach_on(bed, host, &["--port", "80", "--port", "81", "--cgroup", &cgroup.to_string_lossy()])?;
    let header = header("203.0.113.1:1001")?;
    ensure!(who(lb, host.at(false, 80), &header)? == "203.0.113.1:1001");
    let seen = who(lb, host.at(false, 81), &header)?;
    ensure!(seen.starts_with(&format!("{}:", lb.v4)), "{seen}");
    Ok(())
}

/// With a replacement for systemctl, which few test machines have.
fn systemd_is_asked_for_a_units_cgroup(bed: &Bed) -> Result<()> {
    let answer =
        "#!/bin/sh\necho ControlGroup=/system.slice/web.service\necho TriggeredBy=web.timer web.socket\n";
    let file = bed.write("bin/systemctl", answer)?;
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let path = format!("{}:/usr/bin:/bin", bed.dir().join("bin").display());
    let attaching = command(bed, &["--port", "80", "--unit", "web.service", "--dry-run"])?
        .env("PATH", path)
        .start(bed)?;
    ensure!(attaching.wait_end()?.success(), "{}", attaching.log());
    let cgroup = truepeer_bpf::cgroup_root()?.join("system.slice/web.service");
    let expected = format!("cgroup {}: getpeername4", cgroup.display());
    ensure!(attaching.log().contains(&expected), "{}", attaching.log());
    // Its connections would belong to systemd's own cgroup.
    ensure!(attaching.log().contains("web.socket listens for web.service"), "{}", attaching.log());
    Ok(())
}

const ASK: &str = "s.shutdown(socket.SHUT_WR)\nprint(s.recv(1000).decode())";

fn ipv4_options_do_not_hide_the_header(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        // Router alert: four more bytes of IP header.
        let script = format!(
            "s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([0x94, 4, 0, 0]))\ns.connect(to)\ns.sendall(h)\n{ASK}"
        );
        let seen = python(bed, lb, host.at(false, 80), client, &script)?;
        ensure!(seen.trim() == client, "{seen}");
    }
    Ok(())
}

fn fast_open_is_declined(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    host.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "1027"))??; // for every listener, without a cookie
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        let script = format!("s.settimeout(None)\ns.sendto(h, socket.MSG_FASTOPEN, to)\n{ASK}");
        let seen = python(bed, lb, host.at(false, 80), client, &script)?;
        ensure!(seen.trim() == client, "{seen}");
    }
    ensure!(counter_on(bed, host, "fastopen_declined")? >= 1);
    Ok(())
}

/// As Apache does. The kernel drops an ACK without data, and refuses the echo of a later packet than its
/// SYN-ACK.
fn a_server_that_defers_accept(bed: &Bed) -> Result<()> {
    const SERVER: &str = "\
import socket
s = socket.socket()
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
s.bind(('0.0.0.0', 80))
s.listen(8)
print('listening', flush=True)
while True:
    c, peer = s.accept()
    c.recv(100)
    c.sendall(('%s:%d' % peer).encode())
    c.close()
";
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let server = Program::new("python3").args(["-c", SERVER]).in_netns(&host.netns).start(bed)?;
    server.wait_for_log("listening")?;
    attach_on(bed, host, &["--port", "80"])?;
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        let header = header(client)?;
        let mut stream = lb.run(|| client::connect(host.at(false, 80)))??;
        // Later than the SYN-ACK, by the clock of timestamps.
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(&header[..9])?;
        sockets::wait_until_sent(&stream)?;
        let seen = client::ask(&mut stream, &[&header[9..], b"data".as_slice()].concat())?;
        ensure!(seen.trim() == client, "{seen}");
    }
    Ok(())
}

/// Both ends would use it, as Go's listeners do. It would number the bytes a second time.
fn multipath_tcp_is_declined(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let to = host.at(false, 80);
    let listener = host.run(|| -> std::io::Result<TcpListener> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
        listener.bind(&to.into())?;
        listener.listen(8)?;
        listener.set_read_timeout(Some(Duration::from_secs(60)))?; // the time-out of accept()
        Ok(listener.into())
    })?;
    let Ok(listener) = listener else { return truepeer_testbed::skip("this kernel has no MPTCP") };
    attach_on(bed, host, &["--port", "80"])?;
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        let script = format!(
            "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\ns.settimeout(20)\ns.connect(to)\ns.sendall(h + bytes(100000))\n{ASK}"
        );
        std::thread::scope(|scope| -> Result<()> {
            let asking = scope.spawn(|| python(bed, lb, to, client, &script));
            let (mut stream, seen) = listener.accept()?;
            let mut read = Vec::new();
            stream.read_to_end(&mut read)?;
            stream.write_all(seen.to_string().as_bytes())?;
            drop(stream);
            ensure!(read == [0; 100_000], "{} bytes", read.len());
            let said = asking.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
            ensure!(said.trim() == client, "{said}");
            Ok(())
        })?;
    }
    ensure!(counter_on(bed, host, "mptcp_declined")? == 2);
    Ok(())
}

fn signed_connections_are_refused(bed: &Bed) -> Result<()> {
    // struct tcp_md5sig (linux/tcp.h); TCP_MD5SIG is 14.
    let key = "struct.pack('=HH4s120x', socket.AF_INET, socket.htons(to[1]), socket.inet_aton(to[0])) + \
               struct.pack('=BBHI80s', 0, 0, 3, 0, b'key')";
    a_signed_connection_is_refused(bed, "TCP-MD5", 14, key)
}

/// With two programs, if the kernel supports it (CONFIG_TCP_AO, since Linux 6.7).
fn connections_signed_by_tcp_ao_are_refused(bed: &Bed) -> Result<()> {
    // struct tcp_ao_add (linux/tcp.h); TCP_AO_ADD_KEY is 38.
    let key = "struct.pack('=HH4s120x', socket.AF_INET, 0, socket.inet_aton(to[0])) + \
               struct.pack('=64siIHBBBBBB80s', b'hmac(sha1)', 0, 0, 0, 32, 100, 100, 0, 0, 3, b'key')";
    a_signed_connection_is_refused(bed, "TCP-AO", 38, key)
}

/// The sender's kernel signs with the key from this TCP option. Without support the test is skipped.
fn a_signed_connection_is_refused(bed: &Bed, name: &str, option: i32, key: &str) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let script = format!(
        "\
import struct
try:
    s.setsockopt(socket.IPPROTO_TCP, {option}, {key})
except OSError as error:
    print('no {name} here:', error)
else:
    s.settimeout(1)
    try:
        s.connect(to)
        print('connected')
    except OSError:
        print('not connected')
"
    );
    let said = python(bed, lb, host.at(false, 80), "203.0.113.1:1001", &script)?;
    if said.contains(&format!("no {name}")) {
        return truepeer_testbed::skip(said.trim().to_owned());
    }
    ensure!(said.trim() == "not connected", "{said}");
    ensure!(counter_on(bed, host, "refused_signed")? >= 1);
    ensure!(!who.log().contains("accepted"));
    Ok(())
}

/// Independent of the kernels' support: a hand-made SYN with the option, and another one without it, which is
/// tracked.
fn a_syn_with_the_option_of_tcp_ao_is_refused(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let script = format!(
        "\
import struct
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
def syn(port, options):
    header = struct.pack('!HHIIBBHHH', port, to[1], 1000, 0, (20 + len(options)) << 2, 2, 65535, 0, 0) + options
    pseudo = socket.inet_aton('{}') + socket.inet_aton(to[0]) + struct.pack('!BBH', 0, 6, len(header))
    total = sum(struct.unpack('!%dH' % (len(pseudo + header) // 2), pseudo + header))
    total = (total & 0xffff) + (total >> 16)
    total = (total & 0xffff) + (total >> 16)
    raw.sendto(header[:16] + struct.pack('!H', ~total & 0xffff) + header[18:], to)
syn(4001, bytes([29, 20, 100, 100]) + bytes(16))
syn(4002, b'')
",
        lb.v4
    );
    python(bed, lb, host.at(false, 80), "203.0.113.1:1001", &script)?;
    wait_for("both to be counted", || {
        let count = |name| counter_on(bed, host, name).unwrap_or_default();
        count("refused_signed") == 1 && count("connections") == 1
    })
}

fn a_redirected_port_is_refused(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let rule = "table ip nat { chain pre { type nat hook prerouting priority -100; tcp dport 80 redirect to :81; }; }";
    Program::new("nft").arg(rule).in_netns(&host.netns).run(bed)?;
    let who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80", "0.0.0.0:81"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let end = lb.run(|| -> Result<client::End> {
        let mut stream = client::connect(host.at(false, 80))?;
        stream.write_all(&header("203.0.113.1:1001")?)?;
        Ok(client::read_end(&mut stream)?)
    })??;
    ensure!(end == client::End::Reset);
    ensure!(counter_on(bed, host, "refused_redirected")? == 1);
    ensure!(!who.log().contains("203.0.113.1"));
    Ok(())
}
