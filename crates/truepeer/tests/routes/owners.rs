//! Who creates the rules, who uses them, and when they are removed.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, sendmsg, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};
use truepeer_testbed::{Bed, Behaviour, Program, Test, Truepeer, User, ip_here, tests};

use crate::support::{CLIENT_6, TRUEPEER, delivers, delivers_both, proxy, routes, state, switch_value};

pub(crate) const BACKENDS: &str = "-4 127.0.0.1:80 -6 [::1]:80";

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_second_instance_is_not_cut_off_by_the_end_of_the_first,
        a_killed_instances_routes_are_adopted_or_swept_at_the_next_start,
        the_keeper_of_a_killed_instance_removes_its_rules,
        the_keeper_of_a_killed_instance_leaves_the_rules_of_others,
        a_killed_keeper_is_told_of_and_the_instance_serves_on,
        a_reload_changes_rules_by_the_keeper_and_its_table_is_fixed,
        a_killed_owner_is_not_counted,
        a_rule_is_removed_with_its_last_user_whatever_else_runs,
        each_instance_keeps_what_it_needs_and_nothing_more,
        a_changed_switch_is_restored_even_after_a_kill,
        a_switch_that_was_on_stays_on,
        foreign_rules_are_neither_duplicated_nor_removed,
        rules_of_apply_outlive_every_instance,
        remove_leaves_rules_in_use_to_the_last_owner,
        remove_by_force_says_who_puts_it_back,
        what_another_program_removes_is_put_back,
        two_instances_put_rules_back_once,
        a_squatter_on_the_lock_delays_a_start_by_seconds_only,
        a_squatter_on_the_lock_delays_many_entries_once,
        a_squatter_on_the_lock_does_not_delay_a_running_instance,
        manual_touches_nothing,
        a_header_upstream_needs_no_routes,
    ];
    all.push(
        Test::new("without_the_privilege_one_line_says_what_to_type", without_the_privilege)
            .needs_several_users(),
    );
    all.push(Test::new("a_keeper_refuses_what_truepeer_never_wants", a_keeper_refuses).needs_several_users());
    all.push(
        Test::new("a_confined_instance_uses_what_apply_made", a_confined_instance).needs_several_users(),
    );
    all.push(
        Test::new("other_users_can_hold_no_rule", other_users_can_hold_no_rule)
            .needs_several_users()
            .needs_program("/usr/bin/python3"),
    );
    all.push(
        Test::new("instances_of_one_user_count_each_other_without_raw_sockets", without_raw_sockets)
            .needs_several_users(),
    );
    all
}

fn ours(bed: &Bed) -> Result<usize> {
    Ok(state(bed)?.lines().filter(|line| line.contains("proto 123") || line.contains("proto 124")).count())
}

fn a_second_instance_is_not_cut_off_by_the_end_of_the_first(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let before = state(bed)?;
    let first = proxy(bed, 8443, BACKENDS)?;
    let made = ours(bed)?;
    let second = proxy(bed, 8444, BACKENDS)?;
    ensure!(ours(bed)? == made, "the second instance made them again");
    first.stop()?;
    delivers_both("127.0.0.1:8444")?;
    second.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn a_killed_instances_routes_are_adopted_or_swept_at_the_next_start(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let before = state(bed)?;
    // Without a keeper.
    kill(&proxy(bed, 8443, &format!("{BACKENDS} --table 200 --confine off"))?)?;
    kill(&proxy(bed, 8443, "-4 127.0.0.1:80 -6 10.5.5.2:80 --confine off")?)?;
    let left = state(bed)?;
    ensure!(!left.contains("200"), "the other table's were to be swept:\n{left}");
    ensure!(left.contains("10.5.5.2"), "a kill can't remove anything:\n{left}");
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    ensure!(!state(bed)?.contains("10.5.5.2"), "stale:\n{}", state(bed)?);
    delivers_both("127.0.0.1:8443")?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn the_keeper_of_a_killed_instance_removes_its_rules(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 10.9.0.1/32 dev lo"])?;
    let before = state(bed)?;
    for options in [BACKENDS, "-4 10.9.0.1:80 -6 10.5.5.2:80"] {
        let killed = proxy(bed, 8443, options)?;
        ensure!(state(bed)? != before, "no rules");
        let keeper = keeper_of(&killed)?;
        kill(&killed)?;
        bed.wait_for("the keeper's end", || !is_alive(keeper))?;
        ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
        ensure!(killed.log().contains("its keeper has removed them"), "{}", killed.log());
    }
    Ok(())
}

fn the_keeper_of_a_killed_instance_leaves_the_rules_of_others(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let before = state(bed)?;
    let killed = proxy(bed, 8443, "-4 127.0.0.1:80 -6 10.5.5.2:80")?;
    let other = proxy(bed, 8444, BACKENDS)?;
    let keeper = keeper_of(&killed)?;
    kill(&killed)?;
    bed.wait_for("the keeper's end", || !is_alive(keeper))?;
    ensure!(!state(bed)?.contains("10.5.5.2"), "nobody needs it:\n{}", state(bed)?);
    delivers_both("127.0.0.1:8444")?;
    other.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// Its rules stay, and are counted, until the next start finds them.
fn a_killed_keeper_is_told_of_and_the_instance_serves_on(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let before = state(bed)?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let keeper = keeper_of(&truepeer)?;
    let other = proxy(bed, 8444, BACKENDS)?;
    let running = state(bed)?;
    kill_process(Pid::from_raw(keeper).context("0")?, Signal::KILL)?;
    truepeer.wait_for_log(&format!("the keeper (process {keeper}) has ended by itself"))?;
    let is_reaped = || truepeer.children().is_ok_and(|children| !children.contains(&keeper));
    bed.wait_for("the keeper is reaped", is_reaped)?;
    other.stop()?;
    ensure!(state(bed)? == running, "the other has removed them:\n{}", state(bed)?);
    delivers_both("127.0.0.1:8443")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded: nothing has changed")?;
    ensure!(truepeer.stop()?.success(), "{}", truepeer.log());
    ensure!(truepeer.log().contains("left in place"), "{}", truepeer.log());
    ensure!(state(bed)? == running, "changed:\n{}", state(bed)?);
    proxy(bed, 8443, BACKENDS)?.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn a_reload_changes_rules_by_the_keeper_and_its_table_is_fixed(bed: &Bed) -> Result<()> {
    let config = |backend: &str, table: u32| {
        format!(
            "[[proxy]]\nlisten = [\"127.0.0.1:8443\"]\nipv4 = \"{backend}\"\nroutes = \"auto\"\ntable = {table}\nallow = [\"loopback\"]\n"
        )
    };
    let before = state(bed)?;
    let file = bed.write("truepeer.toml", config("127.0.0.1:80", 200))?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", &file.display().to_string()]).start(bed)?;
    truepeer.wait_listening("127.0.0.1:8443")?;
    bed.write("truepeer.toml", config("10.5.5.2:80", 200))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("backends' addresses")?;
    let running = state(bed)?;
    ensure!(running.contains("10.5.5.2") && running.contains("200"), "{running}\n{}", truepeer.log());
    bed.write("truepeer.toml", config("10.5.5.3:80", 201))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("table 201 is none of the tables of the start: restart truepeer")?;
    truepeer.wait_for_log("not reloaded, everything stays as it was")?;
    ensure!(state(bed)? == running, "changed:\n{}", state(bed)?);
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// A message of its process that asks for this rule or route.
pub(crate) fn asks_for(need: &str) -> String {
    format!("{{\"number\":4000000000,\"body\":{{\"add\":{{\"needs\":[{need}],\"sweeps\":false}}}}}}")
}

pub(crate) fn rule(from: &str, table: u32) -> String {
    format!(
        "{{\"rule\":{{\"family\":\"4\",\"from\":{from},\"sent_here\":false,\"transport\":\"tcp\",\"ports\":[80,80],\"table\":{table}}}}}"
    )
}

/// Sends messages by the socket of the running process, as an attacker would who has taken it over.
fn a_keeper_refuses(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let keeper = keeper_of(&truepeer)?;
    let running = state(bed)?;
    let line = line_of(&truepeer)?;
    for message in [
        asks_for(&rule("[\"192.0.2.0\",24]", 123)),
        asks_for(&rule("[\"0.0.0.0\",0]", 123)),
        asks_for(&rule("null", 123)),
        asks_for(&rule("[\"192.0.2.1\",32]", 254)),
        asks_for(&rule("[\"192.0.2.1\",33]", 123)),
        asks_for("{\"route\":{\"family\":\"4\",\"table\":254}}"),
        asks_for("{\"route\":{\"family\":\"4\",\"table\":123,\"source\":\"192.0.2.1\"}}"),
        asks_for("{\"switch\":3}"),
        "{\"number\":4000000000,\"body\":{\"share\":{\"address\":\"127.0.0.1:80\"}}}".to_owned(),
        "{\"number\":4000000000,\"body\":{\"grow\":{\"bytes\":-1}}}".to_owned(),
        "ip rule add table 1".to_owned(),
        "x".repeat(150_000),
        "\0".to_owned(),
    ] {
        rustix::net::send(&line, message.as_bytes(), SendFlags::NOSIGNAL)?;
    }
    // Buffers beyond the limit: for too many bytes, or for sockets that are not UDP's.
    let udp = OwnedFd::from(UdpSocket::bind("127.0.0.1:0")?);
    let others = [OwnedFd::from(TcpListener::bind("127.0.0.1:0")?), UnixDatagram::unbound()?.into()];
    let buffer = |socket: &OwnedFd| sockopt::socket_recv_buffer_size(socket);
    let small = [buffer(&udp)?, buffer(&others[0])?, buffer(&others[1])?];
    grow(&line, (8 << 20) + 1, &[udp.as_fd()])?;
    grow(&line, 4 << 20, &[others[0].as_fd(), others[1].as_fd(), line.as_fd()])?;
    // This one it could want: so it has answered the others.
    rustix::net::send(&line, asks_for(&rule("[\"192.0.2.1\",32]", 123)).as_bytes(), SendFlags::NOSIGNAL)?;
    bed.wait_for("a rule", || state(bed).is_ok_and(|now| now.contains("from 192.0.2.1 ")))?;
    ensure!([buffer(&udp)?, buffer(&others[0])?, buffer(&others[1])?] == small, "buffers have grown");
    grow(&line, 4 << 20, &[udp.as_fd()])?;
    bed.wait_for("a buffer of 4 MiB", || buffer(&udp) == Ok(8 << 20))?;
    let added = |line: &&str| !running.contains(line);
    let now = state(bed)?;
    ensure!(now.lines().filter(added).count() == 1, "{now}\ninstead of\n{running}");
    ensure!(is_alive(keeper) && keeper_of(&truepeer)? == keeper, "the keeper has ended: {}", truepeer.log());
    drop(line);
    ip_here(&["rule flush protocol 123"])?;
    truepeer.wait_for_log("another program had removed them")?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn grow(line: &OwnedFd, bytes: usize, sockets: &[BorrowedFd<'_>]) -> Result<()> {
    let message = format!("{{\"number\":0,\"body\":{{\"grow\":{{\"bytes\":{bytes}}}}}}}");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(sockets)));
    sendmsg(line, &[IoSlice::new(message.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A copy of its socket to the keeper.
pub(crate) fn line_of(truepeer: &truepeer_testbed::Running) -> Result<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(truepeer.pid()).context("0")?, PidfdFlags::empty())?;
    for entry in std::fs::read_dir(format!("/proc/{}/fd", truepeer.pid()))? {
        let number: i32 = entry?.file_name().to_string_lossy().parse()?;
        let copy = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        if sockopt::socket_type(&copy) == Ok(SocketType::SEQPACKET) {
            return Ok(copy);
        }
    }
    anyhow::bail!("it has no socket to a keeper")
}

pub(crate) fn keeper_of(truepeer: &truepeer_testbed::Running) -> Result<i32> {
    truepeer.helper("truepeer-keeper")
}

/// Nobody may have waited for the end of an orphan.
fn is_alive(process: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains("zombie"))
}

fn a_killed_owner_is_not_counted(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let killed = proxy(bed, 8443, BACKENDS)?;
    let other = proxy(bed, 8444, BACKENDS)?;
    kill(&killed)?;
    other.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// A truepeer that needs no rules doesn't affect those of others.
fn a_rule_is_removed_with_its_last_user_whatever_else_runs(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let other = proxy(bed, 8444, &format!("{BACKENDS} --send-proxy v2"))?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    other.stop().map(drop)
}

fn each_instance_keeps_what_it_needs_and_nothing_more(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let before = state(bed)?;
    let near = proxy(bed, 8443, BACKENDS)?;
    let far = proxy(bed, 8444, "-4 10.5.5.2:80 -6 [::1]:80")?;
    far.stop()?;
    ensure!(!state(bed)?.contains("10.5.5.2"), "nobody needs it:\n{}", state(bed)?);
    delivers_both("127.0.0.1:8443")?;
    let far = proxy(bed, 8444, "-4 10.5.5.2:80 -6 [::1]:80")?;
    near.stop()?;
    let left = state(bed)?;
    ensure!(!left.contains("from 127.0.0.0/8"), "nobody needs it:\n{left}");
    ensure!(left.contains("10.5.5.2"), "it was cut off:\n{left}");
    delivers("127.0.0.1:8444", CLIENT_6, "[2001:db8:1::1]:80")?;
    far.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// Binds every name that an owner could use, as any user can.
const SQUATTER: &str = r#"
import socket, time
held = []
for n in range(4):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind("\0truepeer/routes/owner/%d/0" % n)
    held.append(s)
for line in open("/proc/net/raw").read().splitlines()[1:]:
    ip = socket.inet_ntoa(bytes.fromhex(line.split()[1].split(":")[0])[::-1])
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((ip, 0))
    s.connect(("127.0.0.7", 9))
    held.append(s)
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, 253)
    except PermissionError:
        print("held", flush=True)
time.sleep(600)
"#;

fn other_users_can_hold_no_rule(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let squatter =
        Program::new("/usr/bin/python3").args(["-c", SQUATTER]).as_user(User::TESTER).start(bed)?;
    bed.wait_for("the squatter", || squatter.stdout().matches("held").count() >= 4)?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn without_raw_sockets(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let before = state(bed)?;
    let start = |port: u16| {
        let options: Vec<&str> = BACKENDS.split_whitespace().collect();
        Truepeer::proxy(TRUEPEER)
            .listen(format!("127.0.0.1:{port}"))
            .args(&options)
            .with(|program: Program| program.as_user(User::TESTER).with_capabilities(&["net_admin"]))
            .start(bed)
    };
    let (first, second) = (start(8443)?, start(8444)?);
    first.stop()?;
    delivers_both("127.0.0.1:8444")?;
    second.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn kill(truepeer: &truepeer_testbed::Running) -> Result<()> {
    truepeer.signal(Signal::KILL)?;
    truepeer.wait_end().map(drop)
}

fn a_changed_switch_is_restored_even_after_a_kill(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 10.9.0.1/32 dev lo"])?;
    let accepts = || Ok::<_, anyhow::Error>(switch_value("ipv4/tcp_fwmark_accept")?.trim() == "1");
    kill(&proxy(bed, 8443, "-4 10.9.0.1:80 -6 [::1]:80 --confine off")?)?;
    ensure!(accepts()?, "it was to be on");
    let next = proxy(bed, 8443, "-4 127.0.0.1:80 -6 [::1]:80")?;
    ensure!(!accepts()?, "the next start needs it no more");
    next.stop()?;
    kill(&proxy(bed, 8443, "-4 10.9.0.1:80 -6 [::1]:80 --confine off")?)?;
    routes(bed, "remove")?;
    ensure!(!accepts()?, "remove was to restore it");
    ensure!(ours(bed)? == 0, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn a_switch_that_was_on_stays_on(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 10.9.0.1/32 dev lo"])?;
    std::fs::write("/proc/sys/net/ipv4/tcp_fwmark_accept", "1")?;
    let before = state(bed)?;
    proxy(bed, 8443, "-4 10.9.0.1:80 -6 [::1]:80")?.stop()?;
    ensure!(state(bed)? == before, "something is different:\n{}", state(bed)?);
    Ok(())
}

fn foreign_rules_are_neither_duplicated_nor_removed(bed: &Bed) -> Result<()> {
    // go-mmproxy's README, literally
    ip_here(&["route add local 0.0.0.0/0 dev lo table 123"])?;
    ip_here(&["-6 route add local ::/0 dev lo table 123"])?;
    ip_here(&["rule add from 127.0.0.1/8 iif lo table 123"])?;
    ip_here(&["-6 rule add from ::1/128 iif lo table 123"])?;
    let before = state(bed)?;
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    ensure!(ours(bed)? == 0, "made again:\n{}", state(bed)?);
    delivers_both("127.0.0.1:8443")?;
    truepeer.stop()?;
    routes(bed, &format!("apply {BACKENDS}"))?;
    routes(bed, "remove")?;
    ensure!(state(bed)? == before, "changed:\n{}", state(bed)?);
    Ok(())
}

fn rules_of_apply_outlive_every_instance(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    routes(bed, &format!("apply {BACKENDS}"))?;
    let applied = state(bed)?;
    proxy(bed, 8443, BACKENDS)?.stop()?;
    ensure!(state(bed)? == applied, "changed:\n{}", state(bed)?);
    routes(bed, &format!("apply {BACKENDS}"))?;
    ensure!(state(bed)? == applied, "applying twice is not applying once:\n{}", state(bed)?);
    routes(bed, "remove")?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn remove_leaves_rules_in_use_to_the_last_owner(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 10.9.0.1/32 dev lo"])?;
    let before = state(bed)?;
    let backends = "-4 127.0.0.1:80 -4 10.9.0.1:80 -6 [::1]:80";
    routes(bed, &format!("apply {backends}"))?;
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let said = routes(bed, "remove")?;
    ensure!(said.contains(&truepeer.pid().to_string()), "it said {said:?}");
    delivers_both("127.0.0.1:8443")?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn remove_by_force_says_who_puts_it_back(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let running = state(bed)?;
    // Stopped, it can put nothing back.
    truepeer.signal(Signal::STOP)?;
    let said = routes(bed, "remove --force")?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    ensure!(said.contains(&format!("process [{}] puts back", truepeer.pid())), "{said}");
    truepeer.signal(Signal::CONT)?;
    bed.wait_for("the rules again", || state(bed).is_ok_and(|now| now == running))?;
    truepeer.stop()?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// systemd-networkd flushes rules that it does not know; a loopback interface that goes down takes its routes
/// along.
fn what_another_program_removes_is_put_back(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let made = ours(bed)?;
    let is_whole = || ours(bed).is_ok_and(|now| now == made);
    for (what, commands) in [
        ("the rules", &["rule flush protocol 123", "-6 rule flush protocol 123"][..]),
        ("the loopback interface", &["link set lo down", "link set lo up"]),
        ("the routes, which nothing announces", &["route flush table 123", "-6 route flush table 123"]),
    ] {
        truepeer.signal(Signal::STOP)?;
        ip_here(commands)?;
        ensure!(!is_whole(), "{what}: nothing was removed:\n{}", state(bed)?);
        truepeer.signal(Signal::CONT)?;
        bed.wait_for(what, is_whole)?;
        delivers_both("127.0.0.1:8443")?;
    }
    let warnings =
        truepeer.log().lines().filter(|line| line.contains("another program had removed them")).count();
    ensure!(warnings == 1, "{warnings} warnings in a minute: {}", truepeer.log());
    Ok(())
}

fn a_squatter_on_the_lock_delays_a_start_by_seconds_only(bed: &Bed) -> Result<()> {
    let lock = SocketAddr::from_abstract_name("truepeer/routes/lock")?;
    let _squatter = UnixDatagram::bind_addr(&lock)?;
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    ensure!(truepeer.log().contains("truepeer/routes/lock"), "it said nothing: {}", truepeer.log());
    delivers_both("127.0.0.1:8443")
}

/// A start that takes longer than systemd waits would never end.
fn a_squatter_on_the_lock_delays_many_entries_once(bed: &Bed) -> Result<()> {
    let lock = SocketAddr::from_abstract_name("truepeer/routes/lock")?;
    let _squatter = UnixDatagram::bind_addr(&lock)?;
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    let entry = |port: u16| {
        format!(
            "[[proxy]]\nlisten = [\"127.0.0.1:{port}\"]\ntable = {port}\n\
             ipv4 = \"127.0.0.1:80\"\nipv6 = \"[::1]:80\"\n"
        )
    };
    bed.write("truepeer.toml", (8443..8447).map(entry).collect::<String>())?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_listening("127.0.0.1:8446")?;
    delivers_both("127.0.0.1:8446")?;
    truepeer.signal(Signal::TERM)?;
    ensure!(truepeer.wait_end()?.success(), "{}", truepeer.log());
    let waits = truepeer.log().matches("truepeer/routes/lock").count();
    ensure!(waits == 1, "it waited {waits} times: {}", truepeer.log());
    ensure!(ours(bed)? == 0, "something is left:\n{}", state(bed)?);
    Ok(())
}

/// Both hear of it in the same moment.
fn two_instances_put_rules_back_once(bed: &Bed) -> Result<()> {
    let both = [proxy(bed, 8443, BACKENDS)?, proxy(bed, 8444, BACKENDS)?];
    let made = ours(bed)?;
    for _ in 0..5 {
        both.iter().try_for_each(|truepeer| truepeer.signal(Signal::STOP))?;
        ip_here(&["rule flush protocol 123", "-6 rule flush protocol 123"])?;
        ensure!(ours(bed)? < made, "nothing was removed:\n{}", state(bed)?);
        both.iter().try_for_each(|truepeer| truepeer.signal(Signal::CONT))?;
        bed.wait_for("the rules", || ours(bed).is_ok_and(|now| now >= made))?;
        // Longer than both need for their next look.
        thread::sleep(Duration::from_millis(1500));
        ensure!(ours(bed)? == made, "rules stand twice:\n{}", state(bed)?);
    }
    Ok(())
}

/// The thread that puts rules back answers signals, too.
fn a_squatter_on_the_lock_does_not_delay_a_running_instance(bed: &Bed) -> Result<()> {
    let truepeer = proxy(bed, 8443, BACKENDS)?;
    let made = ours(bed)?;
    let lock = SocketAddr::from_abstract_name("truepeer/routes/lock")?;
    let _squatter = UnixDatagram::bind_addr(&lock)?;
    truepeer.signal(Signal::STOP)?;
    ip_here(&["rule flush protocol 123"])?;
    ensure!(ours(bed)? < made, "nothing was removed:\n{}", state(bed)?);
    truepeer.signal(Signal::CONT)?;
    bed.wait_for("the rules", || ours(bed).is_ok_and(|now| now == made))?;
    truepeer.wait_for_log("another program had removed them")?;
    ensure!(!truepeer.log().contains("truepeer/routes/lock"), "it waited for the lock: {}", truepeer.log());
    Ok(())
}

fn manual_touches_nothing(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let truepeer = proxy(bed, 8443, &format!("{BACKENDS} --routes manual"))?;
    ensure!(state(bed)? == before, "changed:\n{}", state(bed)?);
    truepeer.stop().map(drop)
}

fn a_header_upstream_needs_no_routes(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let truepeer = proxy(bed, 8443, &format!("{BACKENDS} --send-proxy v2"))?;
    ensure!(state(bed)? == before, "changed:\n{}", state(bed)?);
    truepeer.stop().map(drop)
}

fn confined(options: &str) -> Truepeer {
    let options: Vec<&str> = options.split_whitespace().collect();
    Truepeer::proxy(TRUEPEER)
        .listen("127.0.0.1:8443")
        .args(&options)
        .with(|program: Program| program.as_user(User::TESTER).with_capabilities(&["net_raw"]))
}

fn without_the_privilege(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let truepeer = confined(BACKENDS).start(bed)?;
    let log = truepeer.log();
    let command = "truepeer routes apply -4 127.0.0.1:80 -6 [::1]:80";
    ensure!(log.matches(command).count() == 1, "it said {log}");
    ensure!(state(bed)? == before, "changed:\n{}", state(bed)?);
    truepeer.stop()?;
    let strict = confined(&format!("{BACKENDS} --routes auto")).start_unready(bed)?;
    ensure!(!strict.wait_end()?.success(), "--routes auto was to fail: {}", strict.log());
    Ok(())
}

/// As in a service unit: ExecStartPre creates the rules, the confined process uses them, ExecStopPost removes
/// them.
fn a_confined_instance(bed: &Bed) -> Result<()> {
    let before = state(bed)?;
    let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    routes(bed, &format!("apply {BACKENDS}"))?;
    let truepeer = confined(BACKENDS).start(bed)?;
    ensure!(!truepeer.log().contains("routes apply"), "nothing was missing: {}", truepeer.log());
    delivers_both("127.0.0.1:8443")?;
    truepeer.stop()?;
    routes(bed, "remove")?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}
