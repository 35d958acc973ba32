//! Other namespaces, cgroups, links and options than the usual ones.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::servers::{Haproxy, Postgres};
use truepeer_testbed::{Bed, Behaviour, Host, Program, Test, Topology, client, wait_for};

use crate::{header, longer_header};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("another_network_namespace_is_named", another_network_namespace_is_named),
        Test::new("only_the_processes_of_a_cgroup_are_shown_the_client", only_those_of_a_cgroup),
        Test::new("a_units_cgroup_is_asked_of_systemd", a_units_cgroup_is_asked_of_systemd),
        Test::new("a_vlan_is_a_link_like_others", a_vlan_is_a_link_like_others),
        Test::new("ipv4_options_do_not_hide_the_header", ipv4_options_do_not_hide_the_header)
            .needs_program("python3"),
        Test::new("fast_open_is_declined", fast_open_is_declined).needs_program("python3"),
        Test::new("signed_connections_are_refused", signed_connections_are_refused).needs_program("python3"),
        Test::new("connections_signed_by_tcp_ao_are_refused", connections_signed_by_tcp_ao_are_refused)
            .needs_program("python3"),
        Test::new("a_syn_with_the_option_of_tcp_ao_is_refused", a_syn_with_the_option_of_tcp_ao_is_refused)
            .needs_program("python3"),
        Test::new("fragments_do_not_get_past", fragments_do_not_get_past).needs_program("python3"),
        Test::new("ipv6_extension_headers_do_not_get_past", ipv6_extension_headers_do_not_get_past)
            .needs_program("python3"),
        Test::new("a_redirected_port_is_refused", a_redirected_port_is_refused).needs_program("nft"),
        Test::new("fifty_bulk_echoes_arrive_whole", fifty_bulk_echoes_arrive_whole),
        Test::new("an_attachment_killed_half_way_loses_nothing", an_attachment_killed_half_way_loses_nothing),
        Test::new("a_running_postgresql_names_the_client", a_running_postgresql_names_the_client)
            .needs_program("postgres")
            .needs_program("haproxy")
            .needs_several_users(),
    ]
    .into_iter()
    .map(|test| test.of_group("surroundings"))
    .collect()
}

fn command(bed: &Bed, args: &[&str]) -> Result<Program> {
    ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, args)
}

/// Attaches on a host to what comes from anybody.
fn attach_on(bed: &Bed, host: &Host, args: &[&str]) -> Result<String> {
    command(bed, &[&["--allow", "any"], args].concat())?.in_netns(&host.netns).run(bed)
}

fn counter_on(bed: &Bed, host: &Host, name: &str) -> Result<u64> {
    let text = command(bed, &["status", "--json"])?.in_netns(&host.netns).run(bed)?;
    let status: Value = serde_json::from_str(&text)?;
    status["ports"][0]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
}

fn backend_on(
    bed: &Bed,
    host: &Host,
    behaviour: Behaviour,
    addresses: &[&str],
) -> Result<truepeer_testbed::Running> {
    behaviour.start_program(bed, addresses, |program| program.in_netns(&host.netns))
}

/// Who the backend says that it saw.
fn who(host: &Host, to: SocketAddr, header: &[u8]) -> Result<String> {
    let seen = host.run(|| client::ask(&mut client::connect(to)?, header))??;
    Ok(seen.trim().to_owned())
}

fn another_network_namespace_is_named(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    let pid = Program::new("sleep").arg("1000").in_netns(&host.netns).start(bed)?;
    let path = format!("/proc/{}/ns/net", pid.pid());
    // By its path, from here; nothing is attached here.
    command(bed, &["--port", "80", "--allow", "any", "--netns", &path])?.run(bed)?;
    ensure!(who(lb, host.at(false, 80), &header("203.0.113.1:1001")?)? == "203.0.113.1:1001");
    ensure!(command(bed, &["status"])?.run(bed)?.contains("not attached"));
    ensure!(command(bed, &["status", "--netns", &path])?.run(bed)?.contains("port 80/tcp: attached"));
    command(bed, &["detach", "--now", "--netns", &path])?.run(bed)?;
    ensure!(command(bed, &["status", "--netns", &path])?.run(bed)?.contains("not attached"));
    Ok(())
}

/// The header is taken off for all of them; the others are shown the sender.
fn only_those_of_a_cgroup(bed: &Bed) -> Result<()> {
    let root = truepeer_bpf::cgroup_root()?;
    let cgroup = root.join(format!("truepeer-test-{}", std::process::id()));
    if std::fs::create_dir(&cgroup).is_err() {
        return truepeer_testbed::skip("no cgroup can be made here");
    }
    let result = in_and_outside(bed, &cgroup);
    let moved = std::fs::read_to_string(cgroup.join("cgroup.procs"))?;
    moved.lines().try_for_each(|pid| std::fs::write(root.join("cgroup.procs"), pid))?;
    wait_for("the cgroup to be empty", || std::fs::remove_dir(&cgroup).is_ok())?;
    result
}

fn in_and_outside(bed: &Bed, cgroup: &std::path::Path) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    // A socket keeps the cgroup in which it was made.
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

/// By a stand-in for systemctl, which few machines of tests have.
fn a_units_cgroup_is_asked_of_systemd(bed: &Bed) -> Result<()> {
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
    // Its connections would be of systemd's own cgroup.
    ensure!(attaching.log().contains("web.socket listens for web.service"), "{}", attaching.log());
    Ok(())
}

fn a_vlan_is_a_link_like_others(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    if lb.ip(&["link add link host name vlan8 type vlan id 8"]).is_err() {
        return truepeer_testbed::skip("this kernel knows no VLANs (8021q)");
    }
    for (end, (here, device)) in [(lb, "host"), (host, "lb")].into_iter().enumerate() {
        here.ip(&[
            &format!("link add link {device} name vlan7 type vlan id 7"),
            &format!("addr add 10.99.0.{}/24 dev vlan7", end + 1),
            "link set vlan7 up",
        ])?;
    }
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    let said = attach_on(bed, host, &["--port", "80"])?;
    ensure!(said.contains("vlan7"), "{said}");
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        ensure!(who(lb, "10.99.0.2:80".parse()?, &header(client)?)? == client);
        ensure!(who(lb, host.at(false, 80), &longer_header(client)?)? == client);
    }
    Ok(())
}

/// A client in Python, for the options of sockets that Rust's library has not: prepares `s`, sends the header in `h`.
fn python(bed: &Bed, host: &Host, to: SocketAddr, client: &str, script: &str) -> Result<String> {
    let bytes: String = header(client)?.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let source = format!(
        "import socket\ns = socket.socket()\ns.settimeout(20)\nto = ('{}', {})\nh = b'{bytes}'\n{script}\n",
        to.ip(),
        to.port()
    );
    Program::new("python3").args(["-c", &source]).in_netns(&host.netns).run(bed)
}

const ASK: &str = "s.shutdown(socket.SHUT_WR)\nprint(s.recv(1000).decode())";

fn ipv4_options_do_not_hide_the_header(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        // Router alert: four bytes more of IP header.
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
    host.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "1027"))??; // every listener, without a cookie
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

fn signed_connections_are_refused(bed: &Bed) -> Result<()> {
    // struct tcp_md5sig (linux/tcp.h); TCP_MD5SIG is 14.
    let key = "struct.pack('=HH4s120x', socket.AF_INET, socket.htons(to[1]), socket.inet_aton(to[0])) + \
               struct.pack('=BBHI80s', 0, 0, 3, 0, b'key')";
    a_signed_connection_is_refused(bed, "TCP-MD5", 14, key)
}

/// By two programs, where the kernel has it (CONFIG_TCP_AO, since Linux 6.7).
fn connections_signed_by_tcp_ao_are_refused(bed: &Bed) -> Result<()> {
    // struct tcp_ao_add (linux/tcp.h); TCP_AO_ADD_KEY is 38.
    let key = "struct.pack('=HH4s120x', socket.AF_INET, 0, socket.inet_aton(to[0])) + \
               struct.pack('=64siIHBBBBBB80s', b'hmac(sha1)', 0, 0, 0, 32, 100, 100, 0, 0, 3, b'key')";
    a_signed_connection_is_refused(bed, "TCP-AO", 38, key)
}

/// The sender's kernel signs with the key that this option of TCP takes; one without it is a reason to skip.
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

/// Whatever the kernels know of it: one SYN by hand, and another one without the option, which is tracked.
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

/// A SYN in two fragments, and a whole one by hand, which is tracked.
fn fragments_do_not_get_past(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let script = format!(
        "\
import struct
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
me = socket.inet_aton('{}')
def send(id, fragment, payload):
    header = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(payload), id, fragment, 64, 6, 0)
    raw.sendto(header + me + socket.inet_aton(to[0]) + payload, to)
def syn(port):
    header = struct.pack('!HHIIBBHHH', port, to[1], 1000, 0, 0x50, 2, 65535, 0, 0)
    pseudo = me + socket.inet_aton(to[0]) + struct.pack('!BBH', 0, 6, len(header))
    total = sum(struct.unpack('!%dH' % (len(pseudo + header) // 2), pseudo + header))
    total = (total & 0xffff) + (total >> 16)
    total = (total & 0xffff) + (total >> 16)
    return header[:16] + struct.pack('!H', ~total & 0xffff) + header[18:]
send(1, 0x2000, syn(4001)[:16])
send(1, 2, syn(4001)[16:])
send(2, 0, syn(4002))
",
        lb.v4
    );
    python(bed, lb, host.at(false, 80), "203.0.113.1:1001", &script)?;
    wait_for("both to be counted", || {
        let count = |name| counter_on(bed, host, name).unwrap_or_default();
        count("refused_fragment") == 1 && count("connections") == 1
    })
}

fn ipv6_extension_headers_do_not_get_past(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let who = backend_on(bed, host, Behaviour::Who, &["[::]:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    // Destination options: four bytes of padding.
    let script = "\
s = socket.socket(socket.AF_INET6)
s.settimeout(1)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
try:
    s.connect(to)
    print('connected')
except OSError:
    print('not connected')
";
    let said = python(bed, lb, host.at(true, 80), "203.0.113.1:1001", script)?;
    ensure!(said.trim() == "not connected", "{said}");
    ensure!(counter_on(bed, host, "refused_fragment")? >= 1);
    ensure!(!who.log().contains("accepted"));
    Ok(())
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

/// Half of them translated to the end.
fn fifty_bulk_echoes_arrive_whole(bed: &Bed) -> Result<()> {
    const LEN: usize = 10_000_000;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _echo = backend_on(bed, host, Behaviour::Echo, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let (bytes, expected) = (Pattern::bytes(LEN), Digest::of_pattern(LEN as u64));
    lb.run(|| {
        in_parallel(4, 50, |n| {
            let client = format!("203.0.113.1:{}", 1000 + n);
            let header = if n % 2 == 0 { longer_header(&client)? } else { header(&client)? };
            let mut stream = client::connect(host.at(false, 80))?;
            stream.write_all(&header)?;
            let mut writer = stream.try_clone()?;
            let back = std::thread::scope(|scope| {
                let sending = scope.spawn(|| -> std::io::Result<()> {
                    writer.write_all(&bytes)?;
                    writer.shutdown(std::net::Shutdown::Write)
                });
                let mut back = Vec::new();
                std::io::Read::read_to_end(&mut stream, &mut back)?;
                sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
                anyhow::Ok(back)
            })?;
            let mut digest = Digest::default();
            digest.update(&back);
            let report = digest.report();
            ensure!(report == expected, "{client}: {report}");
            Ok(())
        })
    })??;
    let (right, wrong) = (counter_on(bed, host, "guessed_right")?, counter_on(bed, host, "translated")?);
    ensure!(right + wrong == 50 && wrong > 0, "{right} guessed right, {wrong} translated");
    Ok(())
}

/// kill -9 of truepeer while it replaces itself, at any moment, under load; then it is done once more.
fn an_attachment_killed_half_way_loses_nothing(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _digest = backend_on(bed, host, Behaviour::Digest, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (bytes, expected) = (Pattern::bytes(200_000), Digest::of_pattern(200_000));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            lb.run(|| -> Result<usize> {
                let mut done = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let client = format!("203.0.113.1:{}", 2000 + done);
                    let header = if done % 3 == 0 { longer_header(&client)? } else { header(&client)? };
                    let answer = who(lb, host.at(false, 80), &[&header, bytes.as_slice()].concat())?;
                    ensure!(answer == expected, "{client}: {answer:?}");
                    done += 1;
                }
                Ok(done)
            })?
        });
        let kills = (0..15).try_for_each(|n| -> Result<()> {
            let attaching =
                command(bed, &["--allow", "any", "--port", "80"])?.in_netns(&host.netns).start(bed)?;
            // Not to be in step: to be out of it.
            std::thread::sleep(std::time::Duration::from_millis(n * 4));
            let _ = attaching.signal(Signal::KILL); // it may be done already
            Ok(())
        });
        let last = kills.and_then(|()| attach_on(bed, host, &["--port", "80"]));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let done = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        ensure!(done > 10, "only {done} connections met the kills");
        last.map(drop)
    })
}

/// Behind HAProxy on the sender's host, whose client is on that host's loopback.
fn a_running_postgresql_names_the_client(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _postgres = host.run(|| Postgres::start(bed, &["0.0.0.0"], 5432))??;
    attach_on(bed, host, &["--port", "5432", "--allow-claims", "loopback"])?;
    let _haproxy = lb.run(|| {
        Haproxy::default().relay("127.0.0.1:5433", host.at(false, 5432), "send-proxy-v2").start(bed)
    })??;
    let question = "select host(inet_client_addr())";
    for _ in 0..2 {
        let answer = lb.run(|| Postgres::psql("127.0.0.1", 5433, question).run(bed))??;
        ensure!(answer.trim() == "127.0.0.1", "{answer}");
    }
    Ok(())
}
