//! How headers arrive, and headers that never do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{CLIENT4, CLIENT6, Case, DESTINATION4, DESTINATION6, Deliver, cases, header_of};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client::{self, End};
use crate::crowd::nth_client;
use crate::pattern::{Digest, Pattern};
use crate::sockets::wait_until_read;

pub(super) const CASES: &[Case] = cases![
    a_header_may_come_byte_by_byte,
    data_in_the_headers_segment_arrives,
    a_header_may_have_16_kib_and_no_more,
    nothing_is_dialled_before_the_whole_header,
    a_connection_without_header_is_refused,
    a_header_that_never_ends_times_out,
    a_header_that_trickles_times_out,
    a_session_outlives_the_header_timeout,
];

fn a_header_may_come_byte_by_byte(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &["--header-timeout", "60s"])?;
    let headers = [
        (CLIENT4, client::v1(CLIENT4, DESTINATION4)?),
        (CLIENT6, client::v2_with_tlvs(CLIENT6, DESTINATION6, &[(2, b"site.example")])?),
    ];
    for (client, header) in headers {
        let mut stream = who.knock()?;
        for byte in header {
            stream.write_all(&[byte])?;
            wait_until_read(&stream)?; // wait, so that the reader finds this byte alone
        }
        let saw = client::ask(&mut stream, b"data")?;
        ensure!(saw.trim() == client, "{client} was seen as {saw:?}");
    }
    Ok(())
}

fn data_in_the_headers_segment_arrives(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let digest = by.put_behind(bed, Behaviour::Digest, &[])?;
    // A byte; a segment; more than one read; more than the kernel buffers.
    for (n, len) in [1, 1000, 70_000, 3 << 20].into_iter().enumerate() {
        let answer = digest.ask(&header_of(nth_client(n))?, &Pattern::bytes(len))?;
        ensure!(answer.trim() == Digest::of_pattern(len as u64), "{len} bytes: {answer:?}");
    }
    Ok(())
}

/// The default limit: room for a client's certificate (PROXY 2.2.6, PP2_SUBTYPE_SSL_CLIENT_CERT).
fn a_header_may_have_16_kib_and_no_more(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    const CAP: usize = 16 << 10;
    const OVERHEAD: usize = 16 + 12 + 3; // the fixed part, IPv4 addresses, a NOOP's type and length
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let padded = |len| client::v2_with_tlvs(CLIENT4, DESTINATION4, &[(4, &vec![0; len - OVERHEAD])]);
    let saw = who.ask(&padded(CAP)?, b"data")?;
    ensure!(saw.trim() == CLIENT4, "the backend saw {saw:?}");
    let mut stream = who.knock()?;
    // truepeer refuses it by its length, so the connection may end while the rest is written.
    let _ = stream.write_all(&padded(CAP + 1)?);
    client::read_end(&mut stream)?;
    ensure!(who.backend.log().matches("accepted").count() == 1, "{}", who.backend.log());
    Ok(())
}

fn nothing_is_dialled_before_the_whole_header(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    let header = client::v2(CLIENT4, DESTINATION4)?;
    let (most, last) = header.split_at(header.len() - 1);
    let mut stream = echo.knock()?;
    stream.write_all(most)?;
    // After a whole later session, a premature connection for the first one would have been made.
    ensure!(echo.ask(&header_of(nth_client(0))?, b"x")? == "x");
    ensure!(!echo.backend.log().contains(CLIENT4), "dialled early:\n{}", echo.backend.log());
    stream.write_all(last)?;
    ensure!(client::ask(&mut stream, b"y")? == "y");
    Ok(())
}

fn a_connection_without_header_is_refused(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    for start in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"\x16\x03\x01\x02\0\x01\0\x01", b"SSH-2.0-x\r\n"] {
        let mut stream = echo.knock()?;
        stream.write_all(start)?;
        client::read_end(&mut stream)?; // with FIN or, because unread bytes are left, RST
    }
    let mut gone = echo.knock()?;
    gone.shutdown(Shutdown::Write)?;
    client::read_end(&mut gone)?;
    ensure!(!echo.backend.log().contains("accepted"), "the backend was reached:\n{}", echo.backend.log());
    Ok(())
}

fn a_header_that_never_ends_times_out(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &["--header-timeout", "1s"])?;
    for start in [b"PROXY TCP4 ".as_slice(), b""] {
        let mut stream = echo.knock()?;
        let start_time = Instant::now();
        stream.write_all(start)?;
        ensure!(matches!(client::read_end(&mut stream)?, End::Eof | End::Reset));
        let waited = start_time.elapsed();
        ensure!(
            waited > Duration::from_millis(900) && waited < Duration::from_secs(10),
            "after {start:?} it took {waited:?}"
        );
    }
    Ok(())
}

/// Each byte is progress, but none extends the time.
fn a_header_that_trickles_times_out(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &["--header-timeout", "1s"])?;
    let mut stream = echo.knock()?;
    let start = Instant::now();
    let trickle = header_of(CLIENT4.parse::<SocketAddr>()?)?.into_iter().cycle();
    stream.set_read_timeout(Some(Duration::from_millis(100)))?; // the pace
    for byte in trickle.take(27) {
        let still_open = stream.write_all(&[byte]).is_ok()
            && stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        if !still_open {
            ensure!(start.elapsed() > Duration::from_millis(900), "it took {:?}", start.elapsed());
            return Ok(());
        }
    }
    anyhow::bail!("still open after {:?}", start.elapsed())
}

fn a_session_outlives_the_header_timeout(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &["--header-timeout", "500ms"])?;
    let mut session = echo.session(CLIENT4.parse::<SocketAddr>()?)?;
    let mut silent = echo.knock()?;
    client::read_end(&mut silent)?; // its time is up, so the session's would be, too
    ensure!(client::ask(&mut session, b"still here")? == "still here");
    Ok(())
}
