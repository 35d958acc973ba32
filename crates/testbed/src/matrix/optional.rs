//! `--header optional`, row by row as in docs/senders.md. `headers` tests required ones.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::{CLIENT4, CLIENT6, Case, DESTINATION4, DESTINATION6, Deliver, Delivered, Way, cases};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client::{self, End};
use crate::skip;
use crate::sockets::{wait_until_read, wait_until_sent};

pub(super) const CASES: &[Case] = cases![
    an_optional_header_names_the_client,
    where_headers_are_optional_other_bytes_are_data_at_once,
    where_headers_are_optional_bytes_that_turn_out_to_be_none_are_data,
    where_headers_are_optional_a_silent_client_is_served_after_a_second,
    where_headers_are_optional_an_end_before_the_first_byte_reaches_the_backend,
    where_headers_are_optional_one_that_ends_too_early_is_refused,
    where_headers_are_optional_one_that_is_never_completed_is_refused,
    where_headers_are_optional_a_malformed_one_is_refused,
    where_headers_are_optional_one_after_the_wait_is_refused,
    where_headers_are_optional_other_late_bytes_are_data,
];

const OPTIONAL: [&str; 2] = ["--header", "optional"];

/// A busy machine is faster: what takes longer has waited for a header.
const WAIT: Duration = Duration::from_secs(20);
const PATIENT: [&str; 6] = ["--header", "optional", "--header-wait", "20s", "--header-timeout", "40s"];

fn an_optional_header_names_the_client(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &OPTIONAL)?;
    for (client, header) in
        [(CLIENT4, client::v1(CLIENT4, DESTINATION4)?), (CLIENT6, client::v2(CLIENT6, DESTINATION6)?)]
    {
        for cut in [0, 1, header.len() / 2, header.len() - 1] {
            let mut stream = who.knock()?;
            if cut > 0 {
                stream.write_all(&header[..cut])?;
                wait_until_read(&stream)?;
            }
            let saw = client::ask(&mut stream, &[&header[cut..], b"data"].concat())?;
            ensure!(saw.trim() == client, "{client} was seen as {saw:?}, cut at {cut}");
        }
    }
    Ok(())
}

fn where_headers_are_optional_other_bytes_are_data_at_once(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &PATIENT)?;
    for data in NO_HEADERS {
        comes_back_at_once(&echo, data, data.len())?;
    }
    Ok(())
}

/// The first bytes may start a header; the bytes after them show that they don't.
fn where_headers_are_optional_bytes_that_turn_out_to_be_none_are_data(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &PATIENT)?;
    NO_HEADERS.into_iter().try_for_each(|data| comes_back_at_once(&echo, data, 1))
}

const NO_HEADERS: [&str; 5] = ["GET / HTTP/1.1\r\n\r\n", "X", "PROXIMITY", "\r\nX", "\r\n\r\n\0\r\nQUIX"];

fn comes_back_at_once(echo: &Delivered, data: &str, piece: usize) -> anyhow::Result<()> {
    let mut stream = echo.knock()?;
    let mut began = Instant::now();
    for (n, piece) in data.as_bytes().chunks(piece).enumerate() {
        if n > 0 {
            wait_until_read(&stream)?;
        }
        // Earlier pieces take their time on a busy machine.
        began = Instant::now();
        stream.write_all(piece)?;
    }
    let answer = client::ask(&mut stream, b"")?;
    ensure!(answer == data, "{data:?}: {answer:?}");
    let took = began.elapsed();
    ensure!(took < WAIT, "{data:?} came back after {took:?}");
    Ok(())
}

/// The backend sends first. With preload the kernel holds a silent connection for a second longer.
fn where_headers_are_optional_a_silent_client_is_served_after_a_second(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let options = [&OPTIONAL[..], &["--header-timeout", "40s"]].concat();
    let banner = by.put_behind(bed, Behaviour::Banner, &options)?;
    let stream = banner.knock()?;
    let began = Instant::now();
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).context("a banner")?;
    let took = began.elapsed();
    ensure!(is_itself(line.trim().trim_start_matches("SSH-2.0-testbed "), &stream)?, "{line:?}");
    ensure!(took > Duration::from_millis(900) && took < WAIT, "after {took:?}");
    Ok(())
}

fn where_headers_are_optional_an_end_before_the_first_byte_reaches_the_backend(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &OPTIONAL)?;
    let mut stream = who.knock()?;
    let saw = client::ask(&mut stream, b"")?;
    ensure!(is_itself(saw.trim(), &stream)?, "{saw:?}");
    Ok(())
}

/// Expects the client's address only: if sender and backend are on one machine, `proxy` needs another port.
fn is_itself(saw: &str, stream: &TcpStream) -> anyhow::Result<bool> {
    Ok(saw.parse::<SocketAddr>()?.ip() == stream.local_addr()?.ip())
}

fn where_headers_are_optional_one_that_ends_too_early_is_refused(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &OPTIONAL)?;
    for header in [client::v1(CLIENT4, DESTINATION4)?, client::v2(CLIENT4, DESTINATION4)?] {
        for cut in [1, header.len() / 2, header.len() - 1] {
            let mut stream = echo.knock()?;
            stream.write_all(&header[..cut])?;
            stream.shutdown(Shutdown::Write)?;
            is_refused(&mut stream, &echo)?;
        }
    }
    Ok(())
}

fn where_headers_are_optional_one_that_is_never_completed_is_refused(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let options = [&OPTIONAL[..], &["--header-timeout", "2s"]].concat();
    let echo = by.put_behind(bed, Behaviour::Echo, &options)?;
    let mut stream = echo.knock()?;
    let began = Instant::now();
    stream.write_all(b"PROXY TCP4 ")?;
    is_refused(&mut stream, &echo)?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(1900) && took < Duration::from_secs(10), "after {took:?}");
    Ok(())
}

fn where_headers_are_optional_a_malformed_one_is_refused(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &OPTIONAL)?;
    let wrong_command = client::v2_raw(0x2F, 0x11, &[0; 12])?;
    for header in
        [&b"PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n"[..], b"PROXY TCP4 1.2.3.4 x\r\n", &wrong_command]
    {
        let mut stream = echo.knock()?;
        stream.write_all(header)?;
        is_refused(&mut stream, &echo)?;
    }
    Ok(())
}

/// AWS NLB's default: its header comes with the client's first payload, so a server that speaks first is not
/// told the client.
fn where_headers_are_optional_one_after_the_wait_is_refused(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let banner = by.put_behind(bed, Behaviour::Banner, &HASTY)?;
    drop(greeted(&banner)?);
    if by.column().ends_with("plain_user") && banner.backend.log().contains("CAP_NET_ADMIN") {
        return skip("this kernel lets only CAP_NET_ADMIN filter a TCP connection (docs/run.md)");
    }
    for header in [client::v1(CLIENT4, DESTINATION4)?, client::v2(CLIENT4, DESTINATION4)?] {
        for cut in [0, 1, 5, 11, header.len() - 1] {
            let mut stream = greeted(&banner)?;
            for piece in [&header[..cut], &[&header[cut..], b"data"].concat()] {
                // The connection may have been refused by then.
                let _ = stream.write_all(piece);
                let _ = wait_until_sent(&stream);
            }
            let mut echoed = Vec::new();
            let end = stream.read_to_end(&mut echoed);
            // attach and run can't hold back the start of a signature.
            let most = if matches!(by.way(), Way::Attach | Way::Run) { cut.min(11) } else { 0 };
            let has_passed = echoed.len() <= most && header.starts_with(&echoed);
            ensure!(has_passed, "cut at {cut} the backend got {}", echoed.escape_ascii());
            let has_ended = end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true);
            ensure!(has_ended, "cut at {cut} it was not closed");
        }
    }
    banner
        .truepeer
        .iter()
        .try_for_each(|truepeer| truepeer.wait_for_log("header_placement must be on_first_ack"))
}

fn where_headers_are_optional_other_late_bytes_are_data(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let banner = by.put_behind(bed, Behaviour::Banner, &HASTY)?;
    for data in NO_HEADERS.into_iter().chain(["P", "PROXY", "\r\n\r\n"]) {
        let mut stream = greeted(&banner)?;
        for piece in data.as_bytes().chunks(1) {
            stream.write_all(piece)?;
            wait_until_sent(&stream)?;
        }
        let echoed = client::ask(&mut stream, b"")?;
        ensure!(echoed == data, "{data:?}: {echoed:?}");
    }
    Ok(())
}

const HASTY: [&str; 4] = ["--header", "optional", "--header-wait", "100ms"];

/// A connection on which the backend has spoken first.
fn greeted(banner: &Delivered) -> anyhow::Result<TcpStream> {
    let stream = banner.knock()?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    ensure!(line.starts_with("SSH-2.0-testbed "), "{line:?}");
    Ok(stream)
}

fn is_refused(stream: &mut TcpStream, delivered: &Delivered) -> anyhow::Result<()> {
    ensure!(matches!(client::read_end(stream)?, End::Eof | End::Reset));
    let log = delivered.backend.log();
    ensure!(!log.contains("accepted"), "the backend was reached:\n{log}");
    Ok(())
}
