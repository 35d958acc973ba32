//! `--via auto` reaches programs of the family that lack the library: those started with an empty
//! environment, static ones, and system calls that bypass the C library.

use std::io::Write;
use std::time::Duration;

use anyhow::ensure;
use truepeer_testbed::client::{self, End};
use truepeer_testbed::{Bed, Program, Running, Test, User, tests};

use crate::library::{ASKED_BY_A_CHILD, CLIENT, LISTENER, SERVER, ask_late, header};
use crate::{PYTHON, python};

pub(crate) fn tests() -> Vec<Test> {
    let python = tests![
        an_empty_environment_is_served,
        a_sender_that_is_not_allowed_is_refused,
        a_ring_is_refused_beside_the_library,
        names_are_shared_with_programs_that_have_the_library,
        a_client_with_an_empty_environment_says_who_it_is,
        the_supervisor_ends_with_the_family,
        a_program_in_the_background_leaves_no_pipe_open,
    ];
    let c = tests![a_static_child_is_served, system_calls_that_bypass_the_library_are_served];
    let python = python.into_iter().map(|test| test.needs_program(PYTHON));
    let c = c.into_iter().map(|test| test.needs_program("gcc"));
    python.chain(c).map(Test::needs_several_users).collect()
}

/// `truepeer OPTIONS env -i python3 SCRIPT`
fn emptied(bed: &Bed, launch: &[&str], script: &str) -> anyhow::Result<Program> {
    let file = bed.write(&bed.fresh_name("script.py"), script)?;
    let words = ["-i", PYTHON, "-u"];
    let program = Program::new("/usr/bin/env").args(words).arg(file).as_user(User::TESTER);
    Ok(program.launched_by(env!("CARGO_BIN_EXE_truepeer"), launch))
}

/// A header that comes at once, and one in two parts.
fn is_served() -> anyhow::Result<()> {
    for _ in 0..3 {
        let mut stream = client::connect(LISTENER)?;
        stream.write_all(&header()?)?;
        let said = client::ask(&mut stream, b"x")?;
        ensure!(said == "203.0.113.7 5000", "{said:?}");
        let said = ask_late()?;
        ensure!(said == "203.0.113.7 5000", "late: {said:?}");
    }
    Ok(())
}

fn started(bed: &Bed, program: &Program) -> anyhow::Result<Running> {
    let running = program.start(bed)?;
    running.wait_listening(LISTENER)?;
    Ok(running)
}

fn an_empty_environment_is_served(bed: &Bed) -> anyhow::Result<()> {
    let running = started(bed, &emptied(bed, &["run", "--verbose", "--"], SERVER)?)?;
    is_served()?;
    running.wait_for_log("accepts without the library")
}

fn a_sender_that_is_not_allowed_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let _running = started(bed, &emptied(bed, &["run", "--allow", "192.0.2.1", "--"], SERVER)?)?;
    let mut stream = client::connect(LISTENER)?;
    stream.write_all(&header()?)?;
    ensure!(matches!(client::read_end(&mut stream)?, End::Reset | End::Eof));
    Ok(())
}

/// What is accepted through io_uring reaches neither the library nor the supervisor.
fn a_ring_is_refused_beside_the_library(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 8, ctypes.create_string_buffer(256)), ctypes.get_errno())
";
    let program = python(bed, script)?.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]);
    let said = program.run(bed)?;
    ensure!(said.lines().any(|line| line.trim() == "-1 38"), "{said:?}");
    Ok(())
}

/// In both directions: a program accepts, and another one asks for the client.
fn names_are_shared_with_programs_that_have_the_library(bed: &Bed) -> anyhow::Result<()> {
    let with = ASKED_BY_A_CHILD.replace("LAUNCH", "['env', '-i']");
    let running = python(bed, &with)?.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]);
    let running = started(bed, &running)?;
    is_served()?;
    running.stop()?;
    // The environment from before `env -i` is given back.
    let without =
        ASKED_BY_A_CHILD.replace("[*LAUNCH, ", "['env', *open(sys.argv[1]).read().split('\\0')[:-1], ");
    let file = bed.write("without.py", without)?;
    let environment = bed.dir().join("environment");
    let script = format!(
        "cat /proc/self/environ >{0}; exec env -i {PYTHON} -u {1} {0}",
        environment.display(),
        file.display()
    );
    std::fs::File::create(&environment)?;
    std::os::unix::fs::chown(&environment, Some(User::TESTER.uid), Some(User::TESTER.gid))?;
    let program = Program::new("/bin/sh").args(["-c", &script]).as_user(User::TESTER);
    let _running = started(bed, &program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]))?;
    is_served()
}

fn a_client_with_an_empty_environment_says_who_it_is(bed: &Bed) -> anyhow::Result<()> {
    let listener = crate::listen(bed, "127.0.0.1:9090")?;
    let script = "\
import socket
socket.create_connection(('127.0.0.1', 9090)).sendall(b'hello')
";
    let running = emptied(bed, &["connect", "--from", CLIENT, "--"], script)?.start(bed)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut bytes)?;
    ensure!(bytes == [client::v2(CLIENT, "127.0.0.1:9090")?, b"hello".to_vec()].concat(), "{bytes:?}");
    ensure!(running.wait_end()?.success());
    Ok(())
}

/// The supervisor beside this program.
fn supervisor_of(running: &Running) -> anyhow::Result<i32> {
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", running.pid()))?;
    let entry = environment.split('\0').find_map(|entry| entry.strip_prefix("TRUEPEER_SUPERVISOR="));
    Ok(entry.ok_or_else(|| anyhow::anyhow!("no supervisor: {environment:?}"))?.parse()?)
}

/// The program is the process that the test has started, and the supervisor is none of its children.
fn the_supervisor_ends_with_the_family(bed: &Bed) -> anyhow::Result<()> {
    let program = python(bed, SERVER)?.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]);
    let running = started(bed, &program)?;
    let comm = std::fs::read_to_string(format!("/proc/{}/comm", running.pid()))?;
    ensure!(comm.starts_with("python"), "{comm}");
    let children =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.pid())).unwrap_or_default();
    ensure!(children.is_empty(), "{children}");
    let supervisor = supervisor_of(&running)?;
    let lives = || {
        let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    ensure!(lives());
    running.stop()?;
    bed.wait_for("the supervisor's end", || !lives())
}

/// The program forks a daemon and ends. Whoever reads its output sees the end.
fn a_program_in_the_background_leaves_no_pipe_open(bed: &Bed) -> anyhow::Result<()> {
    let daemon = format!(
        "import os\nlistening = os.pipe()\n{}",
        SERVER.replace(
            "while True:\n    connection, peer",
            "if os.fork():\n    os._exit(0)\nos.setsid()\nnull = os.open('/dev/null', os.O_RDWR)\n\
             for number in range(3):\n    os.dup2(null, number)\nwhile True:\n    connection, peer"
        )
    );
    let file = bed.write("daemon.py", daemon)?;
    let truepeer = env!("CARGO_BIN_EXE_truepeer");
    // The shell waits until all writers of the pipe are gone.
    let script = format!("{truepeer} run -- env -i {PYTHON} {} 2>&1 | cat; echo ended", file.display());
    let shell = Program::new("/bin/sh").args(["-c", &script]).start(bed)?;
    shell.wait_for_log("ended")?;
    is_served()
}

const C: &str = r#"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(8080) }, peer;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) return 1;
    if (LISTEN(listener, 16) != 0) return 2;
    for (;;) {
        socklen_t length = sizeof peer;
        int connection = ACCEPT(listener, (struct sockaddr *)&peer, &length);
        if (connection < 0) return 3;
        char data[4096], text[64];
        while (recv(connection, data, sizeof data, 0) > 0) {}
        snprintf(text, sizeof text, "%s %d", inet_ntoa(peer.sin_addr), ntohs(peer.sin_port));
        send(connection, text, strlen(text), 0);
        close(connection);
    }
}
"#;

fn compiled(bed: &Bed, options: &[&str]) -> anyhow::Result<Program> {
    let program = bed.dir().join(bed.fresh_name("server"));
    let options = [&["-O1", "-o", program.to_str().unwrap_or_default()], options].concat();
    Program::new("gcc").args(options).arg(bed.write("server.c", C)?).run(bed)?;
    let script = format!("{}; exit $?", program.display());
    Ok(Program::new("/bin/sh")
        .args(["-c", &script])
        .launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]))
}

fn a_static_child_is_served(bed: &Bed) -> anyhow::Result<()> {
    let program =
        compiled(bed, &["-static", "-DLISTEN=listen", "-DACCEPT(f,a,l)=accept4(f,a,l,0)", "-D_GNU_SOURCE"])?;
    let _running = started(bed, &program)?;
    is_served()
}

fn system_calls_that_bypass_the_library_are_served(bed: &Bed) -> anyhow::Result<()> {
    let direct = ["-DLISTEN(f,n)=syscall(SYS_listen,f,n)", "-DACCEPT(f,a,l)=syscall(SYS_accept4,f,a,l,0)"];
    let _running = started(bed, &compiled(bed, &[&direct[..], &["-D_GNU_SOURCE"]].concat())?)?;
    is_served()
}
