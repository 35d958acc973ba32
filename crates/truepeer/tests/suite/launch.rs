//! Start and end: exit statuses, passed sockets, other programs' names.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Truepeer, client, ip_here, tests};

use crate::operation::rules;
use crate::serve::{DNS, ask_by_udp};
use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, SITE_V4, SITE_V6, Stand, TRUEPEER, ask,
    bare_proxy, classic_rules, header_of, open_as, proxy,
};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        sigterm_ends_it_with_status_0,
        sigint_ends_it_with_status_0,
        a_port_in_use_ends_it_with_one_clear_line,
        a_foreign_address_ends_it_with_one_clear_line,
        a_loop_over_an_address_of_an_interface_is_refused,
        an_option_that_is_wrong_is_named,
        the_limit_of_open_files_is_raised,
        several_sockets_on_one_address_serve,
        a_passed_socket_serves_and_survives_truepeer,
        a_socket_that_is_no_listener_is_named_and_not_taken,
        passed_sockets_are_checked,
        passed_sockets_are_known_by_name_also_after_an_upgrade,
        a_name_that_was_not_passed_is_refused,
        a_listener_beside_a_passed_socket_is_refused_and_nothing_changes,
        go_mmproxys_example_works_by_a_link,
        mmproxys_options_work_by_a_link,
        cloudflares_options_work_by_name,
        a_drop_in_allows_what_that_program_allows_and_warns,
    ]
}

fn ends_by(bed: &Bed, signal: Signal) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Echo, &[])?;
    let mut session = open_as(CLIENT_V4.parse()?)?;
    session.write_all(b"x")?;
    session.read_exact(&mut [0])?;
    drop(session);
    stand.truepeer.signal(signal)?;
    let status = stand.truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", stand.truepeer.log());
    let rules = Program::new("ip").args(["rule"]).run(bed)?;
    ensure!(!rules.contains("lookup 123"), "its rules are left:\n{rules}");
    Ok(())
}

fn sigterm_ends_it_with_status_0(bed: &Bed) -> anyhow::Result<()> {
    ends_by(bed, Signal::TERM)
}

fn sigint_ends_it_with_status_0(bed: &Bed) -> anyhow::Result<()> {
    ends_by(bed, Signal::INT)
}

fn a_port_in_use_ends_it_with_one_clear_line(bed: &Bed) -> anyhow::Result<()> {
    let _first = proxy().start(bed)?;
    for options in [[].as_slice(), &["--listeners", "2"]] {
        let second = Truepeer::proxy(TRUEPEER).args(&["-l", DOOR_V4]).args(options).start_unready(bed)?;
        let status = second.wait_end()?;
        let log = second.log();
        ensure!(status.code() == Some(1), "{status}: {log}");
        ensure!(log.lines().count() == 1 && log.contains(DOOR_V4), "{log}");
        ensure!(log.contains("truepeer (process ") && log.contains("listens there"), "{log}");
    }
    Ok(())
}

/// Each session would open the next, until the descriptors run out.
fn a_loop_over_an_address_of_an_interface_is_refused(bed: &Bed) -> anyhow::Result<()> {
    ip_here(&["addr add 192.0.2.129/32 dev lo"])?;
    let options = ["-l", ":8443", "-4", "192.0.2.129:8443", "--send-proxy", "v2"];
    let truepeer = Truepeer::proxy(TRUEPEER).args(&options).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(status.code() == Some(2) && log.contains("would loop"), "{status}: {log}");
    Ok(())
}

fn a_foreign_address_ends_it_with_one_clear_line(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = Truepeer::proxy(TRUEPEER).args(&["-l", "192.0.2.1:8443"]).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(status.code() == Some(1) && log.contains("no interface of this machine"), "{status}: {log}");
    Ok(())
}

/// A shell's usual soft limit of 1024 would mean 400 sessions.
fn the_limit_of_open_files_is_raised(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = proxy().with(|program| program.limit("nofile=1024:16384")).start(bed)?;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", truepeer.pid()))?;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let soft = line.split_whitespace().nth(3);
    ensure!(soft == Some("16384"), "{line}");
    Ok(())
}

fn an_option_that_is_wrong_is_named(bed: &Bed) -> anyhow::Result<()> {
    for (option, value) in [
        ("--mark", "x"),
        ("--header-timeout", "never"),
        ("--allow", "10.0.0.0/33"),
        ("--ipv4", "127.0.0.1:x"),
    ] {
        let truepeer = bare_proxy().option(option, value).start_unready(bed)?;
        let status = truepeer.wait_end()?;
        let log = truepeer.log();
        ensure!(status.code() == Some(2) && log.contains(option), "{option} {value}: {status}: {log}");
    }
    Ok(())
}

fn several_sockets_on_one_address_serve(bed: &Bed) -> anyhow::Result<()> {
    let _stand = Stand::with_options(bed, Behaviour::Who, &["--listeners", "4", "--workers", "3"])?;
    for port in 5000..5100 {
        let client = format!("203.0.113.7:{port}");
        ensure!(ask(&header_of(client.parse()?)?)? == client);
    }
    Ok(())
}

/// truepeer as a service manager starts it: descriptor 3 is the listening socket (sd_listen_fds(3)).
fn start_by_socket(bed: &Bed, listener: &TcpListener) -> anyhow::Result<Running> {
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let options = ["proxy", "--routes", "auto", "-l", DOOR_V4, "-4", BACKEND_V4, "-6", BACKEND_V6];
    let truepeer = Program::new("sh").args(["-c", script, "sh", TRUEPEER]).args(options);
    let truepeer = truepeer.stdin(listener.try_clone()?).start(bed)?;
    truepeer.wait_for_log("listening on 127.0.0.1:8443")?;
    Ok(truepeer)
}

/// With a socket of another address, and with fewer sockets than announced.
fn passed_sockets_are_checked(bed: &Bed) -> anyhow::Result<()> {
    let other = TcpListener::bind("127.0.0.1:8444")?;
    let start = |count: u32| {
        let script = format!("exec 3<&0 0</dev/null 9<&-; LISTEN_PID=$$ LISTEN_FDS={count} exec \"$@\"");
        let options = ["proxy", "--routes", "auto", "-l", DOOR_V4, "-4", BACKEND_V4, "-6", BACKEND_V6];
        let truepeer = Program::new("sh").args(["-c", &script, "sh", TRUEPEER]).args(options);
        truepeer.stdin(other.try_clone()?).start(bed)
    };
    let truepeer = start(1)?;
    truepeer.wait_for_log("listening on 127.0.0.1:8443")?;
    truepeer.wait_for_log("passed a socket on 127.0.0.1:8444, for which there is no listener here")?;
    truepeer.stop()?;
    let truepeer = start(7)?;
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(
        !status.success() && log.contains("LISTEN_FDS=7, but descriptor 4 is not open"),
        "{status}: {log}"
    );
    Ok(())
}

/// Opens a TCP and a UDP socket, and starts a program with them by name, as sd_listen_fds(3) says.
const MANAGER: &str = "
import os, socket, sys
web = socket.create_server(('127.0.0.1', 8443))
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
dns.bind(('127.0.0.1', 5300))
high = [os.dup2(one.fileno(), 100 + place) for place, one in enumerate((dns, web))]
for place, fd in enumerate(high): os.dup2(fd, 3 + place)
for fd in high: os.close(fd)
os.environ.update(LISTEN_FDS='2', LISTEN_FDNAMES='the dns:web', LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[1], sys.argv[1:])
";

const NAMED: &str = r#"
drain-timeout = "1s"

[admin]
listen = ["./admin.sock"]

[log]
format = "text"

[[proxy]]
listen = ["fd:web"]
ipv4 = "127.0.0.1:8000"
routes = "auto"

[[proxy]]
protocol = "udp"
listen = ["fd:the dns"]
ipv4 = "127.0.0.1:53"
routes = "auto"
"#;

fn start_by_names(bed: &Bed, file: &str) -> anyhow::Result<Running> {
    bed.write("truepeer.toml", file)?;
    let manager = bed.write("manager.py", MANAGER)?;
    Program::new("python3").arg(manager).args([TRUEPEER, "serve", "-c", "truepeer.toml"]).start(bed)
}

/// The new process of an upgrade is passed no socket by the service manager, and must know the names.
fn passed_sockets_are_known_by_name_also_after_an_upgrade(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let _dns = Backend::echo(&[DNS])?;
    let old = start_by_names(bed, NAMED)?;
    old.wait_for_log("admin: listening on")?;
    ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
    ask_by_udp("203.0.113.7:4000", b"question")?;

    // Commands are passed nothing.
    let said = Program::new(TRUEPEER).args(["check", "-c", "truepeer.toml"]).run(bed)?;
    ensure!(said.contains("no errors; 2 entries, 2 listeners"), "{said}");
    ensure!(said.contains("needs the same port"), "{said}");
    let said = Program::new(TRUEPEER).args(["upgrade", "-c", "truepeer.toml"]).run(bed)?;
    let new = said.split(' ').nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let new = new.with_context(|| said.clone())?;
    ensure!(old.wait_end()?.success(), "{}", old.log());
    ensure!(ask(&header_of("203.0.113.8:5000".parse()?)?)? == "203.0.113.8:5000");
    ask_by_udp("203.0.113.8:4000", b"question")?;
    kill_process(new, Signal::TERM)?;
    bed.wait_for("the new process to remove its rules", || rules(bed).is_ok_and(|there| !there))
}

fn a_name_that_was_not_passed_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = start_by_names(bed, &NAMED.replace("fd:web", "fd:site"))?;
    let (status, log) = (truepeer.wait_end()?, truepeer.log());
    ensure!(!status.success(), "{status}: {log}");
    let expected = "fd:site: the service manager has passed no socket of this name (passed: the dns, web)";
    ensure!(log.contains(expected), "{log}");
    ensure!(!rules(bed)?, "nothing is set up");
    Ok(())
}

/// The service manager keeps its socket whatever happens here.
fn a_listener_beside_a_passed_socket_is_refused_and_nothing_changes(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let truepeer = start_by_names(bed, NAMED)?;
    truepeer.wait_for_log("admin: listening on")?;
    bed.write("truepeer.toml", NAMED.replace("fd:web", "0.0.0.0:8443"))?;
    let reload = Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).start(bed)?;
    ensure!(!reload.wait_end()?.success(), "{}", reload.log());
    let said = "can't listen on 0.0.0.0:8443: the service manager keeps 127.0.0.1:8443 open (web)";
    ensure!(reload.log().contains(said), "{}", reload.log());
    truepeer.wait_for_log("everything stays as it was")?;
    ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
    Ok(())
}

/// A datagram socket, and a stream socket that does not listen, on the listener's own address. Accepting from
/// either would fail forever. For truepeer proxy and for truepeer https, whose engines open their own
/// sockets.
fn a_socket_that_is_no_listener_is_named_and_not_taken(bed: &Bed) -> anyhow::Result<()> {
    let made = rcgen::generate_simple_self_signed(["site".to_owned()])?;
    bed.write("site.pem", made.cert.pem() + &made.signing_key.serialize_pem())?;
    let ways = [
        format!("proxy --routes manual -l {DOOR_V4} -4 {BACKEND_V4} -6 {BACKEND_V6}"),
        format!("https -l {DOOR_V4} --tls-cert site.pem --origin http://{BACKEND_V4}"),
    ];
    for way in &ways {
        let udp = OwnedFd::from(UdpSocket::bind(DOOR_V4)?);
        let deaf = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        deaf.set_reuse_address(true)?;
        deaf.bind(&DOOR_V4.parse::<SocketAddr>()?.into())?;
        for socket in [udp, deaf.into()] {
            let script = format!(
                "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {TRUEPEER} {way} --log-format text"
            );
            let truepeer = Program::new("sh").args(["-c", &script]).stdin(socket).start(bed)?;
            truepeer.wait_for_log(&format!(
                "passed a socket on {DOOR_V4}, for which there is no listener here"
            ))?;
            truepeer.wait_listening(DOOR_V4)?;
            truepeer.stop()?;
        }
    }
    Ok(())
}

/// Between two truepeers nothing accepts, and no connection is refused.
fn a_passed_socket_serves_and_survives_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let listener = TcpListener::bind(DOOR_V4)?;
    let first = start_by_socket(bed, &listener)?;
    ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
    ensure!(first.stop()?.success());
    let mut between = open_as("203.0.113.8:5000".parse()?)?;
    let _second = start_by_socket(bed, &listener)?;
    let seen = client::ask(&mut between, b"")?;
    ensure!(seen.trim() == "203.0.113.8:5000", "{seen:?}");
    Ok(())
}

/// Runs a command line whose first word is a link to truepeer.
fn start_by_link(bed: &Bed, name: &str, arguments: &str) -> anyhow::Result<Running> {
    let link = bed.dir().join(name);
    symlink(TRUEPEER, &link)?;
    Program::new("sh").args(["-c", &format!("exec ./{name} {arguments}")]).start(bed)
}

/// `sudo ./go-mmproxy -l … -4 … -6 [::1]:25578 --allowed-subnets ./path-prefixes.txt`, with its routing.
fn go_mmproxys_example_works_by_a_link(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let _who = Behaviour::Who.start(bed, &["127.0.0.1:25578", "[::1]:25578"])?;
    bed.write("path-prefixes.txt", "127.0.0.0/8\n# comment\n::1/128\n")?;
    let options = "-l 0.0.0.0:8443 -4 127.0.0.1:25578 -6 [::1]:25578 --allowed-subnets ./path-prefixes.txt \
                   -listeners=2 -mark 0 -close-after 60 -v 2 -p tcp";
    let go_mmproxy = start_by_link(bed, "go-mmproxy", options)?;
    go_mmproxy.wait_listening("127.0.0.1:8443")?;
    for client in [CLIENT_V4, CLIENT_V6] {
        ensure!(ask(&header_of(client.parse()?)?)? == client);
    }
    Ok(())
}

fn mmproxys_options_work_by_a_link(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let _who = Behaviour::Who.start(bed, &["127.0.0.1:8081", "[::1]:8081"])?;
    let options =
        "-m 123 --listen-addr 127.0.0.1:8443 -4 127.0.0.1:8081 --ipv6 [::1]:8081 --listeners 1 -c 60 -p tcp";
    let mmproxy = start_by_link(bed, "mmproxy", options)?;
    mmproxy.wait_listening(DOOR_V4)?;
    for client in [CLIENT_V4, CLIENT_V6] {
        ensure!(ask(&header_of(client.parse()?)?)? == client);
    }
    Ok(())
}

/// As in its documentation.
fn cloudflares_options_work_by_name(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    bed.write("networks", "127.0.0.0/8\n")?;
    let start = Program::new(TRUEPEER).args(["--compat", "cloudflare", "--allowed-networks", "networks"]);
    let mmproxy = start.args(["-l", "0.0.0.0:8443", "-4", BACKEND_V4, "-6", BACKEND_V6, "-v"]).start(bed)?;
    mmproxy.wait_listening(DOOR_V4)?;
    for client in [CLIENT_V4, CLIENT_V6] {
        let (client, site) =
            (client.parse::<SocketAddr>()?, if client == CLIENT_V4 { SITE_V4 } else { SITE_V6 });
        let seen: SocketAddr = ask(&client::v1(client, site)?)?.parse()?;
        ensure!(seen == client, "{client} was seen as {seen}");
    }
    Ok(())
}

/// Every host may send and claim any client, even loopback. The log warns about that.
fn a_drop_in_allows_what_that_program_allows_and_warns(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let options = format!("-l {DOOR_V4} -4 {BACKEND_V4} -6 {BACKEND_V6}");
    let go_mmproxy = start_by_link(bed, "go-mmproxy", &options)?;
    go_mmproxy.wait_listening(DOOR_V4)?;
    ensure!(ask(&client::v1("127.0.0.1:65432", SITE_V4)?)? == "127.0.0.1:65432");
    let warnings = go_mmproxy.log();
    ensure!(warnings.contains("every host may connect") && warnings.contains("may claim"), "{warnings}");
    Ok(())
}
