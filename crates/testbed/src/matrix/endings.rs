//! A connection ends on one side in the same way as on the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use anyhow::{Context, ensure};

use super::{CLIENT4, Case, Deliver, Delivered, cases};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client::{self, End};
use crate::crowd::nth_client;
use crate::pattern::{Digest, Pattern};
use crate::sockets::wait_until_sent;

pub(super) const CASES: &[Case] = cases![
    a_backend_that_speaks_first_is_heard,
    half_close_reaches_the_backend,
    half_close_reaches_the_client,
    an_empty_session_ends_in_order,
    an_end_is_not_a_reset,
    a_reset_by_the_client_reaches_the_backend,
    a_reset_by_the_client_reaches_a_backend_that_sends,
    a_reset_by_the_backend_reaches_the_client,
    a_reset_by_the_backend_reaches_a_client_that_sends,
    bytes_before_a_reset_arrive_first,
];

fn session(delivered: &Delivered) -> anyhow::Result<TcpStream> {
    delivered.session(CLIENT4.parse()?)
}

fn a_backend_that_speaks_first_is_heard(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let banner = by.put_behind(bed, Behaviour::Banner, &[])?;
    let mut stream = session(&banner)?;
    let mut said = [0; b"SSH-2.0-testbed 203.0.113.7:5000\r\n".len()];
    stream.read_exact(&mut said).context("the banner")?;
    ensure!(&said == b"SSH-2.0-testbed 203.0.113.7:5000\r\n", "{:?}", String::from_utf8_lossy(&said));
    ensure!(client::ask(&mut stream, b"hello")? == "hello");
    Ok(())
}

fn half_close_reaches_the_backend(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let digest = by.put_behind(bed, Behaviour::Digest, &[])?;
    // The answer comes only after the end.
    let answer = client::ask(&mut session(&digest)?, &Pattern::bytes(100_000))?;
    ensure!(answer.trim() == Digest::of_pattern(100_000), "{answer}");
    Ok(())
}

fn half_close_reaches_the_client(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let source = by.put_behind(bed, Behaviour::Source, &[])?;
    let mut stream = session(&source)?;
    stream.write_all(b"10\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    ensure!(bytes == Pattern::bytes(10), "{bytes:?}");
    // The other direction is still open: bytes sent now still arrive.
    stream.write_all(b"more")?;
    stream.shutdown(Shutdown::Write)?;
    source.backend.wait_for_log("203.0.113.7:5000 eof 7")
}

fn an_empty_session_ends_in_order(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    ensure!(client::ask(&mut session(&echo)?, b"")?.is_empty());
    echo.backend.wait_for_log("203.0.113.7:5000 eof 0")
}

fn an_end_is_not_a_reset(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let mut stream = session(&who)?;
    stream.shutdown(Shutdown::Write)?;
    let end = client::read_end(&mut stream)?;
    ensure!(end == End::Eof, "{end:?}");
    Ok(())
}

fn a_reset_by_the_client_reaches_the_backend(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    let mut stream = session(&echo)?;
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])?;
    client::reset(stream)?;
    echo.backend.wait_for_log("203.0.113.7:5000 reset 1")
}

fn a_reset_by_the_client_reaches_a_backend_that_sends(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let source = by.put_behind(bed, Behaviour::Source, &[])?;
    let mut stream = session(&source)?;
    stream.write_all(b"1000000000\n")?;
    stream.read_exact(&mut vec![0; 1 << 20])?;
    client::reset(stream)?;
    source.backend.wait_for_log("203.0.113.7:5000 reset 11")
}

fn a_reset_by_the_backend_reaches_the_client(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let reset = by.put_behind(bed, Behaviour::Reset, &[])?;
    let mut stream = session(&reset)?;
    stream.write_all(b"x")?;
    let end = client::read_end(&mut stream)?;
    ensure!(end == End::Reset, "{end:?}");
    Ok(())
}

fn a_reset_by_the_backend_reaches_a_client_that_sends(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let reset = by.put_behind(bed, Behaviour::Reset, &[])?;
    let mut stream = session(&reset)?;
    let bytes = Pattern::bytes(1 << 20);
    for _ in 0..1000 {
        if let Err(error) = stream.write_all(&bytes) {
            ensure!(
                matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                "the reset came as {error}"
            );
            return Ok(());
        }
    }
    anyhow::bail!("a gibibyte was sent although nobody read it")
}

/// Bytes that arrived before a reset can still be read, as without truepeer (tcp(7): the reset ends the queue
/// but doesn't empty it).
fn bytes_before_a_reset_arrive_first(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    const LEN: usize = 50_000;
    let digest = by.put_behind(bed, Behaviour::Digest, &[])?;
    for n in 0..20 {
        let client = nth_client(n);
        let mut stream = digest.session(client)?;
        stream.write_all(&Pattern::bytes(LEN))?;
        wait_until_sent(&stream)?;
        client::reset(stream)?;
        digest.backend.wait_for_log(&format!("{client} reset {LEN}"))?;
    }
    Ok(())
}
