//! `detach --now` with open connections that need truepeer: they are cut off, and no wrong byte reaches the
//! server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Test, client, sockets, tests};

use crate::kit::{LISTENER, attach, command, counter, header, longer_header, open, session, start, status};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        translated_connections_are_cut_off_and_not_corrupted,
        connections_without_their_whole_header_are_cut_off,
        bytes_on_their_way_are_neither_lost_nor_doubled_in_between,
        connections_that_their_server_has_closed_delay_nothing,
    ];
    all.push(
        Test::new(
            "connections_that_can_not_be_cut_off_are_still_served",
            connections_that_can_not_be_cut_off_are_still_served,
        )
        .needs_program("python3"),
    );
    all.into_iter().map(|test| test.of_group("cut")).collect()
}

/// The bytes that a server reads until a connection's end, and whether the end was a FIN, which would make
/// them look complete.
fn read_all(stream: &mut TcpStream) -> Result<(Vec<u8>, bool)> {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60)))?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok((bytes, true)),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) =>
            {
                return Ok((bytes, false));
            }
            Err(error) => return Err(error).context("the server's end"),
        }
    }
}

/// Whether a sender that continues to write gets an error. The kernel reports it once, to the first call.
fn is_reset(sender: &mut TcpStream, bytes: &[u8]) -> Result<bool> {
    match sender.write_all(bytes) {
        Ok(()) => Ok(client::read_end(sender)? == client::End::Reset),
        Err(error) => Ok(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)),
    }
}

/// The header's length was guessed too short, and too long: the numbers are shifted in either direction.
fn translated_connections_are_cut_off_and_not_corrupted(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    let sent = Pattern::bytes(3000);
    for headers in [[header, longer_header], [longer_header, header]] {
        start(bed, &[])?;
        // The sender's last header, from which the length of the next is guessed.
        drop(client::ask(&mut answered(&listener, &headers[0]("203.0.113.1:1001")?)?, b"")?);
        let mut sender = session(&headers[1]("203.0.113.1:1002")?)?;
        let (mut server, seen) = listener.accept()?;
        ensure!(seen.to_string() == "203.0.113.1:1002" && open(bed, "translated")? == 1, "{seen}");
        sender.write_all(&sent[..1000])?;
        sockets::wait_until_sent(&sender)?;
        let mut first = [0; 500];
        server.read_exact(&mut first)?;
        attach(bed, &["detach", "--now"])?;
        ensure!(is_reset(&mut sender, &sent[1000..])?, "the sender was not told");
        let (rest, is_whole) = read_all(&mut server)?;
        let read = [first.as_slice(), &rest].concat();
        ensure!(!is_whole, "the server was told of a regular end after {} bytes", read.len());
        ensure!(sent.starts_with(&read), "wrong bytes among the server's {}", read.len());
    }
    Ok(())
}

/// A sender whose end arrives at once and has been answered.
fn answered(listener: &TcpListener, header: &[u8]) -> Result<TcpStream> {
    let sender = session(header)?;
    drop(listener.accept()?);
    Ok(sender)
}

/// Their SYN was shifted by a guess, and nobody will take the rest of the header.
fn connections_without_their_whole_header_are_cut_off(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    for sent in [0, 20] {
        start(bed, &[])?;
        let header = longer_header("203.0.113.1:1001")?;
        let mut sender = session(&header[..sent])?;
        sockets::wait_until_sent(&sender)?;
        ensure!(open(bed, "awaiting_header")? == 1);
        attach(bed, &["detach", "--now"])?;
        ensure!(is_reset(&mut sender, &[&header[sent..], b"data"].concat())?);
        listener.set_nonblocking(true)?;
        ensure!(listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    }
    Ok(())
}

/// Many at once, in the middle of their bytes. Those that need no translation continue to their end.
fn bytes_on_their_way_are_neither_lost_nor_doubled_in_between(bed: &Bed) -> Result<()> {
    const LEN: usize = 8_000_000;
    const COUNT: u16 = 8;
    let listener = TcpListener::bind(LISTENER)?;
    let sent = Pattern::bytes(LEN);
    start(bed, &[])?;
    let mut pairs = Vec::new();
    // Guessed correctly and incorrectly in turn: the length changes every second time.
    for n in 0..COUNT {
        let kind = if n % 4 < 2 { header } else { longer_header };
        let sender = session(&kind(&format!("203.0.113.1:{}", 1000 + n))?)?;
        pairs.push((sender, listener.accept()?.0));
    }
    let (translated, untouched) = (open(bed, "translated")?, open(bed, "untouched")?);
    ensure!(translated > 0 && untouched > 0 && translated + untouched == u64::from(COUNT));
    let outcomes = std::thread::scope(|scope| -> Result<Vec<(Vec<u8>, bool)>> {
        let mut servers = Vec::new();
        for (mut sender, mut server) in pairs {
            let sent = &sent;
            scope.spawn(move || {
                let _ = sender.write_all(sent); // the server's end is what counts
                let _ = sender.shutdown(std::net::Shutdown::Write);
                let _ = client::read_end(&mut sender);
            });
            let mut first = vec![0; 100_000];
            server.read_exact(&mut first)?;
            servers.push((first, server));
        }
        // Nobody reads now, so buffers are full of bytes in flight.
        attach(bed, &["detach", "--now"])?;
        let read_rest = |(first, mut server): (Vec<u8>, TcpStream)| -> Result<_> {
            let (rest, is_whole) = read_all(&mut server)?;
            Ok(([first, rest].concat(), is_whole))
        };
        servers.into_iter().map(read_rest).collect()
    })?;
    for (read, is_whole) in &outcomes {
        ensure!(sent.starts_with(read), "wrong bytes among {}", read.len());
        ensure!(!is_whole || read.len() == LEN, "a regular end after {} bytes of {LEN}", read.len());
    }
    let whole = outcomes.iter().filter(|(_, is_whole)| *is_whole).count() as u64;
    ensure!(whole == untouched, "{whole} whole, {untouched} needed no translation");
    Ok(())
}

/// The sender has not ended its direction (FIN_WAIT2), or has (TIME_WAIT): older kernels can't end such
/// connections.
fn connections_that_their_server_has_closed_delay_nothing(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    start(bed, &[])?;
    let mut senders = Vec::new();
    for header in [longer_header("203.0.113.1:1001")?, header("203.0.113.1:1002")?] {
        let mut sender = session(&header)?;
        drop(listener.accept()?);
        ensure!(client::read_end(&mut sender)? == client::End::Eof);
        senders.push(sender);
    }
    drop(senders.pop());
    ensure!(counter(bed, "translated")? == 2, "{}", status(bed)?);
    attach(bed, &["detach", "--now"])?;
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    Ok(())
}

/// Executes its arguments as on a kernel without `CONFIG_INET_DIAG`: a filter (seccomp(2)) answers
/// socket(AF_NETLINK, …, NETLINK_SOCK_DIAG) with EPROTONOSUPPORT.
const WITHOUT_SOCK_DIAG: &str = r"
import ctypes, os, struct, sys
LOAD, EQUAL, RETURN, ALLOW, ERRNO = 0x20, 0x15, 0x06, 0x7fff0000, 0x00050000
NUMBER, FAMILY, PROTOCOL = 0, 16, 32 # in struct seccomp_data; the low halves of arguments, little-endian
socket = {'x86_64': 41, 'aarch64': 198}[os.uname().machine]
steps = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, 5, socket), (LOAD, 0, 0, FAMILY), (EQUAL, 0, 3, 16),
    (LOAD, 0, 0, PROTOCOL), (EQUAL, 0, 1, 4), (RETURN, 0, 0, ERRNO | 93), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
program = struct.pack('HxxxxxxP', len(steps), ctypes.addressof(code))
prctl = ctypes.CDLL(None, use_errno=True).prctl
for call in (38, 1, 0, 0, 0), (22, 2, program, 0, 0): # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
    assert prctl(*call) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
";

/// Nothing is removed, the reason is reported, and `attach` continues as before.
fn connections_that_can_not_be_cut_off_are_still_served(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    start(bed, &[])?;
    let mut sender = session(&longer_header("203.0.113.1:1001")?)?;
    let (mut server, _) = listener.accept()?;
    ensure!(open(bed, "translated")? == 1);
    let detaching = command(bed, &["detach", "--now"])?.launched_by("python3", &["-c", WITHOUT_SOCK_DIAG]);
    let detaching = detaching.start(bed)?;
    ensure!(detaching.wait_end()?.code() == Some(1), "{}", detaching.log());
    let said = detaching.stderr();
    for part in ["1 open connections can't be cut off (sock_diag)", "leave --now out"] {
        ensure!(said.contains(part), "no {part:?} in {said}");
    }

    let sent = Pattern::bytes(100_000);
    let mut read = vec![0; sent.len()];
    sender.write_all(&sent)?;
    server.read_exact(&mut read)?;
    ensure!(read == sent, "wrong bytes");
    server.write_all(&sent)?;
    sender.read_exact(&mut read)?;
    ensure!(read == sent, "wrong bytes back");
    start(bed, &[])?;
    let _next = session(&header("203.0.113.1:1002")?)?;
    ensure!(listener.accept()?.1.to_string() == "203.0.113.1:1002");
    attach(bed, &["detach", "--now"])?;
    ensure!(is_reset(&mut sender, b"x")?);
    Ok(())
}
