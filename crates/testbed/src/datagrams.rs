//! Datagrams: senders, backends, and headers written without truepeer's own encoder.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::client;
use crate::wait::wait_for;

/// How long an answer may take on a busy machine.
const STALL: Duration = Duration::from_secs(10);

/// A v2 header for a datagram (PROXY 2.2).
pub fn v2(client: impl Display, destination: impl Display) -> Result<Vec<u8>> {
    v2_with_tlvs(client, destination, &[])
}

/// The same, with TLVs.
pub fn v2_with_tlvs(
    client: impl Display,
    destination: impl Display,
    tlvs: &[(u8, &[u8])],
) -> Result<Vec<u8>> {
    let mut header = client::v2_with_tlvs(client, destination, tlvs)?;
    header[13] += 1; // STREAM to DGRAM
    Ok(header)
}

/// A Simple Proxy Protocol header.
pub fn spp(client: impl Display, proxy: impl Display) -> Result<Vec<u8>> {
    let (client, proxy): (SocketAddr, SocketAddr) = (client.to_string().parse()?, proxy.to_string().parse()?);
    let mut header = vec![0x56, 0xEC];
    for address in [client, proxy] {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        header.extend(ip.octets());
    }
    header.extend(client.port().to_be_bytes());
    header.extend(proxy.port().to_be_bytes());
    Ok(header)
}

/// Waits until a port that was just closed is free. A program that another test starts may hold it between
/// fork and exec.
fn bind_to(address: &impl Display) -> Result<UdpSocket> {
    let mut outcome = UdpSocket::bind(address.to_string());
    let _ = wait_for("the port to be free", || {
        if outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse) {
            outcome = UdpSocket::bind(address.to_string());
        }
        !outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    });
    outcome.with_context(|| format!("bind {address}"))
}

/// Makes reads of a socket time out instead of hanging.
pub fn socket(bind: impl Display) -> Result<UdpSocket> {
    let socket = bind_to(&bind)?;
    socket.set_read_timeout(Some(STALL))?;
    Ok(socket)
}

/// A sender on loopback, of the family of `to`.
pub fn sender_towards(to: &str) -> Result<UdpSocket> {
    let bind = if to.starts_with('[') { "[::1]:0" } else { "127.0.0.1:0" };
    let socket = socket(bind)?;
    socket.connect(to)?;
    Ok(socket)
}

/// Sends one datagram that consists of `parts`, on a connected socket.
pub fn send(socket: &UdpSocket, parts: &[&[u8]]) -> Result<()> {
    let datagram = parts.concat();
    let sent = socket.send(&datagram).with_context(|| format!("send {} bytes", datagram.len()))?;
    ensure!(sent == datagram.len());
    Ok(())
}

/// Receives the next datagram.
pub fn receive(socket: &UdpSocket) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).context("no answer")?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Sends a datagram and receives the answer.
pub fn ask(socket: &UdpSocket, parts: &[&[u8]]) -> Result<Vec<u8>> {
    send(socket, parts)?;
    receive(socket)
}

/// Checks that nothing arrives for a while. It always takes that long, so use it only for what must not
/// arrive.
pub fn hears_nothing(socket: &UdpSocket) -> Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let heard = socket.recv(&mut [0; 65_536]);
    socket.set_read_timeout(Some(STALL))?;
    match heard {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
        other => anyhow::bail!("expected silence, heard {other:?}"),
    }
}

/// A datagram that a backend has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The source address that it saw.
    pub from: SocketAddr,
    /// The payload.
    pub payload: Vec<u8>,
}

/// A backend's answers to a datagram.
pub type DatagramAnswer = fn(&Seen) -> Vec<Vec<u8>>;

/// An unmodified server in this process: it records each source address and answers.
#[derive(Debug)]
pub struct Backend {
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Backend {
    /// Sends every datagram back, on all `addresses` in the calling thread's network namespace.
    pub fn echo<A: Display>(addresses: &[A]) -> Result<Backend> {
        Backend::start(addresses, |seen| vec![seen.payload.clone()])
    }

    /// Answers with the source address and port, and the payload after a space.
    pub fn who<A: Display>(addresses: &[A]) -> Result<Backend> {
        Backend::start(addresses, answer_who)
    }

    /// Never answers.
    pub fn silent<A: Display>(addresses: &[A]) -> Result<Backend> {
        Backend::start(addresses, |_| Vec::new())
    }

    /// Answers each datagram with these, on all `addresses` in the calling thread's network namespace.
    pub fn start<A: Display>(addresses: &[A], answer: DatagramAnswer) -> Result<Backend> {
        let mut backend = Backend { seen: Arc::default(), stop: Arc::default(), threads: Vec::new() };
        for address in addresses {
            let socket = bind_to(address)?;
            backend.serve_on(socket, answer)?;
        }
        Ok(backend)
    }

    /// Like [`Backend::who`], on a socket that the test has created.
    pub fn who_with(socket: UdpSocket) -> Result<Backend> {
        let mut backend = Backend::who::<&str>(&[])?;
        backend.serve_on(socket, answer_who)?;
        Ok(backend)
    }

    fn serve_on(&mut self, socket: UdpSocket, answer: DatagramAnswer) -> Result<()> {
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20)?;
        let (seen, stop) = (Arc::clone(&self.seen), Arc::clone(&self.stop));
        self.threads.push(std::thread::spawn(move || serve(&socket, &seen, &stop, answer)));
        Ok(())
    }

    /// Everything that it has received.
    pub fn seen(&self) -> impl Deref<Target = Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has received this many.
    pub fn wait_seen(&self, count: usize) -> Result<()> {
        let outcome = wait_for(&format!("{count} datagrams at the backend"), || self.seen().len() >= count);
        outcome.with_context(|| format!("it has received {}", self.seen().len()))
    }

    /// Checks that the last one came from `client` with this payload.
    pub fn saw_last(&self, client: &str, payload: &[u8]) -> Result<()> {
        let seen = self.seen();
        let last = seen.last().context("the backend has received nothing")?;
        ensure!(last.from.to_string() == client, "the backend saw {} instead of {client}", last.from);
        ensure!(last.payload == payload, "{} bytes, not the {} sent", last.payload.len(), payload.len());
        Ok(())
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Its panic has been printed. The test fails by the missing datagrams.
            let _ = thread.join();
        }
    }
}

fn answer_who(seen: &Seen) -> Vec<Vec<u8>> {
    vec![[seen.from.to_string().as_bytes(), b" ", &seen.payload].concat()]
}

fn serve(socket: &UdpSocket, seen: &Mutex<Vec<Seen>>, stop: &AtomicBool, answer: DatagramAnswer) {
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
        let one = Seen { from, payload: buffer[..length].to_vec() };
        let answers = answer(&one);
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        for datagram in answers {
            if let Err(error) = socket.send_to(&datagram, from) {
                eprintln!("backend: {} bytes to {from}: {error}", datagram.len());
            }
        }
    }
}
