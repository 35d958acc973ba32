//! Bans that are kept (`truepeer ban --keep`) reach a program that `truepeer run` has started, also one that
//! has become another user.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Test, client, tests};

use crate::kit::{CLIENT4, CLIENT6, PYTHON, Talk, V4, V6, header_of, start, via};

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
/// In another process, so that two accept.
const SERVER: &str = "\
import os, socket, threading
listener = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True)
os.fork()
os.setgid(65534)
os.setuid(65534)
def serve(connection, peer):
    connection.sendall(('%s %d\\n' % peer[:2]).encode())
    while connection.recv(65536):
        pass
    connection.close()
while True:
    threading.Thread(target=serve, args=listener.accept()).start()
";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![a_ban_that_is_kept_reaches_a_program_that_runs];
    all.into_iter().map(|test| test.needs_several_users().needs_program(PYTHON)).collect()
}

fn ask(client: &str) -> anyhow::Result<String> {
    let to = if client.starts_with('[') { V6 } else { V4 };
    Ok(Talk::Plain.ask(to, &[&header_of(client)?, Talk::Plain.question()])?.to_string())
}

/// A connection that the server has accepted and answered.
fn open(client: &str) -> anyhow::Result<TcpStream> {
    let mut stream = client::connect(if client.starts_with('[') { V6 } else { V4 })?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(&header_of(client)?)?;
    let mut answer = String::new();
    BufReader::with_capacity(1, &stream).read_line(&mut answer)?;
    ensure!(!answer.is_empty(), "{client}: closed");
    Ok(stream)
}

fn a_ban_that_is_kept_reaches_a_program_that_runs(bed: &Bed) -> anyhow::Result<()> {
    let lib = bed.dir().join("lib");
    std::fs::create_dir(&lib)?;
    let mount = format!("mount --bind {} /var/lib && exec \"$@\"", lib.display());
    let truepeer =
        |words: &[&str]| Program::new("unshare").args(["-m", "sh", "-c", &mount, "sh", TRUEPEER]).args(words);
    let script = bed.write("server.py", SERVER)?;
    let words = ["run", "--via", via(), "--", PYTHON, "-u"];
    let server = start(bed, &truepeer(&words).arg(script), &[V4, V6])?;
    for client in [CLIENT4, CLIENT6] {
        ensure!(ask(client)? == client, "{client}");
    }
    let (mut banned, mut other) = ([open(CLIENT4)?, open(CLIENT6)?], open("203.0.113.8:5000")?);
    // One that keeps connecting while it is banned.
    let is_banned = AtomicBool::new(false);
    let mut kept = thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let mut kept = Vec::new();
            while !is_banned.load(Ordering::Relaxed) {
                kept.extend(open(CLIENT4));
            }
            kept
        });
        let ban = truepeer(&["ban", "203.0.113.7", "2001:db8::/32", "--keep", "--for", "1h"]).run(bed);
        is_banned.store(true, Ordering::Relaxed);
        ban.map(|_| connecting.join().expect("it does not panic"))
    })?;
    ensure!(!kept.is_empty(), "it has not connected");
    for stream in banned.iter_mut().chain(&mut kept) {
        let ended = stream.read(&mut [0]);
        ensure!(ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{ended:?}");
    }
    other.shutdown(Shutdown::Write)?;
    ensure!(other.read(&mut [0])? == 0, "another client's connection ends when it wants");
    // Each of two processes takes some.
    for client in [CLIENT4, CLIENT6] {
        bed.wait_for("the ban", || (0..8).all(|_| ask(client).is_err()))?;
    }
    server.wait_for_log("banned")?;
    ensure!(ask("203.0.113.8:5000")? == "203.0.113.8:5000", "another client");
    let listed = truepeer(&["bans"]).run(bed)?;
    ensure!(listed.contains("203.0.113.7") && listed.contains("2001:db8::/32"), "{listed}");
    let said = truepeer(&["unban", "203.0.113.7"]).run(bed)?;
    ensure!(said == "203.0.113.7 is no longer banned\n", "{said}");
    bed.wait_for("the end of the ban", || (0..8).all(|_| ask(CLIENT4).is_ok_and(|seen| seen == CLIENT4)))?;
    ensure!(ask(CLIENT6).is_err(), "it is still banned");
    Ok(())
}
