//! The code of a backend's process: a thread for each connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use socket2::{Domain, SockAddr, Socket, Type};

use super::Behaviour;
use crate::pattern::{Digest, Pattern};

const BUFFER: usize = 64 * 1024;
/// Thousands of connections come at once: small stacks, and a large backlog.
const STACK: usize = 256 * 1024;
const BACKLOG: i32 = 4096;
/// The pace of slow backends: one buffer each time.
const PAUSE: Duration = Duration::from_millis(5);
/// The kernel buffer of slow backends.
const SMALL_BUFFER: usize = 64 * 1024;

pub(super) fn run(behaviour: Behaviour, addresses: Vec<String>) -> anyhow::Result<()> {
    let listeners = addresses.iter().map(|address| listen(address, behaviour).context(address.clone()));
    let listeners: Vec<TcpListener> = listeners.collect::<anyhow::Result<_>>()?;
    thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(move || accept_all(behaviour, listener));
        }
    });
    Ok(())
}

fn listen(address: &str, behaviour: Behaviour) -> anyhow::Result<TcpListener> {
    let address: SocketAddr = address.parse()?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // An IPv4 address in IPv6 notation means an AF_INET6 socket that accepts IPv4 connections.
        socket.set_only_v6(address.ip().to_canonical().is_ipv6())?;
    }
    if behaviour == Behaviour::SlowDigest {
        socket.set_recv_buffer_size(SMALL_BUFFER)?; // accepted sockets inherit it
    }
    socket.bind(&SockAddr::from(address)).context("bind")?;
    socket.listen(BACKLOG).context("listen")?;
    Ok(socket.into())
}

fn accept_all(behaviour: Behaviour, listener: &TcpListener) {
    let mut held = Vec::new();
    loop {
        let (stream, peer) = match listener.accept() {
            // Like dual-stack servers, show ::ffff:a.b.c.d as a.b.c.d.
            Ok((stream, peer)) => (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port())),
            Err(error) => {
                eprintln!("accept: {error}");
                thread::sleep(PAUSE); // out of descriptors: others must close first
                continue;
            }
        };
        println!("{peer} accepted");
        if behaviour == Behaviour::Hold {
            held.push(stream);
            continue;
        }
        let serve = move || serve_and_report(behaviour, stream, peer);
        if let Err(error) = thread::Builder::new().stack_size(STACK).spawn(serve) {
            eprintln!("{peer}: no thread: {error}");
        }
    }
}

fn serve_and_report(behaviour: Behaviour, stream: TcpStream, peer: SocketAddr) {
    let mut connection = Connection { stream, peer, read_bytes: 0, digest: Digest::default() };
    let end = match connection.serve(behaviour) {
        Ok(()) => "eof".to_owned(),
        Err(error) if is_reset(&error) => "reset".to_owned(),
        Err(error) => error.to_string(),
    };
    let seen = match behaviour {
        Behaviour::Account | Behaviour::Counted => connection.digest.report(),
        _ => connection.read_bytes.to_string(),
    };
    println!("{peer} {end} {seen}");
}

/// A reset appears as any of these, depending on the call.
fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected)
}

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    read_bytes: u64,
    digest: Digest,
}

impl Connection {
    fn serve(&mut self, behaviour: Behaviour) -> io::Result<()> {
        match behaviour {
            Behaviour::Echo => self.echo(),
            Behaviour::Digest => self.digest(Duration::ZERO),
            Behaviour::SlowDigest => self.digest(PAUSE),
            Behaviour::Account => self.account(false),
            Behaviour::Counted => self.account(true),
            Behaviour::Source => self.source(Duration::ZERO),
            Behaviour::SlowSource => self.source(PAUSE),
            Behaviour::Banner => self.banner(),
            Behaviour::Who => self.who(),
            Behaviour::Reset => self.reset(),
            Behaviour::Hold => Ok(()),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.read_bytes += count as u64;
        Ok(count)
    }

    fn echo(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            match self.read(&mut buffer)? {
                0 => return self.stream.shutdown(Shutdown::Write),
                count => self.stream.write_all(&buffer[..count])?,
            }
        }
    }

    fn digest(&mut self, pause: Duration) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            match self.read(&mut buffer)? {
                0 => break,
                count => self.digest.update(&buffer[..count]),
            }
            rest(pause);
        }
        self.answer(&self.digest.report())
    }

    /// If the first bytes are the number of all, it answers after so many, and reads on to the end: more
    /// bytes would be a fault.
    fn account(&mut self, is_counted: bool) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        let (mut number, mut has_answered) = (Vec::new(), false);
        loop {
            let count = self.read(&mut buffer)?;
            self.digest.update(&buffer[..count]);
            number.extend(buffer[..count].iter().take(8 - number.len()));
            let all = number.as_slice().try_into().map(u64::from_be_bytes);
            let has_all = count == 0 || (is_counted && all.is_ok_and(|all| all == self.digest.count()));
            if has_all && !has_answered {
                self.answer(&format!("{} {}", self.peer, self.digest.report()))?;
                has_answered = true;
            }
            if count == 0 {
                return Ok(());
            }
        }
    }

    fn source(&mut self, pause: Duration) -> io::Result<()> {
        let mut line = Vec::new();
        let mut byte = [0];
        while self.read(&mut byte)? == 1 && byte != *b"\n" {
            line.push(byte[0]);
        }
        let count = String::from_utf8_lossy(&line).trim().parse::<u64>();
        let mut left = count.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        let (mut pattern, mut buffer) = (Pattern::default(), vec![0; BUFFER]);
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(BUFFER).min(BUFFER);
            pattern.fill(&mut buffer[..part]);
            self.stream.write_all(&buffer[..part])?;
            left -= part as u64;
            rest(pause);
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.read_to_end()
    }

    fn banner(&mut self) -> io::Result<()> {
        let banner = format!("SSH-2.0-testbed {}\r\n", self.peer);
        self.stream.write_all(banner.as_bytes())?;
        self.echo()
    }

    fn who(&mut self) -> io::Result<()> {
        self.read_to_end()?;
        self.answer(&self.peer.to_string())
    }

    fn reset(&mut self) -> io::Result<()> {
        self.read(&mut [0; 1024])?;
        // A close with linger 0 sends a reset (socket(7)). The caller closes the stream.
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    fn read_to_end(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        while self.read(&mut buffer)? > 0 {}
        Ok(())
    }

    fn answer(&mut self, line: &str) -> io::Result<()> {
        self.stream.write_all(format!("{line}\n").as_bytes())?;
        self.stream.shutdown(Shutdown::Write)
    }
}

fn rest(pause: Duration) {
    if !pause.is_zero() {
        thread::sleep(pause);
    }
}
