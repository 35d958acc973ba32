//! Whoever can connect to the admin socket and asks for an upgrade without being a truepeer.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use anyhow::ensure;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Program, Test, User, tests};

use crate::serve::{DNS, ask_by_udp, goes_on, session_at};
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, TRUEPEER};
use crate::upgrade::{start, upgrade, wait_for};

pub(crate) fn tests() -> Vec<Test> {
    let mut all =
        tests![a_peer_that_stalls_holds_nobody_up, senseless_messages_and_descriptors_leave_nothing_behind];
    all.push(Test::new("another_user_gets_no_sockets", another_user_gets_no_sockets).needs_several_users());
    all
}

const REQUEST: &[u8] =
    b"POST /upgrade HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover\r\n\r\n";

fn ask_for_upgrade(bed: &Bed) -> anyhow::Result<UnixStream> {
    let mut stream = UnixStream::connect(bed.dir().join("admin.sock"))?;
    stream.write_all(REQUEST)?;
    Ok(stream)
}

/// It has got all sockets, and says nothing more.
fn a_peer_that_stalls_holds_nobody_up(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let truepeer = start(bed)?;
    let mut before = session_at(DOOR_V4, CLIENT_V4)?;
    let descriptors = truepeer.descriptors()?;
    let mut stalling = ask_for_upgrade(bed)?;
    wait_for(&mut stalling, "Offer")?;
    // Half a message.
    stalling.write_all(b"\x07\0\0\0\"Rea")?;
    goes_on(&mut before)?;
    session_at(DOOR_V4, "203.0.113.8:5000")?;
    ask_by_udp("203.0.113.7:4000", b"question")?;
    let health = Program::new("curl").args(["-s", "--unix-socket", "admin.sock", "http://t/healthz"]);
    ensure!(health.run(bed)?.trim() == "serving");
    let reload = Program::new(TRUEPEER).args(["reload", "-c", "truepeer.toml"]).start(bed)?;
    ensure!(reload.wait_end()?.code() == Some(1), "{}", reload.log());
    // Another one doesn't get them meanwhile.
    let mut second = String::new();
    ask_for_upgrade(bed)?.read_to_string(&mut second)?;
    ensure!(!second.contains("Offer"), "{second}");
    drop(stalling);
    truepeer.wait_for_log("not upgraded, this process goes on: the new process has not started")?;
    // The flow that was opened has a socket.
    truepeer.wait_state("no descriptor to be left", || {
        truepeer.descriptors().is_ok_and(|now| now <= descriptors + 1)
    })?;
    let _new = upgrade(bed)?;
    goes_on(&mut before)
}

fn senseless_messages_and_descriptors_leave_nothing_behind(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let truepeer = start(bed)?;
    let mut before = session_at(DOOR_V4, CLIENT_V4)?;
    let descriptors = truepeer.descriptors()?;
    let file = std::fs::File::open("/dev/null")?;
    let messages: [&[u8]; 7] = [
        b"",
        b"\x07\0",
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0{}",
        b"\x09\0\0\0\"Sockets\"",
        b"\x07\0\0\0\"Ready\"\x02\0\0\0[]",
        b"\x2e\0\0\0{\"Serving\":{\"pid\":1,\"udp\":[],\"attached\":[]}}  ",
    ];
    for (round, message) in (0..21).zip(messages.iter().cycle()) {
        let mut stream = ask_for_upgrade(bed)?;
        wait_for(&mut stream, "Offer")?;
        let files = vec![file.as_fd(); round * 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ensure!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        // It may already have given up.
        let _ = sendmsg(&stream, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
        drop(stream);
        truepeer.wait_state("the end of the upgrade", || {
            truepeer.log().matches("not upgraded, this process goes on").count() > round
        })?;
        goes_on(&mut before)?;
    }
    truepeer.wait_state("no descriptor to be left", || {
        truepeer.descriptors().is_ok_and(|now| now <= descriptors)
    })?;
    session_at(DOOR_V4, "203.0.113.8:5000")?;
    let _new = upgrade(bed)?;
    goes_on(&mut before)
}

/// Even if the socket's mode lets everybody in.
fn another_user_gets_no_sockets(bed: &Bed) -> anyhow::Result<()> {
    const ASK: &str = "
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(20)
s.connect(sys.argv[1])
s.sendall(b'POST /upgrade HTTP/1.1\\r\\nHost: t\\r\\nConnection: Upgrade\\r\\nUpgrade: truepeer-handover\\r\\n\\r\\n')
said, sockets = b'', []
while True:
    part, more, _, _ = socket.recv_fds(s, 4096, 250)
    said, sockets = said + part, sockets + more
    if not part: break
print(len(sockets), said)
";
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let truepeer = start(bed)?;
    let socket = bed.dir().join("admin.sock");
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    let program = Program::new("/usr/bin/python3").args(["-c", ASK]).arg(&socket).as_user(User::TESTER);
    let said = program.run(bed)?;
    ensure!(said.starts_with("0 ") && said.contains("asked: expected root or user "), "{said}");
    truepeer.wait_for_log("not upgraded, this process goes on: user ")?;
    session_at(DOOR_V4, CLIENT_V4).map(drop)
}
