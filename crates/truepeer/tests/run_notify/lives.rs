//! The life and the end of the program, of its children, and of the supervisor.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, Program, Test, User, client, tests};

use crate::kit::{CLIENT4, PYTHON, Talk, V4, header_of, python, start, supervisor_and_program, under, via};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        truepeer_ends_with_the_programs_status,
        a_failed_start_ends_as_in_a_shell,
        a_crash_of_the_program_is_passed_on,
        signals_reach_the_program,
        a_signal_to_all_processes_is_not_multiplied,
        a_signal_to_all_three_processes_comes_once,
        a_killed_supervisor_ends_the_program,
        a_program_may_become_another,
        a_program_may_go_to_the_background,
    ];
    let python = tests![
        a_blocking_accept_hears_signals,
        a_blocking_accept_may_be_stopped_and_continued,
        a_blocking_accept_in_vain_keeps_nobody_from_its_epoll,
    ];
    all.push(Test::new("a_thread_in_accept_or_connect_may_be_cancelled", cancelled).needs_program("gcc"));
    all.extend(python.into_iter().map(|test| test.needs_program(PYTHON)));
    all.push(Test::new(
        "unsupported_programs_are_refused_with_a_reason",
        unsupported_programs_are_refused_with_a_reason,
    ));
    all.into_iter().map(Test::needs_several_users).collect()
}

fn shell(script: &str) -> Program {
    under(Program::new("sh").args(["-c", script]).as_user(User::TESTER), &[])
}

/// Started by truepeer through a shell with these arguments.
fn by_shell(program: Program, script: &str) -> Program {
    let launch = ["run", "--via", via(), "--", "/bin/sh", "-c", script, "sh"];
    program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).as_user(User::TESTER)
}

fn truepeer_ends_with_the_programs_status(bed: &Bed) -> anyhow::Result<()> {
    for status in [0, 7, 255] {
        let ended = shell(&format!("exit {status}")).start(bed)?.wait_end()?;
        ensure!(ended.code() == Some(status), "{status}: {ended}");
    }
    Ok(())
}

fn a_failed_start_ends_as_in_a_shell(bed: &Bed) -> anyhow::Result<()> {
    let file = |name: &str, text: &str, mode: u32| -> anyhow::Result<std::path::PathBuf> {
        let file = bed.write(name, text)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))?;
        Ok(file)
    };
    let not_executable = file("not-executable", "#!/bin/sh\necho hello\n", 0o644)?;
    let without_interpreter = file("without-interpreter", "#!/no/such/interpreter\n", 0o755)?;
    let script = file("script", "#!/bin/sh\nexit 5\n", 0o755)?;
    for (command, status) in [
        ("no-such-program".as_ref(), 127),
        ("/no/such/program".as_ref(), 127),
        (not_executable.as_path(), 126),
        (bed.dir(), 126),
        (without_interpreter.as_path(), 126),
        (script.as_path(), 5),
    ] {
        for way in ["run", "connect"] {
            let launch = [way, "--via", via(), "--"];
            let program = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(launch).arg(command);
            let ended = program.as_user(User::TESTER).start(bed)?;
            let code = ended.wait_end()?.code();
            ensure!(code == Some(status), "{way} {}: {code:?}: {}", command.display(), ended.log());
        }
    }
    Ok(())
}

fn a_crash_of_the_program_is_passed_on(bed: &Bed) -> anyhow::Result<()> {
    for signal in [Signal::SEGV, Signal::KILL, Signal::ABORT] {
        let ended = shell(&format!("kill -{} $$", signal.as_raw())).start(bed)?.wait_end()?;
        ensure!(ended.signal() == Some(signal.as_raw()), "{signal:?}: {ended}");
    }
    Ok(())
}

fn signals_reach_the_program(bed: &Bed) -> anyhow::Result<()> {
    let script = "trap 'echo hup' HUP; trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo ready
        while :; do sleep 1000 & wait $!; done";
    let running = shell(script).start(bed)?;
    running.wait_for_log("ready")?;
    for (signal, said) in [(Signal::HUP, "hup"), (Signal::USR1, "usr1"), (Signal::TERM, "term")] {
        running.signal(signal)?;
        running.wait_for_log(said)?;
    }
    let ended = running.wait_end()?;
    ensure!(ended.code() == Some(3), "{ended}");
    Ok(())
}

/// As service managers do: the signal goes to every process, so the program already has it and gets it at
/// most once more.
fn a_signal_to_all_processes_is_not_multiplied(bed: &Bed) -> anyhow::Result<()> {
    let script = "trap 'echo usr1' USR1; trap 'echo usr2' USR2; echo ready
        while :; do sleep 1000 & wait $!; done";
    let running = shell(script).start(bed)?;
    running.wait_for_log("ready")?;
    let [supervisor, _] = supervisor_and_program(&running);
    let supervisor =
        rustix::process::Pid::from_raw(supervisor).ok_or_else(|| anyhow::anyhow!("no process"))?;
    rustix::process::kill_process(supervisor, Signal::USR1)?;
    // A later signal on the forwarded path: the first one would have arrived before it.
    running.signal(Signal::USR2)?;
    running.wait_for_log("usr2")?;
    ensure!(!running.log().contains("usr1"), "{}", running.log());
    Ok(())
}

/// As systemd does by default (KillMode=control-group).
fn a_signal_to_all_three_processes_comes_once(bed: &Bed) -> anyhow::Result<()> {
    let script = "trap 'echo hup' HUP; trap 'echo usr2' USR2; echo ready
        while :; do sleep 1000 & wait $!; done";
    let running = shell(script).start(bed)?;
    running.wait_for_log("ready")?;
    let [supervisor, program] = supervisor_and_program(&running);
    for pid in [program, supervisor, running.pid()] {
        let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| anyhow::anyhow!("no process"))?;
        rustix::process::kill_process(pid, Signal::HUP)?;
        // Two that come at the same time are one.
        running.wait_for_log("hup")?;
    }
    // A later signal on the forwarded path: another HUP would have arrived before it.
    running.signal(Signal::USR2)?;
    running.wait_for_log("usr2")?;
    ensure!(running.log().matches("hup").count() == 1, "{}", running.log());
    Ok(())
}

/// Its calls would never be answered, so everything must end, which a service manager notices. Whichever of
/// the two is killed, all processes end, including a server's workers.
fn a_killed_supervisor_ends_the_program(bed: &Bed) -> anyhow::Result<()> {
    for kill_guard in [true, false] {
        let who = start(bed, &by_shell(Behaviour::Who.program(&[V4])?, "\"$@\" & wait"), &[V4])?;
        let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
        ensure!(saw.to_string() == CLIENT4, "{saw}");
        let [supervisor, _] = supervisor_and_program(&who);
        let victim = if kill_guard { who.pid() } else { supervisor };
        let victim = rustix::process::Pid::from_raw(victim).ok_or_else(|| anyhow::anyhow!("no process"))?;
        rustix::process::kill_process(victim, Signal::KILL)?;
        let ended = who.wait_end()?;
        ensure!(ended.signal() == Some(Signal::KILL.as_raw()), "{ended}");
        bed.wait_for("the end of the listener", || client::connect(V4).is_err())?;
    }
    Ok(())
}

fn a_program_may_become_another(bed: &Bed) -> anyhow::Result<()> {
    let program = Behaviour::Who.program(&[V4])?;
    let who = start(bed, &by_shell(program, "exec \"$@\""), &[V4])?;
    let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
    ensure!(saw.to_string() == CLIENT4, "{saw}");
    ensure!(who.stop()?.signal() == Some(Signal::TERM.as_raw()));
    Ok(())
}

/// Its children are still served, and can be ended.
fn a_program_may_go_to_the_background(bed: &Bed) -> anyhow::Result<()> {
    let program = Behaviour::Who.program(&[V4])?;
    let who = start(bed, &by_shell(program, "\"$@\" & exit 0"), &[V4])?;
    let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
    ensure!(saw.to_string() == CLIENT4, "{saw}");
    ensure!(who.is_alive());
    let ended = who.stop()?;
    ensure!(ended.code() == Some(0), "the program itself had ended well: {ended}");
    Ok(())
}

/// Blocks in accept(), with a signal handler that interrupts it (Python sets no SA_RESTART and calls accept()
/// again itself).
const BLOCKING: &str = "\
import os, signal, socket
signal.signal(signal.SIGUSR1, lambda *_: print('handled'))
listener = socket.create_server(('127.0.0.1', 8080))
print('ready')
while True:
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(('%s %d\\n' % peer[:2]).encode())
    connection.close()
";

fn a_blocking_accept_hears_signals(bed: &Bed) -> anyhow::Result<()> {
    let running = start(bed, &python(bed, BLOCKING, &[])?, &[V4])?;
    running.wait_for_log("ready")?;
    for round in 1..4 {
        running.signal(Signal::USR1)?;
        running.wait_state("the handler's word", || running.stdout().matches("handled").count() == round)?;
        let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
        ensure!(saw.to_string() == CLIENT4, "{saw}");
    }
    running.signal(Signal::INT)?;
    let ended = running.wait_end()?;
    ensure!(running.log().contains("KeyboardInterrupt"), "{ended}: {}", running.log());
    Ok(())
}

/// By SIGSTOP, which can't be caught.
fn a_blocking_accept_may_be_stopped_and_continued(bed: &Bed) -> anyhow::Result<()> {
    let running = start(bed, &python(bed, BLOCKING, &[])?, &[V4])?;
    running.wait_for_log("ready")?;
    let [_, program] = supervisor_and_program(&running);
    let pid = rustix::process::Pid::from_raw(program).ok_or_else(|| anyhow::anyhow!("no process"))?;
    let state = |wanted: &str| {
        let status = std::fs::read_to_string(format!("/proc/{program}/status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && line.contains(wanted))
    };
    rustix::process::kill_process(pid, Signal::STOP)?;
    bed.wait_for("it to stop", || state("T (stopped)"))?;
    rustix::process::kill_process(pid, Signal::CONT)?;
    bed.wait_for("it to go on", || state("S (sleeping)") || state("D ("))?;
    let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
    ensure!(saw.to_string() == CLIENT4, "{saw}");
    Ok(())
}

/// As PostgreSQL 16 and later: a blocking listener in an epoll, with a handler (SA_RESTART) that sets a flag
/// only.
const IN_EPOLL: &str = "\
import select, signal, socket
is_stopped = False
def stop(*_):
    global is_stopped
    is_stopped = True
signal.signal(signal.SIGTERM, stop)
signal.siginterrupt(signal.SIGTERM, False)
listener = socket.create_server(('127.0.0.1', 8080))
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
sessions = {}
print('ready')
while not is_stopped:
    events = epoll.poll(.05)
    if not events:
        print('time-out')
    for number, _ in events:
        if number == listener.fileno():
            try:
                connection, peer = listener.accept()
            except ConnectionAbortedError:
                continue
            epoll.register(connection, select.EPOLLIN)
            sessions[connection.fileno()] = connection, peer
        else:
            connection, peer = sessions[number]
            if connection.recv(100):
                connection.sendall(b'%s %d\\n' % (peer[0].encode(), peer[1]))
            else:
                del sessions[number]
                connection.close()
print('ended')
";

/// After a connection that is refused it waits in accept(), though its epoll has other work.
fn a_blocking_accept_in_vain_keeps_nobody_from_its_epoll(bed: &Bed) -> anyhow::Result<()> {
    let running = start(bed, &python(bed, IN_EPOLL, &[])?, &[V4])?;
    running.wait_for_log("ready")?;
    let mut session = client::connect(V4)?;
    session.write_all(&header_of(CLIENT4)?)?;
    let mut is_served = || -> anyhow::Result<()> {
        let mut answer = vec![0; CLIENT4.len() + 1];
        session.write_all(b"?")?;
        session.read_exact(&mut answer).context("a session beside")?;
        ensure!(answer.ends_with(b"\n"), "{}", answer.escape_ascii());
        Ok(())
    };
    let refused = || -> anyhow::Result<()> {
        let mut stream = client::connect(V4)?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        client::read_end(&mut stream)?;
        Ok(())
    };
    is_served()?;
    refused()?;
    is_served()?;
    refused()?;
    let time_outs = || running.stdout().matches("time-out").count();
    let before = time_outs();
    running.wait_state("the epoll's time-out", || time_outs() > before)?;
    refused()?;
    running.signal(Signal::TERM)?;
    let ended = running.wait_end()?;
    ensure!(running.stdout().contains("ended"), "{ended}: {}", running.log());
    Ok(())
}

fn unsupported_programs_are_refused_with_a_reason(bed: &Bed) -> anyhow::Result<()> {
    let set_user_id = bed.dir().join("set-user-id");
    std::fs::copy("/bin/true", &set_user_id)?;
    std::fs::set_permissions(&set_user_id, std::fs::Permissions::from_mode(0o4755))?;
    let for_32_bits = bed.write("for-32-bits", b"\x7fELF\x01\x01\x01".repeat(20))?;
    std::fs::set_permissions(&for_32_bits, std::fs::Permissions::from_mode(0o755))?;
    for (program, said) in [
        (set_user_id.as_path(), "truepeer attach or truepeer proxy"),
        (&for_32_bits, "another kind of processor"),
    ] {
        let running = under(Program::new(program).as_user(User::TESTER), &[]).start(bed)?;
        let ended = running.wait_end()?;
        ensure!(ended.code().is_some_and(|code| code != 0), "{}: {ended}", program.display());
        ensure!(running.stderr().contains(said), "{}", running.stderr());
    }
    Ok(())
}

const CANCELS: &str = r#"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
static int listener;
static struct sockaddr_un full = { .sun_family = AF_UNIX, .sun_path = "\0full" };
static void clean_up(void *unused) { puts("cleaned up"); }
static void *accepting(void *unused) {
    pthread_cleanup_push(clean_up, NULL);
    for (;;) close(accept(listener, NULL, NULL));
    pthread_cleanup_pop(0);
    return NULL;
}
static void *connecting(void *unused) {
    pthread_cleanup_push(clean_up, NULL);
    for (;;) connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&full, sizeof full);
    pthread_cleanup_pop(0);
    return NULL;
}
static int cancelled(void *(*work)(void *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL)) return 0;
    usleep(200000);
    return !pthread_cancel(thread) && !pthread_join(thread, NULL);
}
int main(void) {
    struct sockaddr_in address = { .sin_family = AF_INET };
    int unix_listener = socket(AF_UNIX, SOCK_STREAM, 0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) return 1;
    if (bind(unix_listener, (struct sockaddr *)&full, sizeof full) || listen(unix_listener, 0)) return 2;
    if (!cancelled(accepting) || !cancelled(connecting)) return 3;
    return 0;
}
"#;

/// accept() and connect() are cancellation points (pthreads(7)).
fn cancelled(bed: &Bed) -> anyhow::Result<()> {
    let (source, program) = (bed.write("cancels.c", CANCELS)?, bed.dir().join("cancels"));
    Program::new("gcc").args(["-pthread", "-o"]).arg(&program).arg(source).run(bed)?;
    let said = under(Program::new(program).as_user(User::TESTER), &[]).run(bed)?;
    ensure!(said == "cleaned up\ncleaned up\n", "{said:?}");
    Ok(())
}
