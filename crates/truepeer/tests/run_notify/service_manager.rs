//! A service manager hears the program through the process that it has started (`Type=notify`,
//! NotifyAccess=main).

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use anyhow::{Context, ensure};
use rustix::net::sockopt::set_socket_passcred;
use truepeer_sys::datagram::receive_from_process;
use truepeer_testbed::{Bed, Program, Running, Test, User, tests};

use crate::kit::{CLIENT4, Talk, V4, header_of, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_static_program_tells_the_service_manager_that_it_is_ready,
        a_strangers_message_does_not_reach_the_service_manager,
    ];
    all.into_iter().map(|test| test.needs_program("go").needs_several_users()).collect()
}

/// It tells the service manager of each client. With an argument it is a child that says only this.
const SERVER: &str = r#"package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func say(text string, files ...*os.File) {
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	check(err)
	var rights []byte
	for _, file := range files {
		rights = append(rights, syscall.UnixRights(int(file.Fd()))...)
	}
	there := &syscall.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}
	check(syscall.Sendmsg(socket, []byte(text), rights, there, 0))
	check(syscall.Close(socket))
}

// Returns when the service manager has closed what it was passed (sd_notify_barrier).
func barrier() {
	r, w, err := os.Pipe()
	check(err)
	say("BARRIER=1", w)
	w.Close()
	io.ReadAll(r)
}

func main() {
	if len(os.Args) > 1 {
		say(os.Args[1])
		barrier()
		return
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:8080")
	check(err)
	null, err := os.Open("/dev/null")
	check(err)
	say("FDSTORE=1\nFDNAME=null", null)
	say(fmt.Sprintf("MAINPID=%d\nREADY=1\nSTATUS=ready", os.Getpid()))
	barrier()
	child := exec.Command("/proc/self/exe", "STATUS=a child")
	check(child.Run())
	fmt.Println("watchdog for this process:", os.Getenv("WATCHDOG_PID") == strconv.Itoa(os.Getpid()))
	fmt.Println("the end of what is said at the start")
	for {
		conn, err := listener.Accept()
		check(err)
		io.ReadAll(conn)
		say("STATUS=" + conn.RemoteAddr().String())
		fmt.Fprint(conn, conn.RemoteAddr())
		conn.Close()
	}
}
"#;

/// The other end of NOTIFY_SOCKET.
struct Manager(UnixDatagram);

impl Manager {
    fn new(bed: &Bed) -> anyhow::Result<Self> {
        let path = bed.dir().join("manager");
        let socket = UnixDatagram::bind(&path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        set_socket_passcred(&socket, true)?;
        Ok(Self(socket))
    }

    /// The next message, and how many descriptors it passes. It must come from the process that was started.
    fn hears(&self, bed: &Bed, from: &Running) -> anyhow::Result<(String, usize)> {
        let mut heard = None;
        bed.wait_for("a message to the service manager", || {
            heard = receive_from_process(self.0.as_fd(), 4096).ok();
            heard.is_some()
        })
        .with_context(|| from.log())?;
        let message = heard.context("a message")?;
        ensure!(message.sender == Some(from.pid()), "{message:?} does not come from {}", from.pid());
        Ok((String::from_utf8(message.bytes)?, message.descriptors.len()))
    }
}

/// As systemd starts it: WATCHDOG_PID is the process that becomes truepeer.
fn start(bed: &Bed) -> anyhow::Result<(Manager, Running)> {
    let manager = Manager::new(bed)?;
    let server = truepeer_testbed::go::build(bed, "server", SERVER)?;
    let truepeer = env!("CARGO_BIN_EXE_truepeer");
    let words = ["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh", truepeer, "run", "--via", via(), "--"];
    let program = Program::new(server).launched_by("/bin/sh", &words).as_user(User::TESTER);
    let running = program.env("NOTIFY_SOCKET", bed.dir().join("manager")).start(bed)?;
    let said = [
        ("FDSTORE=1\nFDNAME=null", 1),
        // The main process stays the one that was started.
        ("READY=1\nSTATUS=ready", 0),
        ("BARRIER=1", 1),
        ("STATUS=a child", 0),
        ("BARRIER=1", 1),
    ];
    for (text, descriptors) in said {
        let heard = manager.hears(bed, &running)?;
        ensure!(heard == (text.to_owned(), descriptors), "{heard:?} instead of {text:?}");
    }
    running.wait_for_log("the end of what is said at the start")?;
    Ok((manager, running))
}

fn is_told_of_a_client(bed: &Bed, manager: &Manager, running: &Running) -> anyhow::Result<()> {
    let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?])?;
    ensure!(saw.to_string() == CLIENT4, "{saw}");
    let (heard, _) = manager.hears(bed, running)?;
    ensure!(heard == format!("STATUS={CLIENT4}"), "{heard}");
    Ok(())
}

fn a_static_program_tells_the_service_manager_that_it_is_ready(bed: &Bed) -> anyhow::Result<()> {
    let (manager, running) = start(bed)?;
    ensure!(running.log().contains("watchdog for this process: true"), "{}", running.log());
    is_told_of_a_client(bed, &manager, &running)?;
    let socket = programs_socket(&running)?;
    ensure!(Path::new(&socket).exists(), "{socket}");
    running.stop()?;
    ensure!(!Path::new(&socket).exists(), "{socket} is left");
    Ok(())
}

fn a_strangers_message_does_not_reach_the_service_manager(bed: &Bed) -> anyhow::Result<()> {
    let (manager, running) = start(bed)?;
    let stranger = UnixDatagram::unbound()?;
    stranger.connect(programs_socket(&running)?)?;
    for message in ["STOPPING=1", "MAINPID=1", "x".repeat(5000).as_str(), ""] {
        stranger.send(message.as_bytes())?;
    }
    running.wait_for_log("is not passed on")?;
    // Messages are taken in turn: an earlier one would arrive first.
    is_told_of_a_client(bed, &manager, &running)
}

/// The value of NOTIFY_SOCKET that the program has got.
fn programs_socket(running: &Running) -> anyhow::Result<String> {
    let [_, program] = crate::kit::supervisor_and_program(running);
    let environment = std::fs::read_to_string(format!("/proc/{program}/environ"))?;
    let entry = environment.split('\0').find_map(|entry| entry.strip_prefix("NOTIFY_SOCKET="));
    Ok(entry.context("no NOTIFY_SOCKET")?.to_owned())
}
