//! Listeners whose sockets a service manager keeps, and that change within their port.

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests};

use crate::serve::{DNS, TCP, TEXT_LOG, UDP, ask_by_udp, session_at};
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, TRUEPEER};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_listener_changes_within_its_port_beside_a_service_managers_store,
        a_restart_opens_a_listener_that_changed_within_its_port,
        a_change_that_cannot_be_undone_is_said_and_shown,
        a_file_without_an_admin_table_has_the_usual_socket,
        a_socket_beside_the_file_is_found_from_everywhere,
        check_as_the_service_names_what_its_user_can_not_read,
        errors_are_json_where_the_log_is,
    ]
}

const ADMIN: &str = "workers = 1\ndrain-timeout = \"0s\"\n[admin]\nlisten = [\"./admin.sock\"]\n";

/// `serve` with the listening addresses of TCP and UDP.
fn write(bed: &Bed, tcp: &str, udp: &str) -> anyhow::Result<()> {
    let tables = [ADMIN, TEXT_LOG, &TCP.replace("127.0.0.1:8443", tcp), &UDP.replace("127.0.0.1:5300", udp)];
    bed.write("truepeer.toml", tables.concat())?;
    Ok(())
}

fn start(bed: &Bed) -> anyhow::Result<Running> {
    write(bed, DOOR_V4, "127.0.0.1:5300")?;
    let manager = bed.write("store.py", include_str!("store.py"))?;
    let serve = [TRUEPEER, "serve", "-c", "truepeer.toml"];
    let manager = Program::new("python3").arg(manager).args(serve).start(bed)?;
    manager.wait_for_log("admin: listening on")?;
    Ok(manager)
}

fn reload(bed: &Bed) -> anyhow::Result<String> {
    Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).run(bed)
}

fn readiness(bed: &Bed) -> anyhow::Result<String> {
    let options = ["-s", "-w", " %{http_code}", "--unix-socket", "admin.sock", "http://t/readyz"];
    Program::new("curl").args(options).run(bed)
}

fn serves(port: u16) -> anyhow::Result<()> {
    session_at(DOOR_V4, &format!("203.0.113.7:{port}"))?;
    ask_by_udp(&format!("203.0.113.7:{port}"), b"question")
}

fn a_listener_changes_within_its_port_beside_a_service_managers_store(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let _manager = start(bed)?;
    serves(5000)?;
    for (port, ip) in (5001..).zip(["0.0.0.0", "[::]", "127.0.0.1"]) {
        write(bed, &format!("{ip}:8443"), &format!("{ip}:5300"))?;
        let said = reload(bed)?;
        ensure!(said.contains(&format!("listener {ip}:8443 was opened")), "{said}");
        serves(port)?;
        ensure!(readiness(bed)?.ends_with(" 200"));
    }
    Ok(())
}

fn a_restart_opens_a_listener_that_changed_within_its_port(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let manager = start(bed)?;
    for (round, ip) in (1..).zip(["0.0.0.0", "[::]", "127.0.0.1"]) {
        write(bed, &format!("{ip}:8443"), &format!("{ip}:5300"))?;
        let log = manager.log();
        let (_, process) = log.rsplit_once("started ").context("a process")?;
        let process = process.split(' ').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        kill_process(process.context("its number")?, Signal::TERM)?;
        manager
            .wait_state("another process", || manager.log().matches("admin: listening on").count() > round)?;
        let log = manager.log();
        ensure!(log.contains(&format!("listening on {ip}:8443")), "{log}");
        ensure!(log.matches(" with 2").count() == round, "a socket is kept for nobody: {log}");
        serves(5000 + u16::try_from(round)?)?;
    }
    Ok(())
}

/// A /run of the test's own, with the directory that the unit makes. A second process serves without the
/// socket.
const USUAL: &str = r#"
mount -t tmpfs tmpfs /run && mkdir /run/truepeer
"$0" serve -c truepeer.toml & first=$!
while ! "$0" status -c truepeer.toml 2>/dev/null | grep serving; do sleep .05; done
"$0" reload -c truepeer.toml
sed s/8443/8444/ truepeer.toml >second.toml
"$0" serve -c second.toml >second.log 2>&1 & second=$!
while ! grep "listening on 127.0.0.1:8444" second.log; do sleep .05; done
while ! grep "reach this process" second.log; do sleep .05; done
kill $second $first
wait $second; echo "second: $?"; wait $first; echo "first: $?"
"#;

fn a_file_without_an_admin_table_has_the_usual_socket(bed: &Bed) -> anyhow::Result<()> {
    bed.write("truepeer.toml", ["drain-timeout = \"0s\"\n", TEXT_LOG, TCP].concat())?;
    let said = Program::new("unshare").args(["--mount", "sh", "-c", USUAL, TRUEPEER]).run(bed)?;
    for expected in ["serving", "nothing has changed", "second: 0", "first: 0"] {
        ensure!(said.contains(expected), "no {expected:?} in {said}");
    }
    Ok(())
}

fn a_socket_beside_the_file_is_found_from_everywhere(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("truepeer.toml", [ADMIN, TEXT_LOG, TCP].concat())?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_for_log("admin: listening on")?;
    for command in ["status", "reload", "bans"] {
        let script = "cd / && exec \"$0\" \"$@\"";
        Program::new("sh").args(["-c", script, TRUEPEER, command, "-c"]).arg(&file).run(bed)?;
    }
    Ok(())
}

/// A key that certbot leaves for root alone, and a file that root alone may read.
fn check_as_the_service_names_what_its_user_can_not_read(bed: &Bed) -> anyhow::Result<()> {
    let made = rcgen::generate_simple_self_signed(["site.test".to_owned()])?;
    bed.write("site.pem", made.cert.pem())?;
    bed.write("site.key", made.signing_key.serialize_pem())?;
    let https = "[[https]]\nlisten = [\"127.0.0.1:8445\"]\ntls-cert = [\"site.pem\"]\ntls-key = [\"site.key\"]\norigin = \"http://127.0.0.1:1\"\n";
    bed.write("truepeer.toml", https)?;
    let options = "chmod 755 . && chmod 644 truepeer.toml site.pem && chmod $1 site.key && shift && exec \"$0\" check -c truepeer.toml \"$@\"";
    // As systemd answers where drop-ins take the start as root away, and for the unit alone.
    bed.write("bin/systemctl", "#!/bin/sh\ncat user\n")?;
    Program::new("chmod").args(["755", "bin/systemctl"]).run(bed)?;
    bed.write("user", "LoadState=loaded\nDynamicUser=yes\nUser=\nSupplementaryGroups=\n")?;
    let options = format!("PATH=$PWD/bin:$PATH; {options}");
    let check = |mode: &str, more: &[&str]| {
        Program::new("sh").args(["-c", &options, TRUEPEER, mode]).args(more).start(bed)
    };
    let plain = check("600", &[])?;
    ensure!(plain.wait_end()?.success(), "root may read it: {}", plain.log());
    let closed = check("600", &["--as-service"])?;
    ensure!(closed.wait_end()?.code() == Some(2), "{}", closed.log());
    let said = "site.key: the user of truepeer.service can't read it";
    ensure!(closed.log().contains(said) && closed.log().contains("chmod g+r"), "{}", closed.log());
    let open = check("644", &["--as-service"])?;
    ensure!(!open.log().contains("site.key: "), "{}", open.log());
    let packaged = "LoadState=loaded\nDynamicUser=yes\nUser=truepeer\n\
        ExecStartEx={ path=/usr/bin/truepeer ; flags=no-setuid }\n";
    bed.write("user", packaged)?;
    let as_root = check("600", &["--as-service"])?;
    ensure!(as_root.wait_end()?.success(), "the service starts as root: {}", as_root.log());
    Ok(())
}

/// Has the listening sockets of a process, as one that it hands over to, and keeps them.
const HOLDER: &str = r#"
import signal, socket
old = socket.socket(socket.AF_UNIX)
old.connect("admin.sock")
old.sendall(b"POST /upgrade HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover\r\n\r\n")
said, sockets = b"", []
while b"Offer" not in said:
    more, descriptors, _, _ = socket.recv_fds(old, 4096, 64)
    said += more
    sockets += descriptors
old.close()
print("holds", len(sockets), flush=True)
signal.pause()
"#;

/// Another program has the old address, so that it can be bound neither in the new form nor again in the old
/// one.
fn a_change_that_cannot_be_undone_is_said_and_shown(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    bed.write("truepeer.toml", [ADMIN, TEXT_LOG, TCP].concat())?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_for_log("admin: listening on")?;
    session_at(DOOR_V4, CLIENT_V4)?;
    let holder = Program::new("python3").args(["-c", HOLDER]).start(bed)?;
    holder.wait_for_log("holds")?;
    truepeer.wait_for_log("not upgraded, this process goes on")?;

    bed.write("truepeer.toml", [ADMIN, TEXT_LOG, &TCP.replace(DOOR_V4, "0.0.0.0:8443")].concat())?;
    let failed = Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).start(bed)?;
    ensure!(!failed.wait_end()?.success(), "{}", failed.log());
    ensure!(failed.log().contains("not open any more: 127.0.0.1:8443; expected: "), "{}", failed.log());
    truepeer.wait_for_log("not reloaded, and not undone: can't listen on 0.0.0.0:8443")?;
    ensure!(!truepeer.log().contains("everything stays as it was"), "{}", truepeer.log());
    let ready = readiness(bed)?;
    ensure!(ready == "not open: 127.0.0.1:8443\n 503", "{ready}");
    let status = Program::new(TRUEPEER).args(["status", "-c", "truepeer.toml"]).run(bed)?;
    ensure!(status.contains("not open, although it should be: 127.0.0.1:8443"), "{status}");

    drop(holder);
    bed.write("truepeer.toml", [ADMIN, TEXT_LOG, TCP].concat())?;
    ensure!(reload(bed)?.contains("listener 127.0.0.1:8443 was opened"));
    session_at(DOOR_V4, "203.0.113.8:5000")?;
    let ready = readiness(bed)?;
    ensure!(ready.ends_with(" 200"), "{ready}");
    Ok(())
}

/// Of the file, and at the start: 192.0.2.9 is no address of this host.
fn errors_are_json_where_the_log_is(bed: &Bed) -> anyhow::Result<()> {
    const JSON: &str = "[log]\nformat = \"json\"\n[[proxy]]\nlisten = [\"192.0.2.9:843\"]\n";
    for (more, status, expected) in
        [("alow = \"any\"\n", 2, "`alow`: there is no such key"), ("", 1, "192.0.2.9:843")]
    {
        bed.write("truepeer.toml", [JSON, more].concat())?;
        let serve = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
        let ended = serve.wait_end()?;
        ensure!(ended.code() == Some(status), "{ended}: {}", serve.log());
        let log = serve.log();
        let lines: Vec<serde_json::Value> =
            log.lines().map(serde_json::from_str).collect::<Result<_, _>>().with_context(|| log.clone())?;
        let said = lines.iter().find(|line| line["level"] == "ERROR").context("no error")?;
        ensure!(said["message"].as_str().is_some_and(|text| text.contains(expected)), "{said}");
        ensure!(said["timestamp"].is_string(), "{said}");
    }
    Ok(())
}
