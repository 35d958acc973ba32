//! Postfix and Dovecot, installed as Debian installs them, in the default mechanism. Both start their
//! processes with an environment of their own, change root and user, and accept on listeners that a master
//! process has opened.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, ensure};
use truepeer_testbed::client::{self, End};
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::{Bed, Program, Running, Test, skip, sockets, tests};

const SMTP: &str = "127.0.0.1:25";
const IMAP: &str = "127.0.0.1:143";
const CLIENT: &str = "203.0.113.7:5000";
const DESTINATION: &str = "192.0.2.1:25";
const CROWD: usize = 40;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        postfix_sees_the_client,
        postfix_is_not_reached_by_a_sender_that_is_not_allowed,
        dovecot_sees_the_client,
    ];
    all.into_iter().map(Test::needs_several_users).collect()
}

/// The server that `script` configures and executes under truepeer.
fn start(bed: &Bed, script: &str, options: &[&str], address: &str) -> anyhow::Result<Running> {
    if fs::metadata("/etc")?.uid() != 0 {
        return skip("needs root: in a user namespace the machine's files belong to nobody");
    }
    let dir = bed.dir().join("installed");
    fs::create_dir(&dir)?;
    let text = [include_str!("programs/installed.sh"), script].concat();
    let truepeer = [&[env!("CARGO_BIN_EXE_truepeer"), "run"], options, &["--"]].concat();
    let program = Program::new("unshare").args(["--mount", "sh"]).arg(bed.write("start.sh", text)?);
    let running = program.arg(&dir).args(truepeer).start(bed)?;
    running.wait_listening(address)?;
    Ok(running)
}

fn postfix(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    needs("usr/lib/postfix/sbin/smtpd")?;
    start(bed, include_str!("programs/postfix.sh"), options, SMTP)
}

fn needs(file: &str) -> anyhow::Result<()> {
    if fs::exists(format!("/run/testbed/servers/root/{file}"))? {
        return Ok(());
    }
    skip(format!("{file} is not unpacked (make servers)"))
}

/// Everything that the server says to these lines, after a header in these pieces.
fn talk(to: &str, pieces: &[&[u8]], lines: &[&str]) -> anyhow::Result<String> {
    let mut stream = client::connect(to)?;
    for (n, piece) in pieces.iter().enumerate() {
        if n > 0 {
            sockets::wait_until_sent(&stream)?;
        }
        stream.write_all(piece)?;
    }
    let mut said = hear(&mut stream)?;
    for line in lines {
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        said += &hear(&mut stream)?;
    }
    Ok(said)
}

/// What comes next, up to the end of a line.
fn hear(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\n") {
        let mut part = [0; 4096];
        match stream.read(&mut part).context("an answer")? {
            0 => break,
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn each_of_a_crowd_is_in_the_log(
    server: &Running,
    to: &str,
    lines: &[&str],
    entry: impl Fn(&str) -> String,
) -> anyhow::Result<()> {
    let named = |n: usize| format!("198.51.100.{}", n + 1);
    in_parallel(8, CROWD, |n| {
        let header = client::v2(format!("{}:5000", named(n)), DESTINATION)?;
        // Whole, or in two parts: then it waits in the supervisor, which wakes the server.
        let (first, second) = header.split_at(if n % 2 == 0 { header.len() } else { 20 });
        let pieces: Vec<&[u8]> = [first, second].into_iter().filter(|piece| !piece.is_empty()).collect();
        talk(to, &pieces, lines).with_context(|| named(n)).map(drop)
    })?;
    for n in 0..CROWD {
        server.wait_for_log(&entry(&named(n)))?;
    }
    Ok(())
}

fn postfix_sees_the_client(bed: &Bed) -> anyhow::Result<()> {
    let postfix = postfix(bed, &[])?;
    for header in [client::v1(CLIENT, DESTINATION)?, client::v2(CLIENT, DESTINATION)?] {
        let said = talk(SMTP, &[&header], &["EHLO client.example", "QUIT"])?;
        ensure!(said.starts_with("220 mx.example") && said.contains("221 "), "{said:?}");
    }
    postfix.wait_for_log("connect from unknown[203.0.113.7]")?;
    each_of_a_crowd_is_in_the_log(&postfix, SMTP, &["QUIT"], |ip| format!("disconnect from unknown[{ip}]"))?;
    let log = postfix.log();
    ensure!(!log.contains("127.0.0.1]") && !log.contains("PROXY"), "{log}");
    Ok(())
}

/// Without the library nobody would look at the sender.
fn postfix_is_not_reached_by_a_sender_that_is_not_allowed(bed: &Bed) -> anyhow::Result<()> {
    let postfix = postfix(bed, &["--allow", "192.0.2.1"])?;
    let mut stream = client::connect(SMTP)?;
    stream.write_all(&[&client::v2(CLIENT, DESTINATION)?[..], b"EHLO client.example\r\n"].concat())?;
    ensure!(matches!(client::read_end(&mut stream)?, End::Reset | End::Eof));
    postfix.wait_for_log("add --allow 127.0.0.1")?;
    ensure!(!postfix.log().contains("connect from"), "{}", postfix.log());
    Ok(())
}

fn dovecot_sees_the_client(bed: &Bed) -> anyhow::Result<()> {
    needs("usr/sbin/dovecot")?;
    let dovecot = start(bed, include_str!("programs/dovecot.sh"), &[], IMAP)?;
    let header = client::v2(CLIENT, "192.0.2.1:143")?;
    let mut stream = client::connect(IMAP)?;
    stream.write_all(&header)?;
    // Until the authentication process has started, it greets repeatedly.
    let mut said = String::new();
    while !said.contains("* OK [CAPABILITY") {
        said += &hear(&mut stream)?;
    }
    stream.write_all(b"a login tester secret\r\n")?;
    while !said.contains("a OK") {
        said += &hear(&mut stream)?;
        ensure!(!said.contains("a NO") && !said.contains("BYE"), "{said:?}");
    }
    dovecot.wait_for_log("Login: user=<tester>, method=PLAIN, rip=203.0.113.7,")?;
    each_of_a_crowd_is_in_the_log(&dovecot, IMAP, &["b logout"], |ip| format!("rip={ip},"))?;
    ensure!(!dovecot.log().contains("rip=127.0.0.1"), "{}", dovecot.log());
    Ok(())
}
