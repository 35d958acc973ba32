//! A listener with a full accept queue: the kernel then creates no socket for a connection whose header is
//! already complete.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_testbed::{Bed, Test, client, tests};

use crate::kit::{LISTENER, attach, counter, header, longer_header, open, start, status};

/// At most this many can be half-open. Of connections not yet accepted, the kernel admits one more.
const BACKLOG: u16 = 4;
const ROOM: u16 = BACKLOG + 1;
const CONNECTIONS: u16 = 2 * BACKLOG;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_connection_that_finds_the_accept_queue_full_is_served_later,
        a_connection_that_finds_the_accept_queue_full_is_served_later_after_a_cookie,
        a_connection_that_never_had_a_socket_leaves_nothing,
    ]
}

fn listen() -> Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(LISTENER.parse::<SocketAddr>()?))?;
    socket.listen(BACKLOG.into())?;
    // The time-out of accept().
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(socket.into())
}

fn set_cookies(value: &str) -> Result<()> {
    std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", value).context("tcp_syncookies")
}

fn sender_of(n: u16) -> String {
    format!("127.0.0.9:{}", 4000 + n)
}

fn client_of(n: u16) -> String {
    format!("203.0.113.1:{}", 1000 + n)
}

/// More connections with complete headers than there is room for; some are translated.
fn overflow(bed: &Bed) -> Result<Vec<TcpStream>> {
    let mut streams = batch(bed, 0..BACKLOG)?;
    streams.extend(batch(bed, BACKLOG..CONNECTIONS)?);
    Ok(streams)
}

/// Connections that are all half-open when their headers are sent.
fn batch(bed: &Bed, numbers: Range<u16>) -> Result<Vec<TcpStream>> {
    let connect = |n| client::connect_from(sender_of(n), LISTENER);
    let mut streams = numbers.clone().map(connect).collect::<Result<Vec<_>>>()?;
    for (n, stream) in numbers.clone().zip(&mut streams) {
        let header = if n % 2 == 0 { header(&client_of(n))? } else { longer_header(&client_of(n))? };
        stream.write_all(&[header, client_of(n).into_bytes()].concat())?;
    }
    bed.wait_for("all headers to be off", || {
        counter(bed, "header_v2").is_ok_and(|count| count == u64::from(numbers.end))
    })?;
    Ok(streams)
}

/// Accepts, and reads the client's own statement of its name.
fn serve(listener: &TcpListener) -> Result<String> {
    let (mut stream, seen) = listener.accept().context("accept")?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut buffer = [0; 100];
    let len = stream.read(&mut buffer).context("reading")?;
    let said = String::from_utf8_lossy(&buffer[..len]).into_owned();
    ensure!(said == seen.to_string(), "{seen} said {said:?}");
    Ok(said)
}

fn all_are_served(bed: &Bed) -> Result<()> {
    let listener = listen()?;
    start(bed, &[])?;
    let _streams = overflow(bed)?;
    let mut served = (0..CONNECTIONS).map(|_| serve(&listener)).collect::<Result<Vec<_>>>()?;
    served.sort();
    ensure!(served == (0..CONNECTIONS).map(client_of).collect::<Vec<_>>(), "{served:?}");
    Ok(())
}

fn a_connection_that_finds_the_accept_queue_full_is_served_later(bed: &Bed) -> Result<()> {
    set_cookies("0")?;
    all_are_served(bed)
}

fn a_connection_that_finds_the_accept_queue_full_is_served_later_after_a_cookie(bed: &Bed) -> Result<()> {
    set_cookies("2")?;
    all_are_served(bed)
}

/// Later its addresses belong to another connection.
fn a_connection_that_never_had_a_socket_leaves_nothing(bed: &Bed) -> Result<()> {
    set_cookies("0")?;
    let listener = listen()?;
    start(bed, &[])?;
    for stream in overflow(bed)? {
        client::reset(stream)?;
    }
    for _ in 0..ROOM {
        listener.accept().context("what had a socket")?;
    }
    bed.wait_for("all connections to be forgotten", || {
        ["untouched", "translated", "awaiting_header"]
            .iter()
            .all(|kind| open(bed, kind).is_ok_and(|count| count == 0))
    })
    .with_context(|| status(bed).map(|status| status.to_string()).unwrap_or_default())?;
    for n in 0..CONNECTIONS {
        let mut stream = client::connect_from(sender_of(n), LISTENER)?;
        let other = "198.51.100.99:99";
        stream.write_all(&[&header(other)?, other.as_bytes()].concat())?;
        ensure!(serve(&listener)? == other);
    }
    attach(bed, &["detach"])?;
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    Ok(())
}
