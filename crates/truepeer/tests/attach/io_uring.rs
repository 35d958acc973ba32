//! A running server that accepts, reads and writes by io_uring. It makes no system calls that a tracer or a
//! preloaded library could intercept.
//!
//! The server is this test binary, started with other arguments. It has the only unsafe code of these tests,
//! because io_uring takes pointers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::{env, io};

use anyhow::{Context, Result, ensure};
use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue, opcode, types::Fd};
use socket2::{SockAddr, Socket};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Program, Running, client};

use crate::kit::{attach, converse};

/// The first argument that turns this binary into the server.
const AS_SERVER: &str = "__io_uring";
const LEN: usize = 300_000;

pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [role, how, address] = args.as_slice() else { return None };
    if role != AS_SERVER {
        return None;
    }
    let Err(error) = Server::start(how, address).and_then(|mut server| server.serve());
    eprintln!("{error:#}");
    Some(ExitCode::FAILURE)
}

/// `plain`: each accept() reports the address, filled in by the kernel. `multishot`: one request for all
/// connections, which reports no address, so the server calls getpeername().
pub(crate) fn a_running_io_uring_server_names_the_client(bed: &Bed) -> Result<()> {
    if let Some(reason) = is_missing() {
        return truepeer_testbed::skip(reason);
    }
    let listeners = [
        ("plain", "127.0.0.1:80"),
        ("plain", "[::1]:80"),
        ("multishot", "127.0.0.1:81"),
        ("multishot", "[::1]:81"),
    ];
    let servers: Vec<Running> =
        listeners.iter().map(|(how, at)| start(bed, how, at)).collect::<Result<_>>()?;
    attach(bed, &["--port", "80", "--port", "81"])?;
    for ((how, address), server) in listeners.iter().zip(&servers) {
        let ip = if address.starts_with('[') { "[2001:db8::7]" } else { "203.0.113.7" };
        let destination = if address.starts_with('[') { "[2001:db8::1]:443" } else { "192.0.2.1:443" };
        // Guessed correctly, guessed incorrectly, in parts.
        for (port, tlv_len, first) in
            [(1001, None, 0), (1002, None, 0), (1003, Some(20), 0), (1004, None, 20)]
        {
            let who = format!("{ip}:{port}");
            let tlv = vec![7; tlv_len.unwrap_or(0)];
            let tlvs: &[(u8, &[u8])] = if tlv_len.is_some() { &[(4, &tlv)] } else { &[] };
            let header = client::v2_with_tlvs(&who, destination, tlvs)?;
            let answer =
                ask_in_parts(address, &header, first).with_context(|| format!("{how} {address}, {who}"))?;
            let expected = [format!("{who}\n").as_bytes(), &Pattern::bytes(LEN)].concat();
            ensure!(answer == expected, "{how} {address}, {who}: {} bytes", answer.len());
        }
        ensure!(server.is_alive(), "{how} {address}: {}", server.log());
    }
    Ok(())
}

/// Why such a server can't run here, if it can't.
pub(crate) fn is_missing() -> Option<String> {
    IoUring::new(2).err().map(|error| format!("no io_uring here: {error}"))
}

fn start(bed: &Bed, how: &str, address: &str) -> Result<Running> {
    let server = program(how, address)?.start(bed)?;
    server.wait_listening(address)?;
    Ok(server)
}

/// The server's command line.
pub(crate) fn program(how: &str, address: &str) -> Result<Program> {
    let exe = env::current_exe().context("the path of this program")?;
    Ok(Program::new(exe).args([AS_SERVER, how, address]))
}

/// The header's `first` bytes alone, then the rest with the data.
fn ask_in_parts(to: &str, header: &[u8], first: usize) -> Result<Vec<u8>> {
    let mut stream = client::connect(to)?;
    let (before, after) = header.split_at(first);
    io::Write::write_all(&mut stream, before)?;
    converse(stream, &[after, &Pattern::bytes(LEN)].concat())
}

/// Serves one connection after the other: sends the client that it sees, then echoes.
struct Server {
    ring: IoUring,
    listener: TcpListener,
    is_multishot: bool,
    /// The multishot request is active; its results.
    is_armed: bool,
    accepted: VecDeque<OwnedFd>,
    /// The result of the other request, of which there is one at a time.
    done: Option<i32>,
}

/// The request that a completion belongs to.
const CALL: u64 = 1;
const ACCEPT: u64 = 2;

impl Server {
    fn start(how: &str, address: &str) -> Result<Server> {
        Ok(Server {
            ring: IoUring::new(8)?,
            listener: TcpListener::bind(address).context("bind")?,
            is_multishot: how == "multishot",
            is_armed: false,
            accepted: VecDeque::new(),
            done: None,
        })
    }

    fn serve(&mut self) -> Result<Infallible> {
        loop {
            let (stream, who) = if self.is_multishot { self.accept_next() } else { self.accept_one() }?;
            let who = who.as_socket().context("no address")?;
            println!("{who} accepted");
            if let Err(error) = self.answer(&stream, who) {
                eprintln!("{who}: {error}");
            }
        }
    }

    fn accept_one(&mut self) -> io::Result<(Socket, SockAddr)> {
        let listener = Fd(self.listener.as_raw_fd());
        // SAFETY: try_init provides memory for an address and its length, which the kernel fills in before
        // `call` returns. The descriptor is new and has no other owner.
        unsafe {
            SockAddr::try_init(|storage, len| {
                let accept = opcode::Accept::new(listener, storage.cast(), len).build();
                Ok(Socket::from_raw_fd(self.call(&accept)?))
            })
        }
    }

    fn accept_next(&mut self) -> io::Result<(Socket, SockAddr)> {
        loop {
            if let Some(stream) = self.accepted.pop_front() {
                let socket = Socket::from(stream);
                let who = socket.peer_addr()?;
                return Ok((socket, who));
            }
            if !self.is_armed {
                let accept =
                    opcode::AcceptMulti::new(Fd(self.listener.as_raw_fd())).build().user_data(ACCEPT);
                // SAFETY: the request contains no pointers, and its listener lives as long as the ring.
                unsafe { self.ring.submission().push(&accept) }.map_err(io::Error::other)?;
                self.is_armed = true;
            }
            self.turn()?;
        }
    }

    fn answer(&mut self, stream: &Socket, who: SocketAddr) -> io::Result<()> {
        let stream = Fd(stream.as_raw_fd());
        self.send(stream, format!("{who}\n").as_bytes())?;
        let mut buffer = [0; 64 * 1024];
        loop {
            let receive = opcode::Recv::new(stream, buffer.as_mut_ptr(), 64 * 1024).build();
            // SAFETY: the buffer has the length given, and nothing else uses it until `call` returns.
            match usize::try_from(unsafe { self.call(&receive) }?) {
                Ok(count) if count > 0 => self.send(stream, &buffer[..count])?,
                _ => return Ok(()),
            }
        }
    }

    fn send(&mut self, stream: Fd, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
            // SAFETY: the bytes live until `call` returns, and the kernel only reads them.
            let sent = unsafe { self.call(&opcode::Send::new(stream, bytes.as_ptr(), len).build()) }?;
            bytes = &bytes[usize::try_from(sent).map_err(io::Error::other)?..];
        }
        Ok(())
    }

    /// Submits a request and waits until it is done.
    ///
    /// # Safety
    /// Everything that the request points to must be valid until this returns.
    unsafe fn call(&mut self, request: &Entry) -> io::Result<RawFd> {
        let request = request.clone().user_data(CALL);
        // SAFETY: the caller guarantees that everything that the request points to is valid until this
        // returns. It returns before the request is done only if the ring itself fails, which ends
        // the process.
        unsafe { self.ring.submission().push(&request) }.map_err(io::Error::other)?;
        loop {
            self.turn()?;
            if let Some(result) = self.done.take() {
                return checked(result);
            }
        }
    }

    /// Waits until any request is done.
    fn turn(&mut self) -> io::Result<()> {
        self.ring.submit_and_wait(1)?;
        for done in self.ring.completion() {
            if done.user_data() == CALL {
                self.done = Some(done.result());
                continue;
            }
            self.is_armed = cqueue::more(done.flags());
            // SAFETY: the kernel has just created this descriptor for this process, and it has no other
            // owner.
            self.accepted.push_back(unsafe { OwnedFd::from_raw_fd(checked(done.result())?) });
        }
        Ok(())
    }
}

fn checked(result: i32) -> io::Result<RawFd> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}
