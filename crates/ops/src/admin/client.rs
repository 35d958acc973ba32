//! Asks a running truepeer: the commands' side of the admin socket.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::fs::Uid;
use rustix::process::{geteuid, getuid};
use rustix::thread::set_thread_res_uid;

use super::answer::HANDOVER;
use truepeer_config::plan::AdminConfig;
use truepeer_config::spec::{AdminAddr, AskSpec};

/// How long the process may be silent.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same while it carries out an order: a reload resolves names.
const ORDER: Duration = Duration::from_secs(660);
/// How often a process that is being replaced is asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// The longest head of an answer.
const MOST_HEAD: usize = 8 << 10;
/// The longest reason of a refused upgrade.
const MOST_REASON: u64 = 1 << 20;
/// The longest answer: some hundred thousand sessions.
const MOST_BYTES: u64 = 256 << 20;

/// A running truepeer.
#[derive(Debug, Clone)]
pub struct Client {
    address: AdminAddr,
}

impl Client {
    /// The one at `--admin`, or at the first address of the configuration file's `[admin]`.
    pub(crate) fn of(spec: &AskSpec) -> anyhow::Result<Self> {
        let address = match &spec.admin {
            Some(address) => address.clone(),
            None => first_address(spec.file.path()).or_else(|failure| usual(spec, failure))?,
        };
        Ok(Self { address })
    }

    /// The one at this address.
    pub(crate) fn of_address(address: AdminAddr) -> Self {
        Self { address }
    }

    /// The one that listens on this socket.
    pub fn at(socket: &Path) -> Self {
        Self { address: AdminAddr::Unix(socket.to_owned()) }
    }

    /// Sends a request, and returns the answer's body.
    ///
    /// # Errors
    /// Nobody answers, or the answer says that it was not done.
    pub fn ask(&self, method: &str, path: &str) -> anyhow::Result<String> {
        self.body_of(self.answer(method, path)?)
    }

    /// The same. `Err` inside: there is no such thing, for this reason.
    ///
    /// # Errors
    /// Those of [`Self::ask`].
    pub(crate) fn find(&self, path: &str) -> anyhow::Result<Result<String, String>> {
        match self.answer("GET", path)? {
            (Some(404), body) => Ok(Err(body.trim_end().to_owned())),
            answer => self.body_of(answer).map(Ok),
        }
    }

    /// The same as [`Self::ask`], during an upgrade by the process that takes over.
    ///
    /// # Errors
    /// Those of [`Self::ask`].
    pub(crate) fn ask_patiently(&self, method: &str, path: &str) -> anyhow::Result<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.answer(method, path)? {
                (Some(503), _) if Instant::now() < until => thread::sleep(AGAIN),
                answer => return self.body_of(answer),
            }
        }
    }

    fn body_of(&self, answer: (Option<u16>, String)) -> anyhow::Result<String> {
        match answer {
            (Some(200), body) => Ok(body),
            (Some(_), body) if !body.is_empty() => bail!("{}", body.trim_end()),
            _ => bail!("{}: this is no answer of truepeer", self.address),
        }
    }

    /// The answer's status and body.
    fn answer(&self, method: &str, path: &str) -> anyhow::Result<(Option<u16>, String)> {
        let patience = if method == "POST" { ORDER } else { PATIENCE };
        let answer = match &self.address {
            AdminAddr::Unix(socket) | AdminAddr::Whois(socket) => connect_to(socket).and_then(|stream| {
                stream.set_read_timeout(Some(patience))?;
                exchange(stream, method, path)
            }),
            AdminAddr::Tcp(address) => connect(*address).and_then(|stream| {
                stream.set_read_timeout(Some(patience))?;
                exchange(stream, method, path)
            }),
        };
        let (head, body) = answer.with_context(|| format!("no truepeer answers at {}", self.address))?;
        Ok((status(&head), body))
    }
}

/// Connects to an admin socket. Root without CAP_DAC_OVERRIDE, as in truepeer.service, may not write to the
/// socket of the service's user. It connects as that user.
///
/// # Errors
/// The error of connect(2).
pub fn connect_to(socket: &Path) -> io::Result<UnixStream> {
    let connected = UnixStream::connect(socket);
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    if !connected.as_ref().is_err_and(is_refused) || !geteuid().is_root() {
        return connected;
    }
    let owner = Uid::from_raw(fs::metadata(socket)?.uid());
    // A thread has a user of its own, which ends with it.
    let as_owner = || {
        set_thread_res_uid(getuid(), owner, geteuid())?;
        UnixStream::connect(socket)
    };
    thread::scope(|scope| scope.spawn(as_owner).join()).unwrap_or(connected)
}

/// Asks for an upgrade. Afterwards the stream is that of the hand-over.
///
/// # Errors
/// What the answer says.
pub fn switch_protocol(mut stream: &UnixStream) -> anyhow::Result<()> {
    let request = format!(
        "POST /upgrade HTTP/1.1\r\nHost: truepeer\r\nConnection: Upgrade\r\nUpgrade: {HANDOVER}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).context("the request")?;
    let head = read_head(&mut stream).context("the answer")?;
    match status(&head) {
        Some(101) => Ok(()),
        Some(status) => {
            let mut text = String::new();
            stream.take(MOST_REASON).read_to_string(&mut text)?;
            bail!("status {status}: {}", text.trim_end())
        }
        None => bail!("this is no answer of truepeer: {:?}", head.lines().next().unwrap_or_default()),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the connection of a command, not of a session")]
fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect(address)
}

/// The answer's head and body: in HTTP/1.0 it ends with the connection.
fn exchange(mut stream: impl Read + Write, method: &str, path: &str) -> io::Result<(String, String)> {
    stream.write_all(format!("{method} {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let head = read_head(&mut stream)?;
    let mut body = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut body)?;
    Ok((head, body))
}

/// Byte by byte: what follows the head may belong to another protocol.
fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == MOST_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer's head is too long"));
        }
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn status(head: &str) -> Option<u16> {
    head.split(' ').nth(1)?.parse().ok()
}

/// The usual socket, if there is one, for the system's file: while that is missing or is being edited, a
/// process goes on by what it was before.
fn usual(spec: &AskSpec, failure: anyhow::Error) -> anyhow::Result<AdminAddr> {
    let usual = AdminConfig::of_file(Vec::new()).listen.pop();
    let is_there = |usual: &AdminAddr| !spec.file.is_named() && usual.path().is_some_and(Path::exists);
    usual.filter(is_there).ok_or(failure)
}

/// Only `[admin]` is read: the rest of the file may be unfinished, or name files that this user may not read.
fn first_address(file: &Path) -> anyhow::Result<AdminAddr> {
    let advice = "name the running truepeer's socket with --admin PATH, or its file with -c FILE";
    let unreadable = || format!("{}: can't read the file ({advice})", file.display());
    let text = fs::read_to_string(file).with_context(unreadable)?;
    let document: toml::Table =
        text.parse().with_context(|| format!("{}: see truepeer check", file.display()))?;
    let listen = document.get("admin").and_then(|admin| admin.get("listen"));
    let first = match listen {
        Some(toml::Value::Array(all)) => {
            all.iter().filter_map(toml::Value::as_str).find(|one| !one.starts_with("whois:"))
        }
        Some(one) => one.as_str(),
        None => None,
    };
    let Some(first) = first else {
        if let Some(usual) = AdminConfig::of_file(Vec::new()).listen.pop() {
            return Ok(usual);
        }
        let why = format!("{}: [admin] has no `listen`; {advice}", file.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why).into());
    };
    match first.parse() {
        // As `serve` reads it: relative paths begin at the file's directory.
        Ok(AdminAddr::Unix(path)) => Ok(AdminAddr::Unix(file.with_file_name("").join(path))),
        Ok(other) => Ok(other),
        Err(error) => bail!("{}: [admin] listen {first:?}: {error}", file.display()),
    }
}
