//! Asks a running truepeer by its admin socket: `truepeer reload`, and the begin of an upgrade.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, bail};

/// The longest head of an answer.
const MOST_HEAD: usize = 8 << 10;
/// The longest answer.
const MOST_BODY: u64 = 1 << 20;

/// Makes the process reload, and returns what has changed.
///
/// # Errors
/// Why everything stays as it was.
pub(crate) fn reload(admin: &Path) -> anyhow::Result<String> {
    let stream =
        UnixStream::connect(admin).with_context(|| format!("no truepeer listens on {}", admin.display()))?;
    send(&stream, "POST /reload HTTP/1.1\r\nHost: truepeer\r\nContent-Length: 0\r\n\r\n")?;
    let status = status(&head(&stream)?)?;
    let mut text = String::new();
    stream.take(MOST_BODY).read_to_string(&mut text)?;
    match status {
        200 => Ok(text.trim_end().to_owned()),
        _ => bail!("{}", text.trim_end()),
    }
}

/// Asks for an upgrade. Afterwards the stream is that of the hand-over.
pub(super) fn switch_protocol(stream: &UnixStream) -> anyhow::Result<()> {
    send(
        stream,
        "POST /upgrade HTTP/1.1\r\nHost: truepeer\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover\r\n\r\n",
    )?;
    match status(&head(stream)?)? {
        101 => Ok(()),
        status => {
            let mut text = String::new();
            stream.take(MOST_BODY).read_to_string(&mut text)?;
            bail!("status {status}: {}", text.trim_end())
        }
    }
}

fn send(mut stream: &UnixStream, request: &str) -> anyhow::Result<()> {
    stream.write_all(request.as_bytes()).context("the request")
}

/// Byte by byte: what follows the head belongs to another protocol.
fn head(mut stream: &UnixStream) -> anyhow::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(head.len() < MOST_HEAD, "the answer's head is too long");
        stream.read_exact(&mut byte).context("the answer")?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn status(head: &str) -> anyhow::Result<u16> {
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.with_context(|| {
        format!("this is no answer of truepeer: {:?}", head.lines().next().unwrap_or_default())
    })
}
