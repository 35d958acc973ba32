//! Ten megabytes to each program and back: no byte after the header is lost, doubled or changed, whether the
//! header arrives with the first bytes or late. Digests are compared.

use std::io::{Read, Write};
use std::net::Shutdown;

use anyhow::{Context, ensure};
use truepeer_testbed::client;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::sockets::wait_until_sent;

use crate::kit::{CLIENT4, Talk, header_of};

const LENGTH: usize = 10_000_000;
/// Everything before a body in an answer fits in this many bytes.
const MOST_BEFORE: usize = 8192;

/// There and back on one connection, for programs that echo and name the client.
pub(crate) fn a_body_comes_back(to: &str, talk: Talk) -> anyhow::Result<()> {
    for pieces in 1..=2 {
        let how = || format!("a body behind a header in {pieces} pieces");
        let answer = told(to, pieces, &talk.parcel(), talk == Talk::Plain).with_context(how)?;
        let before = talk.begins_at(&answer).with_context(|| start_of(&answer)).with_context(how)?;
        let rest = is_whole(&answer[before..], &talk.body()).with_context(how)?;
        let around = [&answer[..before], rest].concat();
        let saw = talk.read(&String::from_utf8_lossy(&around)).with_context(|| start_of(&around))?;
        ensure!(saw.to_string() == CLIENT4, "{saw} was seen by {}", how());
    }
    Ok(())
}

/// Stored on one connection (PUT), fetched on another (GET), as with files.
pub(crate) fn a_file_comes_back(to: &str) -> anyhow::Result<()> {
    let body = Talk::Http.body();
    for pieces in 1..=2 {
        let path = format!("/files/{pieces}");
        let put = format!("PUT {path} HTTP/1.0\r\nHost: files\r\nContent-Length: {LENGTH}\r\n\r\n");
        let stored = told(to, pieces, &[put.as_bytes(), &body].concat(), false)?;
        ensure!(stored.starts_with(b"HTTP/1.1 201"), "{}", start_of(&stored));
        let got = told(to, pieces, format!("GET {path} HTTP/1.0\r\nHost: files\r\n\r\n").as_bytes(), false)?;
        let before = Talk::Http.begins_at(&got).with_context(|| start_of(&got))?;
        ensure!(is_whole(&got[before..], &body)?.is_empty());
        for answer in [&stored, &got] {
            let head = start_of(answer);
            let named = head.lines().find_map(|line| line.strip_prefix("X-Client: "));
            let saw = named.and_then(|named| Talk::Http.read(named)).with_context(|| head.clone())?;
            ensure!(saw.to_string() == CLIENT4, "{saw} was seen");
        }
    }
    Ok(())
}

/// For protocols that can't carry every byte.
pub(crate) fn as_text() -> Vec<u8> {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap_or_default() as u8;
    Pattern::bytes(LENGTH / 2).iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes after the body, which must be these.
pub(crate) fn is_whole<'a>(answer: &'a [u8], body: &[u8]) -> anyhow::Result<&'a [u8]> {
    let (found, rest) = answer.split_at(body.len().min(answer.len()));
    if digest(found) != digest(body) || found.len() != body.len() {
        let first = found.iter().zip(body).take_while(|(found, expected)| found == expected).count();
        anyhow::bail!("{} of {} bytes came, altered from {first} on", found.len(), body.len());
    }
    Ok(rest)
}

fn digest(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.update(bytes);
    digest.report()
}

/// Sends these bytes after a header, which arrives with the first ones or late. Returns the whole answer.
fn told(to: &str, pieces: usize, bytes: &[u8], then_end: bool) -> anyhow::Result<Vec<u8>> {
    let header = header_of(CLIENT4)?;
    let cut = if pieces == 1 { 0 } else { header.len() / 2 };
    let mut stream = client::connect(to)?;
    if cut > 0 {
        stream.write_all(&header[..cut])?;
        wait_until_sent(&stream)?;
    }
    stream.write_all(&[&header[cut..], bytes].concat()).context("sending")?;
    if then_end {
        stream.shutdown(Shutdown::Write)?;
    }
    let mut answer = Vec::with_capacity(LENGTH + MOST_BEFORE);
    stream.read_to_end(&mut answer).context("the answer")?;
    Ok(answer)
}

fn start_of(answer: &[u8]) -> String {
    String::from_utf8_lossy(&answer[..answer.len().min(MOST_BEFORE)]).into_owned()
}

impl Talk {
    fn body(self) -> Vec<u8> {
        if self == Talk::Postgres { as_text() } else { Pattern::bytes(LENGTH) }
    }

    /// Sends the body and requests it back.
    fn parcel(self) -> Vec<u8> {
        let body = self.body();
        match self {
            Talk::Plain => body,
            Talk::Http => {
                let head = format!("POST / HTTP/1.0\r\nHost: bodies\r\nContent-Length: {LENGTH}\r\n\r\n");
                [head.as_bytes(), &body].concat()
            }
            Talk::Redis => {
                let set = format!("*3\r\n$3\r\nSET\r\n$4\r\nbody\r\n${LENGTH}\r\n");
                [set.as_bytes(), &body, b"\r\nGET body\r\n", self.question()].concat()
            }
            Talk::Postgres => {
                // As `question`, with another query: its length includes itself and the zero at its end.
                let (opening, ending) = (&self.question()[..41], b"\0X\0\0\0\x04");
                let query: [&[u8]; 3] = [
                    b"select 'addr=' || host(inet_client_addr()) || ':' || inet_client_port() || ' ' || '",
                    &body,
                    b"'",
                ];
                let query = query.concat();
                let length = u32::try_from(query.len() + 5).unwrap_or(0).to_be_bytes();
                [opening, b"Q", &length, &query, ending].concat()
            }
        }
    }

    /// The offset of the body in an answer.
    fn begins_at(self, answer: &[u8]) -> Option<usize> {
        let start = &answer[..answer.len().min(MOST_BEFORE)];
        let behind = |from: usize, mark: &[u8]| {
            start[from..].windows(mark.len()).position(|found| found == mark).map(|at| from + at + mark.len())
        };
        match self {
            Talk::Plain => Some(0),
            Talk::Http => behind(0, b"\r\n\r\n"),
            Talk::Redis => behind(0, format!("+OK\r\n${LENGTH}\r\n").as_bytes()),
            Talk::Postgres => behind(behind(0, b"addr=")?, b" "),
        }
    }
}
