//! Asks a running truepeer: the commands' side of the admin socket.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::spec::{AdminAddr, AskSpec};

/// How long the process may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer: some hundred thousand sessions.
const MOST_BYTES: u64 = 256 << 20;

/// A running truepeer.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    address: AdminAddr,
}

impl Client {
    /// The one at `--admin`, or at the first address of the configuration file's `[admin]`.
    pub(crate) fn of(spec: &AskSpec) -> anyhow::Result<Self> {
        let address = match &spec.admin {
            Some(address) => address.clone(),
            None => first_address(spec.file.path())?,
        };
        Ok(Self { address })
    }

    /// Sends a request, and returns the answer's body.
    ///
    /// # Errors
    /// Nobody answers, or the answer says that it was not done.
    pub(crate) fn ask(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let answer = match &self.address {
            AdminAddr::Unix(socket) => UnixStream::connect(socket).and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                exchange(stream, method, path)
            }),
            AdminAddr::Tcp(address) => connect(*address).and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                exchange(stream, method, path)
            }),
        };
        let answer = answer.with_context(|| format!("no truepeer answers at {}", self.address))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            Some(_) if !body.is_empty() => bail!("{}", body.trim_end()),
            _ => bail!("{}: this is no answer of truepeer", self.address),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the connection of a command, not of a session")]
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect(address)
}

/// In HTTP/1.0 the answer ends with the connection.
fn exchange(mut stream: impl Read + Write, method: &str, path: &str) -> io::Result<String> {
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Only `[admin]` is read: the rest of the file may be unfinished, or name files that this user may not read.
fn first_address(file: &Path) -> anyhow::Result<AdminAddr> {
    let advice = "name the running truepeer's socket with --admin PATH, or its file with -c FILE";
    let text = fs::read_to_string(file)
        .map_err(|error| anyhow::anyhow!("{}: can't read the file: {error}; {advice}", file.display()))?;
    let document: toml::Table =
        text.parse().with_context(|| format!("{}: see truepeer check", file.display()))?;
    let listen = document.get("admin").and_then(|admin| admin.get("listen"));
    let first = match listen {
        Some(toml::Value::Array(all)) => all.first().and_then(toml::Value::as_str),
        Some(one) => one.as_str(),
        None => None,
    };
    let Some(first) = first else {
        bail!("{}: [admin] has no `listen`; {advice}", file.display());
    };
    first.parse().map_err(|error| anyhow::anyhow!("{}: [admin] listen {first:?}: {error}", file.display()))
}
