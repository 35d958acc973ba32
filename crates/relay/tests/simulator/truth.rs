//! Runs the same checks on the simulated kernel and on the real one.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use std::rc::Rc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use truepeer_session::budget::Budget;
use truepeer_session::connect_as::Upstream;
use truepeer_splice::Reason;

use super::case::{ROOMS, script};
use super::io::{Hardships, SimIo};
use super::party::Ending;
use super::world::{Backend, Dial, World};
use crate::io::Io;
use crate::kernel::{Kernel, KernelSocket};

/// One connection with a near end and a far end.
trait Lab {
    type Io: Io;

    fn io(&mut self) -> &mut Self::Io;
    /// The near end, which is watched.
    fn connect(&mut self) -> <Self::Io as Io>::Socket;
    /// A connection attempt that is refused and whose error was not read yet.
    fn connect_to_nobody(&mut self) -> <Self::Io as Io>::Socket;
    fn they_send(&mut self, bytes: &[u8]);
    fn they_send_urgently(&mut self, bytes: &[u8]);
    fn they_read_all(&mut self);
    fn they_finish(&mut self);
    fn they_reset(&mut self);
    /// The next event of the near end.
    fn event(&mut self) -> Option<EventFlags>;

    fn recv(&mut self, socket: &<Self::Io as Io>::Socket) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; 1000];
        let length = self.io().recv(socket, &mut buffer)?;
        buffer.truncate(length);
        Ok(buffer)
    }
}

struct RealLab {
    kernel: Kernel,
    them: Option<TcpStream>,
}

impl RealLab {
    fn new() -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        Self { kernel: Kernel::new(epoll, Budget::new(1), Err(Reason::NotLoaded)), them: None }
    }

    fn dial(&mut self, backend: SocketAddr) -> KernelSocket {
        self.kernel.connect(&Upstream { source: None, backend, mark: 0, path_mtu: None }).expect("an attempt")
    }

    fn them(&mut self) -> &mut TcpStream {
        self.them.as_mut().expect("the far end is open")
    }
}

impl Lab for RealLab {
    type Io = Kernel;

    fn io(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    fn connect(&mut self) -> KernelSocket {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let socket = self.dial(listener.local_addr().expect("its address"));
        self.them = Some(listener.accept().expect("a connection").0);
        self.kernel.watch(&socket, 1).expect("a watch");
        socket
    }

    fn connect_to_nobody(&mut self) -> KernelSocket {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
        let address = listener.local_addr().expect("its address");
        drop(listener);
        self.dial(address)
    }

    fn they_send(&mut self, bytes: &[u8]) {
        self.them().write_all(bytes).expect("room");
    }

    fn they_send_urgently(&mut self, bytes: &[u8]) {
        rustix::net::send(self.them(), bytes, SendFlags::OOB).expect("room");
    }

    fn they_read_all(&mut self) {
        self.them().set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
        // Ends by time-out.
        let _ = self.them().read_to_end(&mut Vec::new());
    }

    fn they_finish(&mut self) {
        self.them().shutdown(std::net::Shutdown::Write).expect("a connection");
    }

    fn they_reset(&mut self) {
        sockopt::set_socket_linger(self.them(), Some(Duration::ZERO)).expect("an option");
        self.them = None;
    }

    fn event(&mut self) -> Option<EventFlags> {
        let mut events = Vec::with_capacity(2);
        let soon = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let space = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(self.kernel.epoll(), space, Some(&soon)).expect("events");
        events.first().map(|event| event.flags)
    }
}

struct SimLab(SimIo);

impl SimLab {
    fn new() -> Self {
        Self(SimIo::new(Rc::new(RefCell::new(World::new(1))), Hardships::NONE, Budget::new(1)))
    }

    fn dial(&mut self, dial: Dial) -> super::io::SimSocket {
        let nothing = script(Vec::new(), 0, Ending::Never);
        let dials = [dial].into();
        let backend = Backend { script: nothing.clone(), rooms: ROOMS, dials, expected_opening: Vec::new() };
        self.0.world().accept(1, nothing, ROOMS, backend);
        let backend = SocketAddr::from(([127, 0, 0, 1], 80));
        let socket =
            self.0.connect(&Upstream { source: None, backend, mark: 0, path_mtu: None }).expect("an attempt");
        self.0.world().unpair(1);
        socket
    }

    fn them<T>(&mut self, act: impl FnOnce(&mut super::connection::Connection) -> T) -> T {
        act(&mut self.0.world().places[1].connection)
    }
}

impl Lab for SimLab {
    type Io = SimIo;

    fn io(&mut self) -> &mut SimIo {
        &mut self.0
    }

    fn connect(&mut self) -> super::io::SimSocket {
        let socket = self.dial(Dial::AtOnce);
        self.0.watch(&socket, 1).expect("a watch");
        socket
    }

    fn connect_to_nobody(&mut self) -> super::io::SimSocket {
        self.dial(Dial::FailsAtOnce(Errno::CONNREFUSED))
    }

    fn they_send(&mut self, bytes: &[u8]) {
        self.them(|connection| connection.receive(bytes));
    }

    fn they_send_urgently(&mut self, bytes: &[u8]) {
        self.them(|connection| {
            connection.receive(bytes);
            connection.receive_urgent();
        });
    }

    fn they_read_all(&mut self) {
        self.them(|connection| {
            while connection.can_deliver() || connection.arrived_bytes() > 0 {
                connection.take_arrived(connection.arrived_bytes());
                if connection.can_deliver() {
                    connection.deliver(usize::MAX);
                }
            }
        });
    }

    fn they_finish(&mut self) {
        self.them(super::connection::Connection::receive_fin);
    }

    fn they_reset(&mut self) {
        self.them(super::connection::Connection::receive_reset);
    }

    fn event(&mut self) -> Option<EventFlags> {
        self.them(super::connection::Connection::take_event).map(|(_, flags)| flags)
    }
}

/// Runs each check on both kernels.
macro_rules! questions {
    ($($name:ident)+) => {
        mod real {
            $(#[test] fn $name() { super::$name(&mut super::RealLab::new()); })+
        }
        mod simulated {
            $(#[test] fn $name() { super::$name(&mut super::SimLab::new()); })+
        }
    };
}

questions! {
    a_reset_leaves_earlier_bytes_and_is_reported_once
    a_write_takes_the_error_and_a_read_then_sees_an_orderly_end
    a_reset_after_an_end_reads_like_the_end
    a_reset_is_an_edge_with_everything_in_it
    a_write_reports_a_refusal_once
    an_announced_end_makes_no_further_edge
    room_makes_an_edge_only_after_a_write_found_none
    reads_stop_before_an_urgent_byte
}

const IN_OUT: EventFlags = EventFlags::IN.union(EventFlags::OUT);
const ENDED: EventFlags = IN_OUT.union(EventFlags::RDHUP);
const BROKEN: EventFlags = ENDED.union(EventFlags::HUP).union(EventFlags::ERR);

fn a_reset_leaves_earlier_bytes_and_is_reported_once(lab: &mut impl Lab) {
    let socket = lab.connect();
    assert_eq!(lab.recv(&socket), Err(Errno::AGAIN));
    lab.they_send(b"last words");
    lab.they_reset();
    assert_eq!(lab.recv(&socket), Ok(b"last words".to_vec()));
    assert_eq!(lab.recv(&socket), Err(Errno::CONNRESET));
    assert_eq!(lab.recv(&socket), Ok(Vec::new()));
    assert_eq!(lab.io().send(&socket, b"hello?"), Err(Errno::PIPE));
    assert_eq!(lab.io().shutdown_write(&socket), Err(Errno::NOTCONN));
    assert_eq!(lab.io().unacknowledged(&socket), 0);
}

fn a_write_takes_the_error_and_a_read_then_sees_an_orderly_end(lab: &mut impl Lab) {
    let socket = lab.connect();
    lab.they_send(b"last words");
    lab.they_reset();
    assert_eq!(lab.io().send(&socket, b"hello?"), Err(Errno::CONNRESET));
    assert_eq!(lab.recv(&socket), Ok(b"last words".to_vec()));
    assert_eq!(lab.recv(&socket), Ok(Vec::new()));
    assert_eq!(lab.event(), Some(BROKEN - EventFlags::ERR));
}

fn a_reset_after_an_end_reads_like_the_end(lab: &mut impl Lab) {
    let socket = lab.connect();
    lab.they_send(b"last words");
    lab.they_finish();
    lab.they_reset();
    assert_eq!(lab.recv(&socket), Ok(b"last words".to_vec()));
    assert_eq!(lab.recv(&socket), Ok(Vec::new()));
    assert_eq!(lab.event(), Some(BROKEN));
    assert_eq!(lab.io().send(&socket, b"hello?"), Err(Errno::PIPE));
    assert_eq!(lab.recv(&socket), Ok(Vec::new()));
}

fn a_reset_is_an_edge_with_everything_in_it(lab: &mut impl Lab) {
    let socket = lab.connect();
    assert_eq!(lab.event(), Some(EventFlags::OUT));
    lab.they_reset();
    assert_eq!(lab.event(), Some(BROKEN));
    assert_eq!(lab.event(), None);
    assert_eq!(lab.io().connect_result(&socket), Err(Errno::CONNRESET));
    assert_eq!(lab.recv(&socket), Ok(Vec::new()));
}

fn a_write_reports_a_refusal_once(lab: &mut impl Lab) {
    let socket = lab.connect_to_nobody();
    assert_eq!(lab.io().send(&socket, b"hello?"), Err(Errno::CONNREFUSED));
    assert_eq!(lab.io().connect_result(&socket), Ok(()));
}

fn an_announced_end_makes_no_further_edge(lab: &mut impl Lab) {
    let socket = lab.connect();
    assert_eq!(lab.event(), Some(EventFlags::OUT));
    lab.they_send(b"hello");
    assert_eq!(lab.event(), Some(IN_OUT));
    assert_eq!(lab.recv(&socket), Ok(b"hello".to_vec()));
    assert_eq!(lab.event(), None);
    lab.they_send(b"good-bye");
    lab.they_finish();
    assert_eq!(lab.event(), Some(ENDED));
    assert_eq!(lab.recv(&socket), Ok(b"good-bye".to_vec()));
    assert_eq!(lab.event(), None);
    assert_eq!(lab.recv(&socket), Ok(Vec::new()));
    assert_eq!(lab.io().shutdown_write(&socket), Ok(()));
}

fn room_makes_an_edge_only_after_a_write_found_none(lab: &mut impl Lab) {
    let socket = lab.connect();
    assert_eq!(lab.event(), Some(EventFlags::OUT));
    assert_eq!(lab.io().send(&socket, b"a little"), Ok(8));
    lab.they_read_all();
    assert_eq!(lab.event(), None);
    let much = vec![0; 1 << 20];
    while lab.io().send(&socket, &much).is_ok() {}
    assert_eq!(lab.event(), None);
    lab.they_read_all();
    assert_eq!(lab.event(), Some(EventFlags::OUT));
    assert_eq!(lab.io().unacknowledged(&socket), 0);
}

fn reads_stop_before_an_urgent_byte(lab: &mut impl Lab) {
    let socket = lab.connect();
    assert_eq!(lab.event(), Some(EventFlags::OUT));
    lab.they_send(b"hello");
    lab.they_send_urgently(b"U");
    lab.they_send(b"world");
    assert_eq!(lab.event(), Some(IN_OUT | EventFlags::PRI));
    let pipe = lab.io().pipe().expect("a pipe");
    assert_eq!(lab.io().splice_in(&socket, &pipe), Ok(5));
    let next = lab.io().pipe();
    assert!(next.is_none(), "the budget is one pipe");
    assert_eq!(lab.recv(&socket), Ok(b"Uworld".to_vec()));
    assert_eq!(lab.event(), None);
}
