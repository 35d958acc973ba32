//! The library alone: where it is written, and how it behaves in a program that doesn't know of it.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Context, ensure};
use truepeer_testbed::client::{self, End};
use truepeer_testbed::{Bed, Program, Running, Test, User, tests};

use crate::{PYTHON, python, truepeer};

pub(crate) const LISTENER: &str = "127.0.0.1:8080";
pub(crate) const CLIENT: &str = "203.0.113.7:5000";

/// A server that says whom accept() and getpeername() have shown.
pub(crate) const SERVER: &str = "\
import socket
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    assert connection.getpeername() == peer
    while connection.recv(4096):
        pass
    connection.sendall(b'%s %d' % (peer[0].encode(), peer[1]))
    connection.close()
";

/// A server that has a child ask for the client's name. `LAUNCH` is what starts the child, a list of words.
pub(crate) const ASKED_BY_A_CHILD: &str = "\
import os, socket, subprocess, sys
child = '''
import socket
connection = socket.socket(fileno=0)
while connection.recv(4096):
    pass
connection.sendall(b'%s %d' % (connection.getpeername()[0].encode(), connection.getpeername()[1]))
'''
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    subprocess.run([*LAUNCH, sys.executable, '-c', child], stdin=connection, close_fds=True, check=True)
    connection.close()
";

pub(crate) fn tests() -> Vec<Test> {
    let mut all: Vec<Test> = tests![
        a_program_that_closes_everything_is_still_served,
        a_forked_child_holds_no_connection_open,
        names_survive_the_execution_of_another_program,
        sockets_passed_to_another_process_keep_their_name,
        another_programs_listener_on_the_address_loses_nothing,
        many_start_at_once,
        another_users_program_inherits_no_descriptor,
        a_waiting_connection_leaves_the_low_numbers_to_the_program,
        a_session_that_outlives_its_listener_keeps_its_client,
    ]
    .into_iter()
    .map(|test| test.needs_program(PYTHON).needs_several_users())
    .collect();
    all.extend(tests![the_library_alone_is_run_without_options]);
    let old = Test::new("old_libraries_that_nobody_has_are_removed", old_libraries_are_removed);
    // Other tests have programs of the same user that it can't inspect.
    all.push(old.needs_program(PYTHON).needs_several_users().alone());
    all.push(
        Test::new("a_library_of_another_user_is_not_used", a_library_of_another_user_is_not_used)
            .needs_several_users(),
    );
    all.push(
        Test::new(
            "a_directory_that_belongs_to_another_user_is_not_used_by_root",
            a_directory_that_belongs_to_another_user_is_not_used_by_root,
        )
        .needs_several_users(),
    );
    all.push(
        Test::new(
            "names_taken_by_other_users_do_not_prevent_a_start",
            names_taken_by_other_users_do_not_prevent_a_start,
        )
        .needs_several_users(),
    );
    all
}

pub(crate) fn header() -> anyhow::Result<Vec<u8>> {
    client::v2(CLIENT, "192.0.2.1:443")
}

fn start(bed: &Bed, script: &str) -> anyhow::Result<Running> {
    let launch = ["run", "--via", "preload", "--header-timeout", "60s", "--"];
    let running = python(bed, script)?.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).start(bed)?;
    running.wait_listening(LISTENER)?;
    Ok(running)
}

fn is_served() -> anyhow::Result<()> {
    let said = ask_late()?;
    ensure!(said == "203.0.113.7 5000", "{said:?}");
    Ok(())
}

/// Sends a request in two parts, so that the waiter, the queue and the wake-up are needed.
pub(crate) fn ask_late() -> anyhow::Result<String> {
    ask_late_at(LISTENER)
}

pub(crate) fn ask_late_at(listener: &str) -> anyhow::Result<String> {
    let header = header()?;
    let mut stream = client::connect(listener)?;
    stream.write_all(&header[..20])?;
    truepeer_testbed::sockets::wait_until_sent(&stream)?;
    stream.write_all(&header[20..])?;
    client::ask(&mut stream, b"x")
}

/// As daemons do, before and after they listen, in all three ways.
fn a_program_that_closes_everything_is_still_served(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes, os, socket
libc = ctypes.CDLL(None)
os.closerange(3, 65536)
listener = socket.create_server(('127.0.0.1', 8080))
def close_others():
    kept = listener.fileno()
    for number in range(3, 1024):
        if number != kept:
            libc.close(number)
    libc.close_range(kept + 1, 0xFFFFFFFF, 0)
while True:
    close_others()
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(b'%s %d' % (peer[0].encode(), peer[1]))
    connection.close()
";
    let _running = start(bed, script)?;
    (0..5).try_for_each(|_| is_served())
}

/// A connection waits for its header when the program forks: the child lives on, but must not keep the
/// connection open.
fn a_forked_child_holds_no_connection_open(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import os, socket, time
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    if os.fork() == 0:
        connection.close()
        listener.close()
        time.sleep(1000)
    while connection.recv(4096):
        pass
    connection.sendall(b'%s %d' % (peer[0].encode(), peer[1]))
    connection.close()
";
    let _running = start(bed, script)?;
    let header = header()?;
    let mut waiting = client::connect(LISTENER)?;
    waiting.write_all(&header[..20])?;
    is_served()?; // the program has forked meanwhile, and the child keeps running
    waiting.write_all(&header[20..])?;
    ensure!(client::ask(&mut waiting, b"x")? == "203.0.113.7 5000");
    let mut wrong = client::connect(LISTENER)?;
    wrong.write_all(b"PROXY TC")?;
    is_served()?;
    wrong.write_all(b"nonsense")?;
    ensure!(matches!(client::read_end(&mut wrong)?, End::Reset | End::Eof));
    Ok(())
}

fn names_survive_the_execution_of_another_program(bed: &Bed) -> anyhow::Result<()> {
    let running = start(bed, &ASKED_BY_A_CHILD.replace("*LAUNCH, ", ""))?;
    is_served()?;
    ensure!(running.stderr().is_empty(), "{}", running.stderr());
    Ok(())
}

fn sockets_passed_to_another_process_keep_their_name(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import os, socket
near, far = socket.socketpair()
if os.fork() == 0:
    while True:
        _, fds, _, _ = socket.recv_fds(far, 1, 1)
        connection = socket.socket(fileno=fds[0])
        while connection.recv(4096):
            pass
        connection.sendall(b'%s %d' % (connection.getpeername()[0].encode(), connection.getpeername()[1]))
        connection.close()
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    socket.send_fds(near, [b'x'], [connection.fileno()])
    connection.close()
";
    let _running = start(bed, script)?;
    (0..3).try_for_each(|_| is_served())
}

/// A program without the library shares the port (SO_REUSEPORT): wake-ups may reach it.
fn another_programs_listener_on_the_address_loses_nothing(bed: &Bed) -> anyhow::Result<()> {
    let script = |answer: &str| {
        format!(
            "\
import socket
listener = socket.create_server(('127.0.0.1', 8080), reuse_port=True)
print('ready')
while True:
    connection, peer = listener.accept()
    try:
        while connection.recv(4096):
            pass
        connection.sendall({answer})
    except OSError:
        pass
    connection.close()
"
        )
    };
    let _ours = start(bed, &script("b'%s %d' % (peer[0].encode(), peer[1])"))?;
    let stranger = python(bed, &script("b'stranger'"))?.start(bed)?;
    stranger.wait_for_log("ready")?;
    let mut answers = Vec::new();
    for _ in 0..30 {
        answers.push(ask_late()?);
    }
    let ours = answers.iter().filter(|answer| *answer == "203.0.113.7 5000").count();
    let strangers = answers.iter().filter(|answer| *answer == "stranger").count();
    ensure!(ours > 0 && ours + strangers == answers.len(), "{answers:?}");
    Ok(())
}

/// Preloaded by hand, without settings.
fn the_library_alone_is_run_without_options(bed: &Bed) -> anyhow::Result<()> {
    let dir = bed.dir().join("lib");
    truepeer(&["run", "--unpack"]).arg(&dir).run(bed)?;
    let who = truepeer_testbed::Behaviour::Who
        .start_program(bed, &[LISTENER], |program| program.env("LD_PRELOAD", dir.join("libtruepeer.so")))?;
    let saw = client::ask(&mut client::connect(LISTENER)?, &header()?)?;
    ensure!(saw.trim() == CLIENT, "{saw:?}");
    client::read_end(&mut {
        let mut stream = client::connect(LISTENER)?;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        stream
    })?;
    who.wait_for_log("HTTP")
}

/// The first one writes the library, and nobody loads a partial one.
fn many_start_at_once(bed: &Bed) -> anyhow::Result<()> {
    let dir = bed.dir().join("runtime");
    std::fs::create_dir(&dir)?;
    std::os::unix::fs::chown(&dir, Some(User::TESTER.uid), Some(User::TESTER.gid))?;
    let program = |n: u32| {
        let program = Program::new("sh").arg("-c").arg(format!("echo started {n}")).as_user(User::TESTER);
        let launch = ["run", "--via", "preload", "--"];
        program.env("XDG_RUNTIME_DIR", &dir).launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch)
    };
    let all: Vec<Running> = (0..20).map(|n| program(n).start(bed)).collect::<anyhow::Result<_>>()?;
    for (n, running) in all.iter().enumerate() {
        ensure!(
            running.wait_end()?.success() && running.stdout() == format!("started {n}\n"),
            "{}",
            running.log()
        );
        ensure!(running.stderr().is_empty(), "{}", running.stderr());
    }
    let files = std::fs::read_dir(dir.join("truepeer"))?.count();
    ensure!(files == 1, "{files} files");
    Ok(())
}

/// Another user has created the directory's name in advance, with a file in it.
fn a_library_of_another_user_is_not_used(bed: &Bed) -> anyhow::Result<()> {
    let dir = bed.dir().join("runtime");
    let trap = dir.join("truepeer");
    std::fs::create_dir_all(&trap)?;
    std::fs::set_permissions(&trap, std::fs::Permissions::from_mode(0o777))?;
    let maps = Program::new("cat").arg("/proc/self/maps").as_user(User::TESTER);
    let launch = ["run", "--via", "preload", "--"];
    let said =
        maps.env("XDG_RUNTIME_DIR", &dir).launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).run(bed)?;
    let file = library_in(&said)?;
    ensure!(!file.starts_with(&trap.display().to_string()), "{file}");
    Ok(())
}

/// As after `sudo -E`, where root's own directory can't be used.
fn a_directory_that_belongs_to_another_user_is_not_used_by_root(bed: &Bed) -> anyhow::Result<()> {
    std::fs::create_dir_all("/run/truepeer")?;
    Program::new("mount").args(["-t", "tmpfs", "-o", "noexec", "none", "/run/truepeer"]).run(bed)?;
    let dir = bed.dir().join("runtime");
    std::fs::create_dir(&dir)?;
    std::os::unix::fs::chown(&dir, Some(User::TESTER.uid), Some(User::TESTER.gid))?;
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))?;
    let maps = Program::new("cat").arg("/proc/self/maps").env("XDG_RUNTIME_DIR", &dir);
    let launch = ["run", "--via", "preload", "--"];
    let file = library_in(&maps.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).run(bed)?)?;
    ensure!(!file.starts_with(&dir.display().to_string()), "its owner can replace {file}");
    Ok(())
}

/// Another user has created every directory that truepeer would create, and there is no XDG_RUNTIME_DIR.
fn names_taken_by_other_users_do_not_prevent_a_start(bed: &Bed) -> anyhow::Result<()> {
    const SHARED: [&str; 3] = ["/dev/shm", "/tmp", "/var/tmp"];
    let name = format!("truepeer-{}", User::TESTER.uid);
    // The mounts below hide a clone or a target directory in one of them.
    let truepeer = bed.write("truepeer", "")?;
    Program::new("mount").args(["--bind", env!("CARGO_BIN_EXE_truepeer")]).arg(&truepeer).run(bed)?;
    for shared in SHARED {
        Program::new("mount").args(["-t", "tmpfs", "-o", "mode=1777", "none", shared]).run(bed)?;
        let squatter = User::named("nobody")?;
        // A directory of theirs that is writable for all, and a likely name for the next attempt.
        for squatted in [name.clone(), format!("{name}-000000")] {
            let squatted = format!("{shared}/{squatted}");
            Program::new("mkdir").args(["-m", "777", &squatted]).as_user(squatter).run(bed)?;
        }
    }
    let launch = ["run", "--via", "preload", "--"];
    let start = || {
        let maps =
            Program::new("cat").arg("/proc/self/maps").as_user(User::TESTER).env("XDG_RUNTIME_DIR", "");
        maps.launched_by(&truepeer, &launch).run(bed)
    };
    let (first, second) = (library_in(&start()?)?, library_in(&start()?)?);
    ensure!(first == second, "{first} and {second}: each start would leave a directory");
    let dir = std::path::Path::new(&first).parent().context("a directory")?;
    let meta = std::fs::symlink_metadata(dir)?;
    ensure!(meta.is_dir() && meta.uid() == User::TESTER.uid && meta.mode() & 0o777 == 0o755, "{meta:?}");
    ensure!(!SHARED.iter().any(|shared| dir == std::path::Path::new(shared).join(&name)), "{first}");
    // If other users can replace its files, a directory is not used.
    for shared in SHARED {
        std::fs::remove_dir_all(dir).or_else(|error| if dir.exists() { Err(error) } else { Ok(()) })?;
        std::fs::set_permissions(shared, std::fs::Permissions::from_mode(0o777))?;
    }
    let refused = start().expect_err("a library in a directory that everybody may change").to_string();
    ensure!(refused.contains("XDG_RUNTIME_DIR") && refused.contains("sticky"), "{refused}");
    Ok(())
}

/// The library's path, from `/proc/PID/maps`.
fn library_in(maps: &str) -> anyhow::Result<String> {
    let file =
        maps.lines().find_map(|line| line.split_whitespace().find(|word| word.contains("libtruepeer")));
    file.map(str::to_owned).context("the library in memory")
}

/// As sshd does before it starts the user's shell: another user, all descriptors closed, a clean environment.
fn another_users_program_inherits_no_descriptor(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes, os, sys
libc = ctypes.CDLL(None)
def close_each():
    for number in range(3, 1024):
        libc.close(number)
for close in (lambda: libc.closefrom(3), lambda: libc.close_range(3, 0xFFFFFFFF, 0), close_each):
    print([os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd') if int(n) > 500])
    if os.fork() == 0:
        os.setgid(65534)
        os.setuid(65534)
        close()
        os.execve('/bin/sh', ['sh', '-c', 'ls -l /proc/$$/fd && echo listed'], {'PATH': '/usr/bin:/bin'})
    os.wait()
";
    let file = bed.write("login.py", script)?;
    let program = Program::new(PYTHON).arg("-u").arg(file);
    let launch = ["run", "--via", "preload", "--"];
    let said = program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).run(bed)?;
    let (ours, theirs): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| line.starts_with('['));
    ensure!(ours.len() == 3 && ours.iter().all(|line| line.contains("truepeer-names")), "{said}");
    ensure!(theirs.iter().filter(|line| **line == "listed").count() == 3, "{said}");
    let left = theirs.iter().find(|line| line.contains("truepeer") || line.contains("socket:"));
    ensure!(left.is_none(), "{said}");
    Ok(())
}

fn a_waiting_connection_leaves_the_low_numbers_to_the_program(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import os, socket, time
listener = socket.create_server(('127.0.0.1', 8080))
listener.setblocking(False)
def sockets():
    links = {}
    for n in os.listdir('/proc/self/fd'):
        try:
            links[int(n)] = os.readlink('/proc/self/fd/' + n)
        except OSError:
            pass
    return {n for n, link in links.items() if link.startswith('socket:')}
lowest = os.dup(0)
os.close(lowest)
before = sockets()
accepted = None
def accept():
    global accepted
    try:
        accepted = listener.accept()
    except BlockingIOError:
        pass
while not (waiting := sockets() - before):
    accept()
mine = os.memfd_create('mine')
for number in range(lowest, 64):
    if number != mine:
        os.dup2(mine, number)
print('waiting at', sorted(waiting))
while not accepted:
    accept()
print('accepted', accepted[1], {os.readlink('/proc/self/fd/%d' % n) for n in range(lowest, 64)})
";
    let running = start(bed, script)?;
    let header = header()?;
    let mut stream = client::connect(LISTENER)?;
    stream.write_all(&header[..20])?;
    running.wait_for_log("waiting at")?;
    stream.write_all(&header[20..])?;
    running.wait_for_log("accepted")?;
    let said = running.stdout();
    ensure!(said.contains("accepted ('203.0.113.7', 5000) {'/memfd:mine (deleted)'}"), "{said}");
    Ok(())
}

/// As a session of sshd, which is executed with all descriptors closed, while the service is restarted.
fn a_session_that_outlives_its_listener_keeps_its_client(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import os, socket, subprocess, sys
child = '''
import socket
connection = socket.socket(fileno=0)
while connection.recv(4096):
    pass
connection.sendall(b\"%s %d\" % (connection.getpeername()[0].encode(), connection.getpeername()[1]))
'''
listener = socket.create_server(('127.0.0.1', 8080))
connection, peer = listener.accept()
until_this_ends = 'while kill -0 %d; do sleep .01; done; exec \"$@\"' % os.getpid()
subprocess.Popen(['/bin/sh', '-c', until_this_ends, 'sh', sys.executable, '-c', child], stdin=connection, close_fds=True)
os._exit(0)
";
    let server = python(bed, script)?.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]);
    let running = server.start(bed)?;
    running.wait_listening(LISTENER)?;
    let mut stream = client::connect(LISTENER)?;
    stream.write_all(&header()?)?;
    running.wait_end()?;
    let said = client::ask(&mut stream, b"x")?;
    ensure!(said == "203.0.113.7 5000", "{said:?}");
    Ok(())
}

/// Libraries that are mapped, named in an environment, used today, or not truepeer's stay.
fn old_libraries_are_removed(bed: &Bed) -> anyhow::Result<()> {
    let runtime = bed.dir().join("runtime");
    let dir = runtime.join("truepeer");
    std::fs::create_dir_all(&dir)?;
    std::os::unix::fs::chown(&dir, Some(User::TESTER.uid), Some(User::TESTER.gid))?;
    let days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 86_400);
    let library = |name: &str| -> anyhow::Result<std::path::PathBuf> {
        let file = dir.join(name);
        std::fs::write(&file, "a library")?;
        std::fs::File::options().write(true).open(&file)?.set_modified(days_ago)?;
        Ok(file)
    };
    let free = library("libtruepeer-0.0.1-1.so")?;
    let mapped = library("libtruepeer-0.0.1-2.so")?;
    let named = library("libtruepeer-0.0.1-3.so")?;
    let fresh = library("libtruepeer-0.0.1-4.so")?;
    std::fs::write(&fresh, "used today")?;
    let others = library("another-file.so")?;
    let script = "\
import mmap, sys, time
file = open(sys.argv[1])
mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print('mapped')
time.sleep(1000)
";
    let mapping = python(bed, script)?.arg(&mapped).start(bed)?;
    mapping.wait_for_log("mapped")?;
    let naming = Program::new("sleep").arg("1000").env("LD_PRELOAD", &named).as_user(User::TESTER);
    let naming = naming.start(bed)?;
    naming.wait_for_log("cannot be preloaded")?;
    let launch = ["run", "--via", "preload", "--"];
    let program = Program::new("true").as_user(User::TESTER).env("XDG_RUNTIME_DIR", &runtime);
    let program = program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch);
    if std::fs::metadata("/proc/self/ns/pid")?.ino() != 0xEFFF_FFFC {
        // In a container that can't see all processes, nothing is removed.
        program.run(bed)?;
        ensure!(free.exists());
        return Ok(());
    }
    let is_removed = |files: &[&std::path::PathBuf]| -> anyhow::Result<bool> {
        program.run(bed)?;
        Ok(!files.iter().any(|file| file.exists()))
    };
    bed.wait_for("the old library to be removed", || is_removed(&[&free]).unwrap_or(false))?;
    for kept in [&mapped, &named, &fresh, &others] {
        ensure!(kept.exists(), "{}", kept.display());
    }
    drop((mapping, naming));
    bed.wait_for("both to be removed", || is_removed(&[&mapped, &named]).unwrap_or(false))?;
    ensure!(fresh.exists() && others.exists() && std::fs::read_dir(&dir)?.count() == 3);
    Ok(())
}
