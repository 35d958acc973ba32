//! A server for each way of waiting, on a host that may be unable to connect to its own listeners: headers in
//! two parts, senders that write nothing at first, and clients that say nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::sockets::{self, wait_until_sent};
use truepeer_testbed::{Bed, Host, Program, Running, Topology, User, client, wait_for};

use crate::kit::{PYTHON, header_of, under_by, via, wait_until_served_without_header};

pub(crate) const CLIENT: &str = "203.0.113.7:5000";
pub(crate) const QUESTION: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
/// How a server waits for connections, and its port.
const WAYS: [(&str, u16); 8] = [
    ("level", 8081),
    ("edge", 8082),
    ("once", 8083),
    ("exclusive", 8084),
    ("accept", 8085),
    ("poll", 8086),
    ("select", 8087),
    ("sigio", 8088),
];
/// How much higher the port is of a server whose clients may do without a header.
const OPTIONAL: u16 = 20;

/// Answers with the client that it sees, once something has come from it. Says when it has accepted all.
/// `raw` waits without the C library.
pub(crate) const SERVER: &str = "\
import select, socket, sys
way, port, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
if device:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
listener.bind(('::', port))
listener.listen()
listener.setblocking(way == 'accept')
def serve():
    connection, peer = listener.accept()
    connection.setblocking(True)
    connection.recv(100)
    connection.sendall(b'%s %d\\n' % (peer[0].encode(), peer[1]))
    connection.close()
def serve_all():
    try:
        while True:
            serve()
    except BlockingIOError:
        print('waits')
if way == 'accept':
    while True:
        serve()
if way == 'sigio':
    import fcntl, os, signal
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    fcntl.fcntl(listener, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(listener, fcntl.F_SETSIG, number)
    fcntl.fcntl(listener, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    while True:
        serve_all()
        signal.sigwaitinfo({number})
if way == 'raw':
    import ctypes, platform, struct
    libc = ctypes.CDLL(None)
    ppoll = 73 if platform.machine() == 'aarch64' else 271
    asked = ctypes.create_string_buffer(struct.pack('ihh', listener.fileno(), select.POLLIN, 0), 8)
    one = ctypes.c_long(1)
    while True:
        libc.syscall(ppoll, asked, one, None, None, one)
        serve_all()
if way == 'libaio':
    import ctypes, platform, struct
    libc = ctypes.CDLL(None)
    io_setup, io_submit, io_getevents = (0, 2, 4) if platform.machine() == 'aarch64' else (206, 209, 208)
    context, one, event = ctypes.c_ulong(), ctypes.c_long(1), ctypes.create_string_buffer(32)
    assert libc.syscall(io_setup, 1, ctypes.byref(context)) == 0
    # struct iocb with IOCB_CMD_POLL
    poll = struct.pack('QIIHhIQQqQII', 0, 0, 0, 5, 0, listener.fileno(), select.POLLIN, 0, 0, 0, 0, 0)
    poll = ctypes.create_string_buffer(poll, len(poll))
    polls = (ctypes.c_void_p * 1)(ctypes.addressof(poll))
    while True:
        assert libc.syscall(io_submit, context, one, polls) == 1
        assert libc.syscall(io_getevents, context, one, one, event, None) == 1
        serve_all()
if way == 'select':
    while True:
        select.select([listener], [], [])
        serve_all()
if way == 'poll':
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while True:
        poll.poll()
        serve_all()
flags = {'level': 0, 'edge': select.EPOLLET, 'once': select.EPOLLONESHOT, 'exclusive': select.EPOLLEXCLUSIVE}[way]
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN | flags)
while True:
    for number, events in epoll.poll():
        assert number == listener.fileno()
        if way == 'level':
            try:
                serve()
            except BlockingIOError:
                pass
        else:
            serve_all()
        if way == 'once':
            epoll.modify(listener, select.EPOLLIN | flags)
";

/// Each server, by two connections at a time whose headers come in two parts, by senders that write nothing
/// at first, and by clients that say nothing.
pub(crate) fn are_served(
    bed: &Bed,
    device: &str,
    obstruct: impl Fn(&Bed, &Host) -> Result<()>,
) -> Result<()> {
    are_served_by(via(), bed, device, obstruct)
}

/// Under this mechanism.
pub(crate) fn are_served_by(
    mechanism: &str,
    bed: &Bed,
    device: &str,
    obstruct: impl Fn(&Bed, &Host) -> Result<()>,
) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    obstruct(bed, host)?;
    let all = |more: u16, options: &[&str]| -> Result<Vec<Server>> {
        let start = |(way, port): &(&str, u16)| {
            Server::start_by(mechanism, bed, host, (way, port + more), device, options)
        };
        WAYS.iter().map(start).collect()
    };
    let servers = all(0, &[])?;
    for server in &servers {
        for _ in 0..2 {
            let parts = || is_served_in_parts(host, server.address);
            lb.run(parts)?.with_context(|| server.log())?;
        }
    }
    are_served_after_silence(lb, host, &servers)?;
    let options = ["--header", "optional", "--header-timeout", "1s", "--verbose"];
    let optional = all(OPTIONAL, &options)?;
    are_served_in_silence(lb, &optional)?;
    servers.iter().chain(&optional).try_for_each(|server| {
        ensure!(server.running.is_alive(), "{}", server.log());
        Ok(())
    })
}

/// A program that waits for connections, and where the other host reaches it.
pub(crate) struct Server {
    way: String,
    pub(crate) running: Running,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Under this mechanism.
    pub(crate) fn start_by(
        mechanism: &str,
        bed: &Bed,
        host: &Host,
        (way, port): (&str, u16),
        device: &str,
        options: &[&str],
    ) -> Result<Self> {
        let script = bed.write(&bed.fresh_name("server.py"), SERVER)?;
        let words = [way, &port.to_string(), device];
        let python = Program::new(PYTHON).arg("-u").arg(script).args(words).in_netns(&host.netns);
        let options = [&["--allow", "10.77.0.1"], options].concat();
        let running = under_by(mechanism, python.as_user(User::TESTER), &options).start(bed)?;
        let address = host.at(false, port);
        running.wait_listening(address)?;
        Ok(Self { way: way.to_owned(), running, address })
    }

    pub(crate) fn log(&self) -> String {
        format!("{}: {}", self.way, self.running.log())
    }
}

pub(crate) fn is_served_in_parts(host: &Host, address: SocketAddr) -> Result<()> {
    let header = header_of(CLIENT)?;
    let mut both = [client::connect(address)?, client::connect(address)?];
    for stream in &mut both {
        stream.write_all(&header[..20])?;
        wait_until_sent(stream)?;
    }
    host.run(|| wait_until_accepted(address.port()))??;
    for stream in &mut both {
        stream.write_all(&header[20..])?;
        stream.write_all(QUESTION)?;
    }
    both.into_iter().try_for_each(names_the_client)
}

/// The first byte of the header comes when the program's accept() has long been called: the kernel, which
/// holds a silent connection back, has given it up.
fn are_served_after_silence(lb: &Host, host: &Host, servers: &[Server]) -> Result<()> {
    let connect = |server: &Server| client::connect(server.address);
    let silent: Vec<TcpStream> = lb.run(|| servers.iter().map(connect).collect::<Result<_>>())??;
    let first = [header_of(CLIENT)?, QUESTION.to_vec()].concat();
    for (mut stream, server) in silent.into_iter().zip(servers) {
        let sender = stream.local_addr()?;
        host.run(|| wait_until_given_up(sender, server.address.port()))?.with_context(|| server.log())?;
        stream.write_all(&first)?;
        names_the_client(stream).with_context(|| format!("after silence: {}", server.log()))?;
    }
    Ok(())
}

/// A client without a header waits for the server to speak first.
fn are_served_in_silence(lb: &Host, servers: &[Server]) -> Result<()> {
    let connect = |server: &Server| client::connect(server.address);
    let silent: Vec<TcpStream> = lb.run(|| servers.iter().map(connect).collect::<Result<_>>())??;
    for (mut stream, server) in silent.into_iter().zip(servers) {
        let sender = stream.local_addr()?;
        wait_until_served_without_header(&server.running)?;
        // Its connection is in no queue of the kernel's, so the program accepts it only if it was woken.
        stream.write_all(QUESTION)?;
        let mut said = String::new();
        stream.read_to_string(&mut said).with_context(|| format!("in silence: {}", server.log()))?;
        let expected = format!("{} {}\n", sender.ip(), sender.port());
        ensure!(said.ends_with(&expected), "{said:?} instead of {expected:?}: {}", server.log());
    }
    Ok(())
}

pub(crate) fn names_the_client(mut stream: TcpStream) -> Result<()> {
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    ensure!(said.ends_with("203.0.113.7 5000\n"), "{said:?}");
    Ok(())
}

const ESTABLISHED: u8 = 1;
const LISTENS: u8 = 10;

/// Waits until the listener's queue is empty.
pub(crate) fn wait_until_accepted(port: u16) -> Result<()> {
    wait_for("the connections to be accepted", || {
        let all = sockets::all();
        let mut listeners = all.iter().filter(|one| one.state == LISTENS && one.local.port() == port);
        listeners.all(|listener| listener.unread == 0)
    })
}

/// Waits until the kernel has given up a silent connection, and it has been accepted.
fn wait_until_given_up(sender: SocketAddr, port: u16) -> Result<()> {
    wait_for("the kernel to give up the silent connection", || {
        sockets::all().iter().any(|one| one.remote == sender && one.state == ESTABLISHED)
    })?;
    wait_until_accepted(port)
}
