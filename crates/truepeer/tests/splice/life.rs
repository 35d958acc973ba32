//! A session's life after it has left user space.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::{MountFlags, mount};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Truepeer, User, client, sockets, tests};

use crate::stand::{BACKEND, DOOR, SITE, Stand, TRUEPEER, echo, is_reset, open, open_at, proxy, spliced};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_session_leaves_user_space_and_its_bytes_are_counted,
        an_end_of_either_side_reaches_the_other,
        the_operator_ends_a_session_that_has_left,
        a_ban_ends_a_session_that_has_left,
        an_idle_session_that_has_left_is_ended,
        sessions_outlive_their_truepeer_and_the_next_one_serves,
        a_stop_waits_for_sessions_that_have_left_and_ends_them,
        by_default_a_session_that_lasts_leaves,
        with_off_no_session_leaves,
        sessions_with_a_header_for_the_backend_leave,
        sessions_with_a_mark_stay,
        a_reload_that_wants_splice_says_when_it_takes_effect,
        without_a_capability_sessions_are_relayed,
        each_of_two_truepeers_answers_for_its_own_sessions,
        truepeers_behind_each_other_deliver,
        where_others_have_all_shares_sessions_are_relayed,
        where_no_session_can_leave_only_the_operator_is_told,
        a_stop_leaves_nothing_in_the_kernel,
        kill_9_leaves_nothing_but_open_sessions,
        a_directory_that_another_user_made_holds_no_tables,
        another_user_can_hold_no_lock_of_the_tables,
    ]
}

fn a_session_leaves_user_space_and_its_bytes_are_counted(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut stream = open(0)?;
    let echoed = 5 + 150_000 + stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let (sender, listener) = (stream.local_addr()?, stream.peer_addr()?);
    let (client, backend) = ("203.0.113.7:5000".parse::<SocketAddr>()?, BACKEND.parse::<SocketAddr>()?);
    // The stage comes first.
    bed.wait_for("its sockets to be closed, and no others", || {
        let open: Vec<_> = sockets::all().iter().map(|socket| (socket.local, socket.remote)).collect();
        let has = |ends| open.contains(&ends);
        has((sender, listener))
            && has((backend, client))
            && !has((listener, sender))
            && !has((client, backend))
    })?;
    for _ in 0..50 {
        echo(&mut stream, &[7; 3000])?;
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    let line = "session client=203.0.113.7:5000";
    stand.truepeer.wait_for_log("close=\"finished\"")?;
    let log = stand.truepeer.log();
    let line = log.lines().find(|one| one.contains(line)).context("no line")?;
    ensure!(line.contains(&format!("bytes_up={echoed} bytes_down={echoed}")), "{line}");
    stand.backend.wait_for_log(&format!("203.0.113.7:5000 eof {echoed}"))
}

fn an_end_of_either_side_reaches_the_other(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    client::reset(stream)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    stand.truepeer.wait_for_log("close=\"reset_by_client\"")
}

fn the_operator_ends_a_session_that_has_left(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    stand.ask(bed, &["sessions", "--client", "203.0.113.0/24", "--kill"])?;
    is_reset(&mut stream)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    stand.truepeer.wait_for_log("close=\"ended_by_operator\"")
}

fn a_ban_ends_a_session_that_has_left(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let mut banned = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut banned))?;
    stand.ask(bed, &["ban", "203.0.113.7", "--for", "1h"])?;
    is_reset(&mut banned)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    stand.truepeer.wait_for_log("close=\"banned\"")
}

fn an_idle_session_that_has_left_is_ended(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &["--idle-timeout", "2s"])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    is_reset(&mut stream)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    stand.truepeer.wait_for_log("close=\"idle\"")
}

fn sessions_outlive_their_truepeer_and_the_next_one_serves(bed: &Bed) -> Result<()> {
    const COUNT: u16 = 100;
    let stand = Stand::make(bed, &[])?;
    let mut streams = (0..COUNT).map(open).collect::<Result<Vec<_>>>()?;
    stand.wait_spliced(bed, &mut streams)?;
    stand.truepeer.signal(Signal::KILL)?;
    stand.truepeer.wait_end()?;
    streams.iter_mut().try_for_each(|stream| echo(stream, b"nobody is there"))?;
    let admin = bed.dir().join("admin");
    let _ = std::fs::remove_file(&admin);
    let next = spliced(bed, &[]).start(bed)?;
    streams.iter_mut().try_for_each(|stream| echo(stream, b"another truepeer"))?;
    streams.push(open(COUNT)?);
    let stand = Stand { truepeer: next, backend: stand.backend, admin };
    stand.wait_spliced(bed, &mut streams)?;
    let mut new = streams.pop().context("none")?;
    echo(&mut new, b"a session of its own")?;
    for mut stream in streams {
        stream.shutdown(Shutdown::Write)?;
        ensure!(stream.read(&mut [0])? == 0, "no end");
    }
    echo(&mut new, b"goes on")
}

fn a_stop_waits_for_sessions_that_have_left_and_ends_them(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &["--drain-timeout", "3s"])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    stand.truepeer.signal(Signal::TERM)?;
    for _ in 0..10 {
        echo(&mut stream, b"still there")?;
        std::thread::sleep(Duration::from_millis(100));
    }
    is_reset(&mut stream)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    let status = stand.truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}

/// Takes away each capability that the doctor lists: `splice-bpf`, `splice-perfmon` and `splice-net`.
fn without_a_capability_sessions_are_relayed(bed: &Bed) -> Result<()> {
    const ALL: [&str; 4] = ["net_raw", "bpf", "perfmon", "net_admin"];
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    Program::new(TRUEPEER).args(["routes", "apply", "-4", BACKEND]).run(bed)?;
    for (number, missing) in (0..).zip([None, Some("bpf"), Some("perfmon"), Some("net_admin")]) {
        let held: Vec<_> = ALL.into_iter().filter(|one| Some(*one) != missing).collect();
        let truepeer = Truepeer::proxy(TRUEPEER).listen(DOOR).ipv4(BACKEND).args(&[
            "--routes",
            "manual",
            "--log-format",
            "text",
            "-v",
            "2",
            "--splice",
            "auto",
            "--splice-after",
            "0",
        ]);
        let with_these = |program: Program| program.as_user(User::ROOT).with_capabilities(&held);
        let truepeer = truepeer.with(with_these).start(bed)?;
        let mut stream = open(number)?;
        for _ in 0..50 {
            echo(&mut stream, &[3; 1000])?;
        }
        let log = truepeer.log();
        let is_loaded = log.contains("sessions may leave user space");
        let is_said = log.contains("DEBUG --splice: missing: CAP_");
        ensure!(is_loaded == missing.is_none() && is_said == missing.is_some(), "without {missing:?}: {log}");
        // If the kernel refuses the programs, there is no keeper for sessions that leave.
        let has_keeper = log.contains("TCP_REPAIR by the repair keeper");
        ensure!(has_keeper == missing.is_none(), "without {missing:?}: {log}");
        ensure!(!log.contains("cap_net_admin"), "without {missing:?}: {log}");
    }
    Ok(())
}

const SECOND: &str = "127.0.0.1:8444";

/// Another truepeer, of the same backend.
struct Second {
    truepeer: Running,
    admin: PathBuf,
}

impl Second {
    fn start(bed: &Bed, backend: &str, options: &[&str]) -> Result<Second> {
        let admin = bed.dir().join("second");
        let _ = std::fs::remove_file(&admin);
        let always = ["--routes", "auto", "--splice", "auto", "--splice-after", "0", "--drain-timeout", "0s"];
        let truepeer = Truepeer::proxy(TRUEPEER).listen(SECOND).ipv4(backend).args(&always).args(options);
        let truepeer = truepeer.args(&["--admin", &admin.display().to_string()]).start(bed)?;
        Ok(Second { truepeer, admin })
    }

    fn ask(&self, bed: &Bed, what: &str) -> Result<String> {
        Program::new(TRUEPEER).args([what, "--admin", &self.admin.display().to_string()]).run(bed)
    }

    /// Its only session has left.
    fn wait_spliced(&self, bed: &Bed, stream: &mut TcpStream) -> Result<()> {
        bed.wait_for("a session that has left", || {
            let is_served = echo(stream, b"bytes move").is_ok();
            is_served && self.ask(bed, "sessions").is_ok_and(|list| list.matches(" spliced ").count() == 1)
        })
        .with_context(|| self.ask(bed, "status").unwrap_or_default())
    }
}

fn each_of_two_truepeers_answers_for_its_own_sessions(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &["--drain-timeout", "0s"])?;
    let mut first = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut first))?;
    let second = Second::start(bed, BACKEND, &[])?;
    let mut stream = open_at(SECOND, 1)?;
    second.wait_spliced(bed, &mut stream)?;
    // Each knows the other's clients: their addresses are in use.
    let mut same = [open_at(SECOND, 0)?, open(1)?];
    same.iter_mut().try_for_each(|stream| echo(stream, b"by another port"))?;
    drop(same);
    stand.wait_spliced(bed, std::slice::from_mut(&mut first))?;
    second.truepeer.stop()?;
    is_reset(&mut stream)?;
    echo(&mut first, b"it has not stopped")?;
    // Killed, its next start has its sessions, and nobody else.
    let second = Second::start(bed, BACKEND, &[])?;
    let mut stream = open_at(SECOND, 2)?;
    second.wait_spliced(bed, &mut stream)?;
    second.truepeer.signal(Signal::KILL)?;
    second.truepeer.wait_end()?;
    std::thread::sleep(Duration::from_secs(2));
    let listed = stand.ask(bed, &["sessions"])?;
    ensure!(listed.matches(" spliced ").count() == 1, "{listed}");
    stand.truepeer.stop()?;
    is_reset(&mut first)?;
    echo(&mut stream, b"it was not the other's")?;
    ensure!(is_attached()?, "nothing is pinned");
    let second = Second::start(bed, BACKEND, &[])?;
    second.wait_spliced(bed, &mut stream)?;
    second.truepeer.stop()?;
    is_reset(&mut stream)?;
    ensure!(!is_attached()?, "{:?} stay", pinned()?);
    Ok(())
}

/// A connection between two of them is in the tables once at most: its packets are translated once.
fn truepeers_behind_each_other_deliver(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &["--allow", "loopback", "--allow", "203.0.113.7"])?;
    let second = Second::start(bed, DOOR, &["--send-proxy", "v2"])?;
    let mut streams = (0..4).map(|client| open_at(SECOND, client)).collect::<Result<Vec<_>>>()?;
    for _ in 0..60 {
        streams.iter_mut().try_for_each(|stream| echo(stream, &[5; 3000]))?;
        std::thread::sleep(Duration::from_millis(25));
    }
    let told = [stand.ask(bed, &["status"])?, second.ask(bed, "status")?];
    ensure!(told.iter().any(|status| status.contains(" (chained)\n")), "{told:?}");
    Ok(())
}

fn where_others_have_all_shares_sessions_are_relayed(bed: &Bed) -> Result<()> {
    let _stand = Stand::make(bed, &[])?;
    let place = only_entry(&only_entry(&Path::new(FILE_SYSTEM).join("truepeer-splice"))?)?;
    let mut locks = Vec::new();
    for share in std::fs::read_dir(place.join("shares"))? {
        let share = File::open(share?.path())?;
        // Err: the other truepeer has it.
        locks.extend(share.try_lock().is_ok().then_some(share));
    }
    ensure!(locks.len() == 31, "{} are free", locks.len());
    let second = Second::start(bed, BACKEND, &[])?;
    let mut stream = open_at(SECOND, 0)?;
    echo(&mut stream, &[7; 3000])?;
    is_told(bed, &second.admin, "(other_truepeer): other truepeers of this network namespace have")
}

fn only_entry(directory: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    ensure!(entries.len() == 1, "{entries:?}");
    Ok(entries[0].path())
}

/// `status` says that all sessions stay, and has counted one by this reason.
fn is_told(bed: &Bed, admin: &Path, reason: &str) -> Result<()> {
    let status = || Program::new(TRUEPEER).args(["status", "--admin", &admin.display().to_string()]).run(bed);
    let (label, _) = reason.split_once(')').context(reason.to_owned())?;
    let is_told = |line: &str| line.starts_with("all sessions stay in user space: ") && line.contains(reason);
    let is_counted = |line: &str| line.trim().starts_with("1  ") && line.ends_with(&format!("{label})"));
    let is_there = || status().is_ok_and(|said| said.lines().any(is_told) && said.lines().any(is_counted));
    bed.wait_for(reason, is_there).with_context(|| status().unwrap_or_default())
}

/// Without capabilities, and without a BPF file system.
fn where_no_session_can_leave_only_the_operator_is_told(bed: &Bed) -> Result<()> {
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let admin = bed.dir().join("admin");
    Program::new(TRUEPEER).args(["routes", "apply", "-4", BACKEND]).run(bed)?;
    if Path::new(FILE_SYSTEM).exists() {
        mount("none", FILE_SYSTEM, "tmpfs", MountFlags::empty(), None)?;
    }
    for (number, capabilities, reason) in [
        (0, &["net_raw"][..], "(no_privileges): missing: CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"),
        (
            1,
            &["net_raw", "bpf", "perfmon", "net_admin"],
            "(no_bpf_filesystem): /sys/fs/bpf/truepeer-splice is not",
        ),
    ] {
        let options = ["--splice", "auto", "--splice-after", "0", "--routes", "manual"];
        let truepeer = Truepeer::proxy(TRUEPEER).listen(DOOR).ipv4(BACKEND).args(&options);
        let truepeer = truepeer.args(&["--admin", &admin.display().to_string()]);
        let with_these = |program: Program| program.as_user(User::ROOT).with_capabilities(capabilities);
        let truepeer = truepeer.with(with_these).start(bed)?;
        let mut stream = open(number)?;
        echo(&mut stream, &[3; 3000])?;
        is_told(bed, &admin, reason)?;
        let log = truepeer.log();
        ensure!(!log.contains("splice") && !log.contains("user space"), "{log}");
        truepeer.stop()?;
    }
    Ok(())
}

const FILE_SYSTEM: &str = "/sys/fs/bpf";

/// What truepeer has pinned.
fn pinned() -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(Path::new(FILE_SYSTEM).join("truepeer-splice"))?;
    Ok(entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?)
}

/// A link ends with its pin.
fn is_attached() -> Result<bool> {
    Ok(!pinned()?.is_empty())
}

/// Confined or not. A session that is open then is reset.
fn a_stop_leaves_nothing_in_the_kernel(bed: &Bed) -> Result<()> {
    for options in [&[][..], &["--confine", "off"]] {
        let stand = Stand::make(bed, &[&["--drain-timeout", "0s"][..], options].concat())?;
        ensure!(is_attached()?, "nothing is pinned: {}", stand.truepeer.log());
        let mut stream = open(0)?;
        stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
        stand.truepeer.stop()?;
        is_reset(&mut stream)?;
        ensure!(!is_attached()?, "{:?} stay", pinned()?);
        let _ = std::fs::remove_file(&stand.admin);
    }
    Ok(())
}

/// The rules go along.
fn kill_9_leaves_nothing_but_open_sessions(bed: &Bed) -> Result<()> {
    let rules = || Program::new("ip").args(["rule"]).run(bed);
    let before = rules()?;
    let Stand { truepeer, backend, admin } = Stand::make(bed, &[])?;
    truepeer.signal(Signal::KILL)?;
    truepeer.wait_end()?;
    bed.wait_for("the programs to go", || is_attached().is_ok_and(|is| !is))?;
    bed.wait_for("the rules to go", || rules().is_ok_and(|now| now == before))?;
    let _ = std::fs::remove_file(&admin);
    let stand = Stand { truepeer: spliced(bed, &[]).start(bed)?, backend, admin };
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    stand.truepeer.signal(Signal::KILL)?;
    stand.truepeer.wait_end()?;
    for _ in 0..10 {
        echo(&mut stream, b"nobody is there")?;
        std::thread::sleep(Duration::from_millis(100));
    }
    ensure!(is_attached()?, "nothing is pinned");
    // The next one ends it, and nothing stays.
    let _ = std::fs::remove_file(&stand.admin);
    let next = spliced(bed, &["--drain-timeout", "0s"]).start(bed)?;
    let stand = Stand { truepeer: next, ..stand };
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    stand.truepeer.stop()?;
    is_reset(&mut stream)?;
    ensure!(!is_attached()?, "{:?} stay", pinned()?);
    Ok(())
}

/// A BPF file system that everybody may write to, as a plain mount gives.
fn a_directory_that_another_user_made_holds_no_tables(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    Program::new("mkdir").arg("/sys/fs/bpf/truepeer-splice").as_user(User::TESTER).run(bed)?;
    let truepeer = spliced(bed, &[]).start(bed)?;
    truepeer.wait_for_log("/sys/fs/bpf/truepeer-splice belongs to user 61000")?;
    truepeer.wait_for_log("sessions are relayed")?;
    echo(&mut open(0)?, b"relayed")?;
    ensure!(std::fs::read_dir("/sys/fs/bpf/truepeer-splice")?.next().is_none(), "something is there");
    Ok(())
}

/// One that every user may start.
const PYTHON: &str = "/usr/bin/python3";

/// Holds what it can open.
const HOLD: &str = r"
import fcntl, os, time
held = []
for path, _, _ in os.walk('/sys/fs/bpf'):
    try:
        directory = os.open(path, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(path)
    except OSError:
        pass
print('holds', held, flush=True)
time.sleep(1000)
";

fn another_user_can_hold_no_lock_of_the_tables(bed: &Bed) -> Result<()> {
    let Stand { truepeer, backend, admin } = Stand::make(bed, &[])?;
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_end()?;
    let holding = Program::new(PYTHON).args(["-c", HOLD]).as_user(User::TESTER).start(bed)?;
    holding.wait_for_log("holds ['/sys/fs/bpf']\n")?;
    let stand = Stand { truepeer: spliced(bed, &[]).start(bed)?, backend, admin };
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream)).map(drop)
}

/// Truepeer mounts a BPF file system where there is none.
fn by_default_a_session_that_lasts_leaves(bed: &Bed) -> Result<()> {
    const ALONE: [&str; 7] = [
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        "while umount /sys/fs/bpf; do :; done 2>/dev/null; exec \"$0\" \"$@\"",
    ];
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let truepeer = proxy(bed, &[]).with(|program| program.launched_by("unshare", &ALONE)).start(bed)?;
    let mut stream = open(0)?;
    bed.wait_for("the session to leave", || {
        let _ = echo(&mut stream, &[1; 2000]);
        truepeer.log().contains("has left user space")
    })?;
    ensure!(!Path::new(FILE_SYSTEM).join("truepeer-splice").exists(), "the file system was still there");
    echo(&mut stream, b"goes on")?;
    drop(stream);
    truepeer.wait_for_log("close=\"finished\"")
}

fn with_off_no_session_leaves(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let truepeer = proxy(bed, &["--splice", "off"]).start(bed)?;
    let mut stream = open(0)?;
    for _ in 0..100 {
        echo(&mut stream, &[1; 2000])?;
    }
    ensure!(!Path::new("/sys/fs/bpf/truepeer-splice").exists(), "programs are loaded");
    drop(stream);
    truepeer.wait_for_log("close=\"finished\"")
}

/// The kernel would route translated packets without the mark.
fn sessions_with_a_mark_stay(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, &["--mark", "7"])?;
    let mut stream = open(0)?;
    for _ in 0..100 {
        echo(&mut stream, &[1; 2000])?;
    }
    let list = stand.ask(bed, &["sessions"])?;
    ensure!(list.contains(" relaying "), "{list}");
    let status = stand.ask(bed, &["status"])?;
    ensure!(crate::wire::counts_one(&status, "mark"), "{status}");
    Ok(())
}

/// truepeer has written the backend's header before the session leaves. The backend echoes that as well.
fn sessions_with_a_header_for_the_backend_leave(bed: &Bed) -> Result<()> {
    const ADDRESSES: std::ops::Range<usize> = 16..28;
    let stand = Stand::make(bed, &["--send-proxy", "v2"])?;
    let header = client::v2("203.0.113.7:5000", SITE)?;
    let mut stream = client::connect(DOOR)?;
    stream.write_all(&header)?;
    let mut back = [0; 28];
    stream.read_exact(&mut back)?;
    ensure!(back[..12] == header[..12] && back[ADDRESSES] == header[ADDRESSES], "{back:?}");
    let echoed = stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    echo(&mut stream, &[7; 3000])?;
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    stand.backend.wait_for_log(&format!("eof {}", 28 + echoed + 3000))?;
    stand.truepeer.wait_for_log("close=\"finished\"")?;
    ensure!(stand.backend.log().contains("127.0.0.1:"), "{}", stand.backend.log());
    Ok(())
}

fn a_reload_that_wants_splice_says_when_it_takes_effect(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let config = |splice| {
        format!(
            "[[proxy]]\nlisten = [\"{DOOR}\"]\nipv4 = \"{BACKEND}\"\nsplice = \"{splice}\"\nsplice-after = \"0\"\n\
             allow = [\"loopback\"]\nroutes = \"auto\"\n"
        )
    };
    let file = bed.write("truepeer.toml", config("off"))?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", &file.display().to_string()]).start(bed)?;
    truepeer.wait_listening(DOOR)?;
    bed.write("truepeer.toml", config("auto"))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("loaded at the next start")?;
    let mut stream = open(0)?;
    echo(&mut stream, b"relayed")
}
