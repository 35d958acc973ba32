//! `[[attach]]` entries of a file: attached while the process serves, changed by a reload, kept by an
//! upgrade.

use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Running, Test, client, datagrams, ip_here, tests};

use crate::kit::{BACKEND, attach, command, echo, header, is_answered, session, status};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        an_entry_is_attached_until_the_last_connection_after_the_stop,
        a_reload_changes_lists_and_ports_and_open_connections_go_on,
        an_entry_that_is_taken_out_leaves_and_can_come_back,
        a_wrong_entry_leaves_everything_as_it_was,
        an_entry_that_leaves_still_waits_after_a_reload_that_fails,
        an_upgrade_keeps_the_attachment_and_every_client_is_true,
        an_upgrade_that_fails_keeps_the_attachment_and_every_client_is_true,
        the_process_is_confined_and_its_keeper_attaches,
        without_confinement_the_process_itself_attaches,
        a_first_entry_in_a_reload_needs_a_restart,
        a_start_that_fails_leaves_nothing_attached,
        a_killed_process_leaves_what_is_attached_to_the_next_one,
        a_killed_keeper_is_told_of_and_clients_stay_true,
        a_keeper_that_stands_still_holds_up_reloads_only,
        an_engines_client_is_started_without_blocked_signals,
        the_keeper_has_the_log_level_of_the_last_reload,
        an_entry_that_was_taken_out_goes_on_after_the_stop,
        an_entry_that_was_taken_out_goes_on_after_an_upgrade,
        an_entry_names_where_datagrams_have_their_header,
        an_entry_follows_devices_and_addresses,
    ];
    all.push(
        Test::new(
            "a_keeper_that_stands_still_holds_up_the_end_for_20_s",
            a_keeper_that_stands_still_holds_up_the_end_for_20_s,
        )
        .long(),
    );
    all
}

pub(crate) const TABLES: &str =
    "drain-timeout = \"20s\"\n[admin]\nlisten = [\"./admin.sock\"]\n[log]\nlevel = \"info\"\n";
pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");

/// An entry with the test's own pins, and further keys.
pub(crate) fn entry(bed: &Bed, keys: &str) -> String {
    format!("[[attach]]\npins = \"{}\"\n{keys}\n", bed.dir().join("bpf/truepeer").display())
}

pub(crate) fn write(bed: &Bed, entries: &[&str]) -> Result<()> {
    bed.write("truepeer.toml", format!("{TABLES}{}", entries.concat()))?;
    Ok(())
}

pub(crate) fn serve(bed: &Bed, options: &[&str]) -> Result<Running> {
    Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).args(options).start(bed)
}

/// A file needs an entry; this one has nothing to do with attach, and needs no privileges.
const OTHER: &str = "[[proxy]]\nlisten = [\"127.0.0.1:8446\"]\nipv4 = \"127.0.0.1:80\"\nipv6 = \"127.0.0.1:80\"\nsend-proxy = \"v1\"\n";

pub(crate) fn start(bed: &Bed, entries: &[&str]) -> Result<Running> {
    command(bed, &[])?; // mounts the BPF file system
    write(bed, entries)?;
    let truepeer = serve(bed, &[])?;
    truepeer.wait_for_log("admin: listening on")?;
    Ok(truepeer)
}

pub(crate) fn reload(bed: &Bed) -> Result<String> {
    let reload = Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).start(bed)?;
    reload.wait_end()?;
    Ok(reload.log())
}

pub(crate) fn is_attached(bed: &Bed) -> Result<bool> {
    Ok(!attach(bed, &["status"])?.contains("not attached"))
}

/// A port that was taken away is listed until its last connection has ended.
fn checked_ports(bed: &Bed) -> Result<usize> {
    let status = status(bed)?;
    let ports = status["ports"].as_array().context("ports")?;
    Ok(ports.iter().filter(|port| port["draining"] == false).count())
}

/// Asks the backend whom it sees.
pub(crate) fn is_seen(client: &str) -> Result<bool> {
    Ok(client::ask(&mut session(&header(client)?)?, b"")?.trim() == client)
}

fn is_refused(client: &str) -> bool {
    !is_seen(client).unwrap_or(false)
}

fn an_entry_names_where_datagrams_have_their_header(bed: &Bed) -> Result<()> {
    let _backend = datagrams::Backend::who(&["127.0.0.1:53"])?;
    let with = |dialect| entry(bed, &format!("port = \"53/udp\"\nudp-dialect = \"{dialect}\""));
    let _truepeer = start(bed, &[&with("every")])?;
    let client = "203.0.113.7:5000";
    let header = datagrams::v2(client, "192.0.2.1:53")?;
    let is_seen = |sender: &UdpSocket, header: &[u8]| -> Result<()> {
        let answer = datagrams::ask(sender, &[header, b"?"])?;
        ensure!(answer == format!("{client} ?").as_bytes(), "{}", answer.escape_ascii());
        Ok(())
    };
    let sender = datagrams::sender_towards("127.0.0.1:53")?;
    is_seen(&sender, &header)?;
    for dialect in ["first", "standalone"] {
        write(bed, &[&with(dialect)])?;
        reload(bed)?;
        ensure!(attach(bed, &["status"])?.contains(&format!("attached, {dialect} to")), "{dialect}");
        let sender = datagrams::sender_towards("127.0.0.1:53")?;
        is_seen(&sender, &header)?;
        is_seen(&sender, b"")?;
    }
    Ok(())
}

/// A sender behind a new device of the test's network, whose end there has the address NET.2.
fn plug(device: &str, net: &str) -> Result<NetNs> {
    let (sender, here) = (NetNs::create()?, NetNs::current()?);
    let here = format!("/proc/{}/fd/{}", std::process::id(), here.as_fd().as_raw_fd());
    sender.run(|| {
        ip_here(&[
            &format!("link add far type veth peer name {device} netns {here}"),
            &format!("addr add {net}.1/24 dev far"),
            "link set far up",
        ])
    })??;
    ip_here(&[&format!("addr add {net}.2/24 dev {device}"), &format!("link set {device} up")])?;
    Ok(sender)
}

/// With the rules of the last reload, and not what another command has detached.
fn an_entry_follows_devices_and_addresses(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &["0.0.0.0:80"])?;
    let allowed = |prefixes| entry(bed, &format!("port = [\"80\"]\nallow = {prefixes}"));
    let truepeer = start(bed, &[&allowed("[\"10.1.0.0/24\"]")])?;
    let covers = |device: &str, times: usize| {
        bed.wait_for(&format!("{device} to be covered"), || truepeer.log().matches(device).count() >= times)
            .with_context(|| truepeer.log())
    };
    let seen = |sender: &NetNs, to: &str, client: &str| {
        let said = sender.run(|| client::ask(&mut client::connect(to)?, &header(client)?))??;
        anyhow::Ok(said.trim().to_owned())
    };
    let first = plug("plug0", "10.1.0")?;
    covers("plug0", 1)?;
    ensure!(seen(&first, "10.1.0.2:80", "203.0.113.1:1001")? == "203.0.113.1:1001");
    // This host's new address is nobody's claim.
    ip_here(&["addr add 10.1.0.77/24 dev plug0"])?;
    bed.wait_for("a claim of it to be refused", || seen(&first, "10.1.0.2:80", "10.1.0.77:1001").is_err())?;
    write(bed, &[&allowed("[\"10.2.0.0/24\"]")])?;
    reload(bed)?;
    let second = plug("plug1", "10.2.0")?;
    covers("plug1", 1)?;
    ensure!(seen(&second, "10.2.0.2:80", "203.0.113.1:1002")? == "203.0.113.1:1002");
    attach(bed, &["detach", "--now"])?;
    let _third = plug("plug2", "10.3.0")?;
    truepeer.wait_for_log("was detached by another command")?;
    ensure!(!is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn an_entry_is_attached_until_the_last_connection_after_the_stop(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    let truepeer = start(bed, &[&entry(bed, "port = [\"80\"]")])?;
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    ensure!(echo.log().contains("203.0.113.1:1001"), "{}", echo.log());
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_for_log("waiting for 1 open connections")?;
    is_answered(&mut open)?;
    ensure!(is_attached(bed)? && truepeer.is_alive());
    drop(open);
    ensure!(truepeer.wait_end()?.success(), "{}", truepeer.log());
    ensure!(!is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn a_reload_changes_lists_and_ports_and_open_connections_go_on(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    let _who = Behaviour::Who.start(bed, &["[::ffff:127.0.0.1]:81"])?;
    let truepeer = start(bed, &[&entry(bed, "port = [\"80\"]")])?;
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;

    write(bed, &[&entry(bed, "port = [\"80\", \"81\"]\ndeny-clients = [\"203.0.113.2\"]")])?;
    let said = reload(bed)?;
    ensure!(said.contains("has new rules"), "{said}");
    let mut second = client::connect("127.0.0.1:81")?;
    let seen = client::ask(&mut second, &header("203.0.113.3:1003")?)?;
    ensure!(seen.trim() == "203.0.113.3:1003", "{seen}");
    let mut refused = session(&header("203.0.113.2:1002")?)?;
    ensure!(is_answered(&mut refused).is_err(), "a refused client is served");
    is_answered(&mut open)?;

    let said = reload(bed)?;
    ensure!(said.trim() == "nothing has changed", "{said}");
    write(bed, &[&entry(bed, "port = [\"80\"]")])?;
    reload(bed)?;
    is_answered(&mut session(&header("203.0.113.2:1002")?)?)?;
    let line = header("203.0.113.4:1004")?;
    let seen = client::ask(&mut client::connect("127.0.0.1:81")?, &line)?;
    ensure!(seen.starts_with("127.0.0.1:"), "port 81 is still attached: {seen}");
    is_answered(&mut open)?;
    ensure!(truepeer.stop()?.success() && !is_attached(bed)?);
    Ok(())
}

fn an_entry_that_is_taken_out_leaves_and_can_come_back(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    let one = entry(bed, "port = [\"80\"]");
    let truepeer = start(bed, &[OTHER, &one])?;
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    write(bed, &[OTHER])?;
    let said = reload(bed)?;
    ensure!(said.contains("checks no new connections, and is detached with its last one"), "{said}");
    truepeer.wait_for_log("waiting for 1 open connections")?;
    let passed = header("203.0.113.2:1002")?;
    ensure!(client::ask(&mut session(&passed)?, b"")?.len() > 10, "the header passes to the server");
    write(bed, &[OTHER, &one])?;
    let said = reload(bed)?;
    ensure!(said.contains("was attached"), "{said}");
    ensure!(client::ask(&mut session(&header("203.0.113.3:1003")?)?, b"")?.is_empty());
    is_answered(&mut open)?;

    write(bed, &[OTHER])?;
    reload(bed)?;
    drop(open);
    truepeer.wait_for_log("attach: detached ")?;
    ensure!(!is_attached(bed)? && truepeer.is_alive());
    Ok(())
}

fn a_wrong_entry_leaves_everything_as_it_was(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let good = entry(bed, "port = [\"80\"]\ndeny-clients = [\"203.0.113.2\"]");
    let _truepeer = start(bed, &[&good])?;
    // Attached in the order of their pins: the first one has its new rules before the second one fails.
    let changed = entry(bed, "port = [\"80\", \"81\"]");
    let pins = bed.dir().join("bpf/wrong");
    let wrong = format!("[[attach]]\nport = [\"82\"]\ndev = [\"none0\"]\npins = \"{}\"\n", pins.display());
    write(bed, &[&changed, &wrong])?;
    let said = reload(bed)?;
    ensure!(said.contains("not reloaded") && said.contains("none0"), "{said}");
    ensure!(is_seen("203.0.113.1:1001")? && is_refused("203.0.113.2:1002"));
    bed.wait_for("one port", || checked_ports(bed).is_ok_and(|ports| ports == 1))?;
    Ok(())
}

/// The wrong entry comes behind the one that is wanted again.
fn an_entry_that_leaves_still_waits_after_a_reload_that_fails(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    let one = entry(bed, "port = [\"80\"]");
    let truepeer = start(bed, &[OTHER, &one])?;
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    write(bed, &[OTHER])?;
    reload(bed)?;
    truepeer.wait_for_log("waiting for 1 open connections")?;
    let pins = bed.dir().join("bpf/wrong");
    let wrong = format!("[[attach]]\nport = [\"82\"]\ndev = [\"none0\"]\npins = \"{}\"\n", pins.display());
    write(bed, &[OTHER, &one, &wrong])?;
    let said = reload(bed)?;
    ensure!(said.contains("not reloaded") && said.contains("none0"), "{said}");
    is_answered(&mut open)?;
    ensure!(is_attached(bed)? && checked_ports(bed)? == 0, "{}", truepeer.log());
    drop(open);
    truepeer.wait_for_log("attach: detached ")
}

/// Connections of a client each, one after the other. Every one of them must be seen as its own client.
struct Load {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    thread: JoinHandle<Result<()>>,
}

impl Load {
    fn start() -> Self {
        let (is_over, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (ends, counts) = (Arc::clone(&is_over), Arc::clone(&done));
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let number = counts.fetch_add(1, Ordering::Relaxed);
                let client = format!("203.0.113.{}:{}", number % 250 + 1, 1000 + number % 60_000);
                let seen =
                    client::ask(&mut session(&header(&client)?)?, b"").with_context(|| client.clone())?;
                ensure!(seen.trim() == client, "{client} was seen as {seen}");
            }
            Ok(())
        });
        Self { is_over, done, thread }
    }

    /// Waits for some more connections.
    fn goes_on(&self, bed: &Bed) -> Result<()> {
        let before = self.done.load(Ordering::Relaxed);
        let is_alive = || !self.thread.is_finished();
        bed.wait_for("more connections", || !is_alive() || self.done.load(Ordering::Relaxed) > before + 20)
    }

    fn end(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the load panicked"))?
    }
}

fn an_upgrade_keeps_the_attachment_and_every_client_is_true(bed: &Bed) -> Result<()> {
    let who = Behaviour::Who.start(bed, &[BACKEND])?;
    let mut running = start(bed, &[&entry(bed, "port = [\"80\"]")])?;
    let mut open = session(&header("198.51.100.1:1001")?)?;
    let load = Load::start();
    for _ in 0..3 {
        load.goes_on(bed)?;
        let new = serve(bed, &["--take-over"])?;
        new.wait_for_log("upgrade: serves in place of process")?;
        load.goes_on(bed)?;
        ensure!(running.wait_end()?.success(), "{}", running.log());
        running = new;
        load.goes_on(bed)?;
    }
    load.end()?;
    ensure!(client::ask(&mut open, b"")?.trim() == "198.51.100.1:1001", "{}", who.log());
    ensure!(running.stop()?.success() && !is_attached(bed)?, "{}", running.log());
    Ok(())
}

/// The new process attaches the first entry, and fails at the second.
fn an_upgrade_that_fails_keeps_the_attachment_and_every_client_is_true(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let good = entry(bed, "port = [\"80\"]");
    let old = start(bed, &[&good])?;
    let pins = bed.dir().join("bpf/wrong");
    let wrong = format!("[[attach]]\nport = [\"82\"]\ndev = [\"none0\"]\npins = \"{}\"\n", pins.display());
    let changed = entry(bed, "port = [\"80\", \"81\"]");
    write(bed, &[&changed, &wrong])?;
    let load = Load::start();
    for failures in 1..4 {
        load.goes_on(bed)?;
        let new = serve(bed, &["--take-over"])?;
        ensure!(!new.wait_end()?.success() && new.log().contains("none0"), "{}", new.log());
        old.wait_state("the end of the upgrade", || {
            old.log().matches("not upgraded, this process goes on").count() == failures
        })?;
        load.goes_on(bed)?;
    }
    load.end()?;
    bed.wait_for("one port", || checked_ports(bed).is_ok_and(|ports| ports == 1))?;
    ensure!(old.stop()?.success() && !is_attached(bed)?, "{}", old.log());
    Ok(())
}

/// The value of a line of /proc/PID/status.
fn of_status(pid: i32, name: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    Ok(line.with_context(|| format!("{name}: {status}"))?.to_owned())
}

/// The attach keeper of a process.
fn keeper(truepeer: &Running) -> Result<i32> {
    let children = truepeer.children()?;
    let found =
        children.iter().find(|pid| of_status(**pid, "Name").is_ok_and(|name| name == "truepeer-attach"));
    found.copied().with_context(|| format!("children: {children:?}"))
}

fn the_process_is_confined_and_its_keeper_attaches(bed: &Bed) -> Result<()> {
    // capabilities(7).
    const NET_ADMIN: u32 = 12;
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let truepeer = start(bed, &[OTHER, &entry(bed, "port = [\"80\"]")])?;
    truepeer.wait_for_log("attachments by the attach keeper")?;
    ensure!(!truepeer.log().contains("not confined"), "{}", truepeer.log());
    let held = u64::from_str_radix(&of_status(truepeer.pid(), "CapPrm")?, 16)?;
    for capability in [NET_ADMIN, SYS_ADMIN, PERFMON, BPF] {
        ensure!(held & 1 << capability == 0, "capability {capability} of {held:x}");
    }
    ensure!(of_status(truepeer.pid(), "Seccomp")? == "2" && of_status(truepeer.pid(), "NoNewPrivs")? == "1");
    ensure!(!of_status(truepeer.pid(), "Uid")?.starts_with("0\t"));
    ensure!(of_status(keeper(&truepeer)?, "Uid")?.starts_with("0\t"));
    ensure!(is_seen("203.0.113.1:1001")?);
    let shown = Program::new(TRUEPEER).args(["status", "--json", "-c", "truepeer.toml"]).run(bed)?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let place = &shown["attachments"][0];
    ensure!(place["attached"] == true && place["ports"][0]["port"] == 80, "{shown}");
    ensure!(truepeer.stop()?.success() && !is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn without_confinement_the_process_itself_attaches(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    command(bed, &[])?; // mounts the BPF file system
    let of = |keys: &str| format!("confine = \"off\"\n{TABLES}{}", entry(bed, keys));
    bed.write("truepeer.toml", of("port = [\"80\"]"))?;
    let truepeer = serve(bed, &[])?;
    truepeer.wait_for_log("admin: listening on")?;
    ensure!(truepeer.children()?.is_empty(), "{:?}", truepeer.children());
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    bed.write("truepeer.toml", of("port = [\"80\"]\ndeny-clients = [\"203.0.113.2\"]"))?;
    let said = reload(bed)?;
    ensure!(said.contains("has new rules"), "{said}");
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_for_log("waiting for 1 open connections")?;
    is_answered(&mut open)?;
    drop(open);
    ensure!(truepeer.wait_end()?.success() && !is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn a_first_entry_in_a_reload_needs_a_restart(bed: &Bed) -> Result<()> {
    let truepeer = start(bed, &[OTHER])?;
    write(bed, &[OTHER, &entry(bed, "port = [\"80\"]")])?;
    let said = reload(bed)?;
    ensure!(said.contains("[[attach]] needs privileges that truepeer gave up after its start"), "{said}");
    ensure!(truepeer.is_alive() && !is_attached(bed)?);
    Ok(())
}

fn a_start_that_fails_leaves_nothing_attached(bed: &Bed) -> Result<()> {
    command(bed, &[])?; // mounts the BPF file system
    let pins = bed.dir().join("bpf/wrong");
    let wrong = format!("[[attach]]\nport = [\"82\"]\ndev = [\"none0\"]\npins = \"{}\"\n", pins.display());
    write(bed, &[&entry(bed, "port = [\"80\"]"), &wrong])?;
    let truepeer = serve(bed, &[])?;
    ensure!(!truepeer.wait_end()?.success() && truepeer.log().contains("none0"), "{}", truepeer.log());
    ensure!(truepeer.log().contains("attached to lo"), "{}", truepeer.log());
    ensure!(!is_attached(bed)?);
    Ok(())
}

fn a_killed_process_leaves_what_is_attached_to_the_next_one(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let entries = [OTHER, &entry(bed, "port = [\"80\"]")];
    let truepeer = start(bed, &entries)?;
    let keeper = keeper(&truepeer)?;
    truepeer.signal(Signal::KILL)?;
    truepeer.wait_end()?;
    let is_alive = || of_status(keeper, "State").is_ok_and(|state| !state.starts_with('Z'));
    bed.wait_for("the keeper's end", || !is_alive())?;
    ensure!(is_attached(bed)? && is_seen("203.0.113.1:1001")?);
    let next = start(bed, &entries)?;
    ensure!(is_seen("203.0.113.2:1002")?);
    ensure!(next.stop()?.success() && !is_attached(bed)?, "{}", next.log());
    Ok(())
}

fn a_killed_keeper_is_told_of_and_clients_stay_true(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let truepeer = start(bed, &[OTHER, &entry(bed, "port = [\"80\"]")])?;
    let keeper = Pid::from_raw(keeper(&truepeer)?).context("a process id")?;
    kill_process(keeper, Signal::KILL)?;
    truepeer.wait_for_log(&format!("the attach keeper (process {keeper}) has ended by itself"))?;
    ensure!(is_seen("203.0.113.1:1001")?);
    let said = reload(bed)?;
    ensure!(said.contains("has ended: restart truepeer"), "{said}");
    ensure!(truepeer.stop()?.success() && truepeer.log().contains("not detached"), "{}", truepeer.log());
    ensure!(is_attached(bed)? && is_seen("203.0.113.2:1002")?);
    Ok(())
}

fn a_keeper_that_stands_still_holds_up_reloads_only(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let truepeer = start(bed, &[OTHER, &entry(bed, "port = [\"80\"]")])?;
    let keeper = Pid::from_raw(keeper(&truepeer)?).context("a process id")?;
    kill_process(keeper, Signal::STOP)?;
    let reload = Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).start(bed)?;
    ensure!(is_seen("203.0.113.1:1001")?);
    ensure!(reload.is_alive(), "{}", reload.log());
    kill_process(keeper, Signal::CONT)?;
    reload.wait_end()?;
    ensure!(reload.log().contains("nothing has changed"), "{}", reload.log());
    ensure!(truepeer.stop()?.success() && !is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn an_engines_client_is_started_without_blocked_signals(bed: &Bed) -> Result<()> {
    command(bed, &[])?; // mounts the BPF file system
    bed.write("docker", "#!/bin/sh\ngrep SigBlk /proc/self/status >mask\necho 0\n")?;
    fs::set_permissions(bed.dir().join("docker"), fs::Permissions::from_mode(0o755))?;
    write(bed, &[&entry(bed, "port = [\"80\"]\ncontainer = \"web\"\nengine = \"docker\"")])?;
    let path = format!("{}:{}", bed.dir().display(), env::var("PATH")?);
    let truepeer =
        Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).env("PATH", path).start(bed)?;
    ensure!(
        !truepeer.wait_end()?.success() && truepeer.log().contains("it is not running"),
        "{}",
        truepeer.log()
    );
    let mask = fs::read_to_string(bed.dir().join("mask"))?;
    ensure!(mask.trim() == "SigBlk:\t0000000000000000", "{mask}");
    Ok(())
}

fn the_keeper_has_the_log_level_of_the_last_reload(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let truepeer = start(bed, &[&entry(bed, "port = [\"80\"]")])?;
    let says = |client: &str, times: usize| -> Result<()> {
        let entry = entry(bed, &format!("port = [\"80\"]\ndeny-clients = [\"{client}\"]"));
        bed.write("truepeer.toml", format!("{}{entry}", TABLES.replace("info", "warn")))?;
        reload(bed)?;
        ensure!(is_refused(&format!("{client}:1001")), "not reloaded: {}", truepeer.log());
        ensure!(truepeer.log().matches("attach: attached to").count() == times, "{}", truepeer.log());
        Ok(())
    };
    says("203.0.113.2", 2)?;
    says("203.0.113.3", 2)
}

fn an_entry_that_was_taken_out_goes_on_after_the_stop(bed: &Bed) -> Result<()> {
    taken_out(bed, |truepeer| truepeer.signal(Signal::TERM))
}

fn an_entry_that_was_taken_out_goes_on_after_an_upgrade(bed: &Bed) -> Result<()> {
    taken_out(bed, |_| {
        let new = serve(bed, &["--take-over"])?;
        new.wait_for_log("upgrade: serves in place of process")?;
        ensure!(new.stop()?.success(), "{}", new.log());
        Ok(())
    })
}

/// Its connection is translated until it ends, although the process has no entry any more.
fn taken_out(bed: &Bed, ends: impl FnOnce(&Running) -> Result<()>) -> Result<()> {
    let _echo = echo(bed)?;
    let truepeer = start(bed, &[OTHER, &entry(bed, "port = [\"80\"]")])?;
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    write(bed, &[OTHER])?;
    reload(bed)?;
    ends(&truepeer)?;
    // How many there are is open: the connection by which the test found that it serves may not have ended
    // yet.
    truepeer.wait_for_log("sessions open may go on")?;
    is_answered(&mut open)?;
    ensure!(is_attached(bed)? && truepeer.is_alive(), "{}", truepeer.log());
    drop(open);
    ensure!(truepeer.wait_end()?.success() && !is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn a_keeper_that_stands_still_holds_up_the_end_for_20_s(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let entries = [OTHER, &entry(bed, "port = [\"80\"]")];
    let truepeer = start(bed, &entries)?;
    let keeper = Pid::from_raw(keeper(&truepeer)?).context("a process id")?;
    kill_process(keeper, Signal::STOP)?;
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_for_log("stopping: nothing new is taken")?;
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_end()?;
    ensure!(
        truepeer.log().contains("doesn't answer; truepeer attach detach --now does it"),
        "{}",
        truepeer.log()
    );
    let next = start(bed, &entries)?;
    // Orders of a process that has ended are not carried out.
    kill_process(keeper, Signal::CONT)?;
    bed.wait_for("the keeper's end", || {
        of_status(keeper.as_raw_nonzero().get(), "State").map_or(true, |state| state.starts_with('Z'))
    })?;
    ensure!(is_seen("203.0.113.2:1002")?);
    ensure!(next.stop()?.success() && !is_attached(bed)?, "{}", next.log());
    Ok(())
}
