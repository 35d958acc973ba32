//! A new process in the place of a running one.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::datagrams::{self, Backend};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests};

use crate::operation::rules;
use crate::serve::{DNS, GATE, ask_by_udp, goes_on, session_at};
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, TRUEPEER};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_upgrade_takes_new_connections_and_cuts_none,
        an_upgrade_goes_on_with_the_old_log_and_lets_the_shell_go,
        a_service_is_upgraded_only_from_inside_its_unit,
        no_datagram_is_lost_by_upgrades,
        an_upgrade_that_fails_leaves_the_old_process_serving,
        a_new_process_that_ends_in_the_middle_leaves_the_old_one_serving,
        an_upgrade_takes_a_listener_of_each_family_over,
        an_upgrade_to_listeners_of_other_families_comes_after_a_reload,
        rounds_of_reload_upgrade_and_drain_refuse_and_cut_nothing,
        the_reload_command_prints_changes_or_the_reason,
    ]
}

pub(crate) const FILE: &str = r#"
drain-timeout = "20s"

[admin]
listen = ["./admin.sock"]

[log]
level = "info"
format = "text"

[[proxy]]
listen = ["127.0.0.1:8443"]
ipv4 = "127.0.0.1:8000"
ipv6 = "[::1]:8000"
routes = "auto"

[[proxy]]
protocol = "udp"
listen = ["127.0.0.1:5300"]
ipv4 = "127.0.0.1:53"
routes = "auto"
"#;

fn serve(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).args(options).start(bed)
}

pub(crate) fn start(bed: &Bed) -> anyhow::Result<Running> {
    bed.write("truepeer.toml", FILE)?;
    let truepeer = serve(bed, &[])?;
    truepeer.wait_listening(DOOR_V4)?;
    truepeer.wait_for_log("admin: listening on")?;
    Ok(truepeer)
}

pub(crate) fn upgrade(bed: &Bed) -> anyhow::Result<Running> {
    let new = serve(bed, &["--take-over"])?;
    new.wait_for_log("upgrade: serves in place of process")?;
    Ok(new)
}

fn session(client: &str) -> anyhow::Result<TcpStream> {
    session_at(DOOR_V4, client)
}

fn an_upgrade_takes_new_connections_and_cuts_none(bed: &Bed) -> anyhow::Result<()> {
    let echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let old = start(bed)?;
    let mut before = session(CLIENT_V4)?;
    let said = Program::new(TRUEPEER).args(["upgrade", "-c", "truepeer.toml"]).run(bed)?;
    ensure!(said.contains(&format!("serves in place of process {}", old.pid())), "{said}");
    let new = said.split(' ').nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let new = new.with_context(|| said.clone())?;
    // Perhaps also that of the look whether it listens.
    old.wait_for_log(" sessions open may go on here for 20 s")?;
    goes_on(&mut before)?;
    let mut after = session("203.0.113.8:5000")?;
    ensure!(echo.log().contains("203.0.113.8:5000"), "{}", echo.log());
    goes_on(&mut before)?;
    drop(before);
    ensure!(old.wait_end()?.code() == Some(0), "{}", old.log());
    goes_on(&mut after)?;
    ensure!(rules(bed)?, "the new process needs the rules");
    session("203.0.113.9:5000")?;
    kill_process(new, Signal::TERM)?;
    drop(after);
    bed.wait_for("the new process to remove its rules", || rules(bed).is_ok_and(|there| !there))
}

/// In a pipeline: it ends, since nothing of the new process keeps the pipe open.
fn an_upgrade_goes_on_with_the_old_log_and_lets_the_shell_go(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let old = start(bed)?;
    let pipeline = format!("{TRUEPEER} upgrade -c truepeer.toml 2>&1 | cat");
    let shell = Program::new("sh").args(["-c", &pipeline]).start(bed)?;
    ensure!(shell.wait_end()?.success());
    let said = shell.log();
    ensure!(said.contains(&format!("serves in place of process {}", old.pid())), "{said}");
    let new = said.split("process ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    let new = new.and_then(Pid::from_raw).with_context(|| said.clone())?;
    ensure!(old.wait_end()?.success(), "{}", old.log());
    // It ends after the old one, whose log it writes.
    kill_process(new, Signal::TERM)?;
    bed.wait_for("the new process's last line", || old.log().contains("stopping with 0 sessions open"))?;
    bed.wait_for("the new process to remove its rules", || rules(bed).is_ok_and(|there| !there))?;
    ensure!(old.log().contains("upgrade: serves in place of process"), "{}", old.log());
    ensure!(!said.contains("stopping"), "{said}");
    Ok(())
}

/// As systemd names the runs of units.
fn a_service_is_upgraded_only_from_inside_its_unit(bed: &Bed) -> anyhow::Result<()> {
    const ID: &str = "INVOCATION_ID";
    bed.write("truepeer.toml", FILE)?;
    let old =
        Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).env(ID, "of-the-unit").start(bed)?;
    old.wait_for_log("admin: listening on")?;
    let upgrade = || Program::new(TRUEPEER).args(["upgrade", "-c", "truepeer.toml"]);
    for outside in [upgrade(), upgrade().env(ID, "of-a-shell")] {
        let outside = outside.start(bed)?;
        ensure!(!outside.wait_end()?.success(), "{}", outside.log());
        ensure!(outside.log().contains("expected: systemctl reload truepeer"), "{}", outside.log());
    }
    let said = upgrade().env(ID, "of-the-unit").run(bed)?;
    let new = said.split(' ').nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    kill_process(new.with_context(|| said.clone())?, Signal::TERM)?;
    ensure!(old.wait_end()?.success(), "{}", old.log());
    bed.wait_for("the new process to remove its rules", || rules(bed).is_ok_and(|there| !there))
}

/// Clients ask all the time, one datagram after the other each; an answer that doesn't come is an error.
fn no_datagram_is_lost_by_upgrades(bed: &Bed) -> anyhow::Result<()> {
    const CLIENTS: u16 = 8;
    let dns = Backend::who(&[DNS])?;
    let mut running = start(bed)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let asking: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || -> anyhow::Result<usize> {
                let client = format!("203.0.113.7:{}", 4000 + number);
                let sender = datagrams::sender_towards(GATE)?;
                let mut asked = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let header = datagrams::v2(&client, "198.51.100.1:53")?;
                    let answer = datagrams::ask(&sender, &[&header, b"who?"])?;
                    ensure!(answer == format!("{client} who?").as_bytes(), "{client} got {answer:?}");
                    asked += 1;
                }
                Ok(asked)
            })
        })
        .collect();
    for round in 0..4 {
        thread::sleep(Duration::from_millis(100));
        let new = upgrade(bed)?;
        ensure!(new.log().contains("8 of 8 flows go on"), "round {round}: {}", new.log());
        ensure!(running.wait_end()?.code() == Some(0), "{}", running.log());
        running = new;
    }
    is_over.store(true, Ordering::Relaxed);
    for client in asking {
        let asked = client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        ensure!(asked > 50, "only {asked} questions");
    }
    drop(dns);
    Ok(())
}

fn an_upgrade_that_fails_leaves_the_old_process_serving(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let old = start(bed)?;
    let mut before = session(CLIENT_V4)?;
    let _taken = std::net::TcpListener::bind("127.0.0.1:8446")?;
    bed.write(
        "truepeer.toml",
        FILE.replace("[\"127.0.0.1:8443\"]", "[\"127.0.0.1:8443\", \"127.0.0.1:8446\"]"),
    )?;
    let new = Program::new(TRUEPEER).args(["upgrade", "-c", "truepeer.toml"]).start(bed)?;
    ensure!(new.wait_end()?.code() == Some(1), "{}", new.log());
    ensure!(new.log().contains("can't listen on 127.0.0.1:8446"), "{}", new.log());
    ensure!(new.log().contains("not upgraded, the running truepeer goes on"), "{}", new.log());
    old.wait_for_log("not upgraded, this process goes on: the new process has failed: can't listen")?;
    goes_on(&mut before)?;
    session("203.0.113.8:5000")?;
    ask_by_udp("203.0.113.7:4000", b"question")?;
    bed.write("truepeer.toml", FILE)?;
    let _new = upgrade(bed)?;
    goes_on(&mut before)
}

/// Both have the same port, at one address each.
fn an_upgrade_takes_a_listener_of_each_family_over(bed: &Bed) -> anyhow::Result<()> {
    const BOTH: &str = "[\"127.0.0.1:8443\", \"[::1]:8443\"]";
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    bed.write("truepeer.toml", FILE.replace("[\"127.0.0.1:8443\"]", BOTH))?;
    let old = serve(bed, &[])?;
    old.wait_for_log("admin: listening on")?;
    let _new = upgrade(bed)?;
    ensure!(old.wait_end()?.success(), "{}", old.log());
    for listener in [DOOR_V4, "[::1]:8443"] {
        session_at(listener, CLIENT_V4)?;
    }
    Ok(())
}

/// The old process has the port for IPv6 alone, and another socket for IPv4, or the other way round.
fn an_upgrade_to_listeners_of_other_families_comes_after_a_reload(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let listening = |at: &str| bed.write("truepeer.toml", FILE.replace("[\"127.0.0.1:8443\"]", at));
    let (apart, together) = ("[\"0.0.0.0:8443\", \"[::]:8443\"]", "[\"[::]:8443\"]");
    listening(apart)?;
    let mut serving = serve(bed, &[])?;
    serving.wait_for_log("admin: listening on")?;
    for next in [together, apart] {
        listening(next)?;
        let new = Program::new(TRUEPEER).args(["upgrade", "-c", "truepeer.toml"]).start(bed)?;
        ensure!(new.wait_end()?.code() == Some(1), "{}", new.log());
        ensure!(
            new.log().contains("listener [::]:8443: the running truepeer has another socket"),
            "{}",
            new.log()
        );
        serving.wait_for_log("not upgraded, this process goes on")?;
        session(CLIENT_V4)?;
        serving.signal(Signal::HUP)?;
        serving.wait_for_log("reloaded: ")?;
        let upgraded = upgrade(bed)?;
        serving.wait_end()?;
        serving = upgraded;
        session(CLIENT_V4)?;
    }
    Ok(())
}

/// It has taken everything, and ends before it says that it serves.
fn a_new_process_that_ends_in_the_middle_leaves_the_old_one_serving(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let old = start(bed)?;
    let mut before = session(CLIENT_V4)?;
    ask_by_udp("203.0.113.7:4000", b"question")?;
    let mut new = UnixStream::connect(bed.dir().join("admin.sock"))?;
    new.write_all(
        b"POST /upgrade HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover\r\n\r\n",
    )?;
    wait_for(&mut new, "Offer")?;
    new.write_all(b"\x07\0\0\0\"Ready\"")?;
    wait_for(&mut new, "\"Go\"")?;
    // Nobody reads datagrams now.
    let sender = datagrams::sender_towards(GATE)?;
    datagrams::send(&sender, &[&datagrams::v2("203.0.113.7:4000", "198.51.100.1:53")?, b"meanwhile"])?;
    goes_on(&mut before)?;
    drop(new);
    old.wait_for_log("not upgraded, this process goes on: the new process does not serve")?;
    ensure!(datagrams::receive(&sender)? == b"meanwhile");
    goes_on(&mut before)?;
    session("203.0.113.8:5000")?;
    let _new = upgrade(bed)?;
    goes_on(&mut before)?;
    ask_by_udp("203.0.113.7:4000", b"question")
}

pub(crate) fn wait_for(stream: &mut UnixStream, text: &str) -> anyhow::Result<()> {
    let (mut seen, mut part) = (Vec::new(), [0; 1000]);
    while !String::from_utf8_lossy(&seen).contains(text) {
        let length = stream.read(&mut part)?;
        ensure!(length > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend(&part[..length]);
    }
    Ok(())
}

/// Sessions of all ages, in three threads, while the process is reloaded, replaced and drained in turn.
fn rounds_of_reload_upgrade_and_drain_refuse_and_cut_nothing(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let mut running = start(bed)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let loads: Vec<_> = (0..3)
        .map(|number| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || -> anyhow::Result<usize> {
                let (mut old, mut count) = (Vec::new(), 0);
                while !is_over.load(Ordering::Relaxed) {
                    let client = format!("203.0.113.{}:{}", 10 + number, 5000 + count % 50_000);
                    old.push(session(&client).with_context(|| format!("session {count}"))?);
                    old.iter_mut().try_for_each(goes_on).context("an open session")?;
                    if old.len() > 6 {
                        old.remove(0);
                    }
                    count += 1;
                }
                Ok(count)
            })
        })
        .collect();
    for round in 0..4 {
        bed.write("truepeer.toml", FILE.replace("20s", &format!("2{round}s")))?;
        Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).run(bed)?;
        let new = upgrade(bed)?;
        ensure!(running.wait_end()?.code() == Some(0), "round {round}: {}", running.log());
        running = new;
    }
    is_over.store(true, Ordering::Relaxed);
    for load in loads {
        let count = load.join().map_err(|_| anyhow::anyhow!("a load panicked"))??;
        ensure!(count > 20, "only {count} sessions");
    }
    Ok(())
}

fn the_reload_command_prints_changes_or_the_reason(bed: &Bed) -> anyhow::Result<()> {
    let _truepeer = start(bed)?;
    let reload = || Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]);
    let said = reload().run(bed)?;
    ensure!(said.trim() == "nothing has changed", "{said}");
    bed.write("truepeer.toml", FILE.replace("127.0.0.1:8443", "127.0.0.1:8444"))?;
    let said = reload().run(bed)?;
    ensure!(said.contains("listener 127.0.0.1:8444 was opened"), "{said}");
    let _taken = std::net::TcpListener::bind("127.0.0.1:8446")?;
    bed.write("truepeer.toml", FILE.replace("127.0.0.1:8443", "127.0.0.1:8446"))?;
    let failed = reload().start(bed)?;
    ensure!(failed.wait_end()?.code() == Some(1), "{}", failed.log());
    ensure!(failed.log().contains("not reloaded: can't listen on 127.0.0.1:8446"), "{}", failed.log());
    Ok(())
}
