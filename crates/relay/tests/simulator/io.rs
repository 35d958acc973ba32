//! [`Io`] on simulated sockets, with everything that a kernel may do to a caller.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use rustix::io::Errno;
use truepeer_session::budget::{Budget, Permit};
use truepeer_session::connect_as::{ConnectError, Upstream};
use truepeer_splice::Reason;

use super::offload::SimOffload;
use super::world::World;
use crate::io::{Io, Token};

/// How often the kernel causes difficulties, in percent unless stated otherwise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hardships {
    /// Something happens before or after a call.
    pub(super) meanwhile: usize,
    /// A call is interrupted.
    pub(super) interrupts: usize,
    /// A write accepts less than there is room for, or a pipe takes less than there is to read.
    pub(super) partial: usize,
    /// No pipe is available although the budget has one.
    pub(super) no_pipe: usize,
    /// The capacity of a pipe in bytes.
    pub(super) pipe_bytes: usize,
    /// How many sockets can be watched in total.
    pub(super) watches: usize,
}

impl Hardships {
    pub(super) const NONE: Self = Self {
        meanwhile: 0,
        interrupts: 0,
        partial: 0,
        no_pipe: 0,
        pipe_bytes: 256 << 10,
        watches: usize::MAX,
    };
}

/// A simulated kernel as used by one worker.
pub(super) struct SimIo {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) hardships: Hardships,
    pub(super) pipes: Budget,
    /// Err: why no session leaves user space.
    pub(super) offload: Result<SimOffload, Reason>,
    pool: Vec<SimPipe>,
}

pub(super) struct SimSocket {
    pub(super) id: usize,
    world: Rc<RefCell<World>>,
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        // While a failed test unwinds, the world may be borrowed.
        if let Ok(mut world) = self.world.try_borrow_mut() {
            world.places[self.id].connection.close();
        }
    }
}

pub(super) struct SimPipe {
    bytes: RefCell<VecDeque<u8>>,
    _permit: Permit,
}

impl SimIo {
    pub(super) fn new(world: Rc<RefCell<World>>, hardships: Hardships, pipes: Budget) -> Self {
        Self { world, hardships, pipes, offload: Err(Reason::NotLoaded), pool: Vec::new() }
    }

    pub(super) fn socket(&self, id: usize) -> SimSocket {
        SimSocket { id, world: Rc::clone(&self.world) }
    }

    pub(super) fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    fn meanwhile(&self) {
        let mut world = self.world();
        while world.dice.percent(self.hardships.meanwhile) && world.step() {}
    }

    /// A call, with the events before and after it.
    fn call<T>(&self, call: impl FnOnce(&mut World) -> Result<T, Errno>) -> Result<T, Errno> {
        self.meanwhile();
        let result = {
            let mut world = self.world();
            let interrupted = world.dice.percent(self.hardships.interrupts);
            let result = if interrupted { Err(Errno::INTR) } else { call(&mut world) };
            world.calls += usize::from(!matches!(result, Err(Errno::AGAIN)));
            result
        };
        self.meanwhile();
        result
    }

    fn partial(&self, world: &mut World, socket: &SimSocket, room: usize) -> usize {
        if !world.dice.percent(self.hardships.partial) {
            return room;
        }
        world.places[socket.id].connection.note_partial_write();
        world.dice.up_to(room)
    }

    fn write(&self, socket: &SimSocket, bytes: &[u8]) -> Result<usize, Errno> {
        self.call(|world| {
            let room = world.places[socket.id].connection.writable_bytes(bytes.len())?;
            let length = self.partial(world, socket, room);
            world.places[socket.id].connection.put_in(&bytes[..length]);
            Ok(length)
        })
    }
}

impl Io for SimIo {
    type Socket = SimSocket;
    type Pipe = SimPipe;
    type Offload = SimOffload;

    fn recv(&mut self, socket: &SimSocket, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.call(|world| {
            world.check_that_nothing_is_held(socket.id);
            let connection = &mut world.places[socket.id].connection;
            let length = connection.readable_bytes()?.min(buffer.len());
            connection.copy_to(&mut buffer[..length]);
            connection.take_out(length);
            Ok(length)
        })
    }

    fn peek(&mut self, socket: &SimSocket, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.call(|world| {
            let connection = &mut world.places[socket.id].connection;
            let length = connection.readable_bytes()?.min(buffer.len());
            connection.copy_to(&mut buffer[..length]);
            Ok(length)
        })
    }

    fn discard(&mut self, socket: &SimSocket, length: usize) -> Result<(), Errno> {
        self.world().places[socket.id].connection.take_out(length);
        Ok(())
    }

    fn send(&mut self, socket: &SimSocket, bytes: &[u8]) -> Result<usize, Errno> {
        self.write(socket, bytes)
    }

    fn shutdown_write(&mut self, socket: &SimSocket) -> Result<(), Errno> {
        self.meanwhile();
        self.world().calls += 1;
        self.world().places[socket.id].connection.shutdown_write()
    }

    fn reset_when_closed(&mut self, socket: &SimSocket) {
        self.world().places[socket.id].connection.linger_zero();
    }

    fn unacknowledged(&mut self, socket: &SimSocket) -> usize {
        self.world().places[socket.id].connection.unacknowledged()
    }

    fn pipe(&mut self) -> Option<SimPipe> {
        let refused = self.world().dice.percent(self.hardships.no_pipe);
        if refused {
            return None;
        }
        let fresh =
            || self.pipes.take(1).map(|permit| SimPipe { bytes: RefCell::default(), _permit: permit });
        self.pool.pop().or_else(fresh)
    }

    fn recycle(&mut self, pipe: SimPipe) {
        assert!(pipe.bytes.borrow().is_empty(), "a pipe is given back with bytes in it");
        self.pool.push(pipe);
    }

    fn splice_in(&mut self, socket: &SimSocket, pipe: &SimPipe) -> Result<usize, Errno> {
        assert!(pipe.bytes.borrow().is_empty(), "bytes are moved into a pipe that holds others");
        self.call(|world| {
            world.check_that_nothing_is_held(socket.id);
            let available = world.places[socket.id].connection.spliceable_bytes()?;
            let most = available.min(self.hardships.pipe_bytes);
            let length = if most > 0 && world.dice.percent(self.hardships.partial) {
                world.dice.up_to(most)
            } else {
                most
            };
            let bytes = world.places[socket.id].connection.take_out(length);
            pipe.bytes.borrow_mut().extend(bytes);
            world.spliced_bytes += length;
            Ok(length)
        })
    }

    fn splice_out(&mut self, pipe: &SimPipe, socket: &SimSocket, length: usize) -> Result<usize, Errno> {
        let mut held = pipe.bytes.borrow_mut();
        assert!(length <= held.len(), "more is moved out of a pipe than was moved into it");
        let moved = self.write(socket, &held.make_contiguous()[..length])?;
        held.drain(..moved);
        Ok(moved)
    }

    fn connect(&mut self, upstream: &Upstream) -> Result<SimSocket, ConnectError> {
        let id = self.world().dial(upstream)?;
        self.meanwhile();
        Ok(self.socket(id))
    }

    fn connect_result(&mut self, socket: &SimSocket) -> Result<(), Errno> {
        self.meanwhile();
        self.world().places[socket.id].connection.connect_result()
    }

    fn watch(&mut self, socket: &SimSocket, token: Token) -> Result<(), Errno> {
        self.meanwhile();
        if self.hardships.watches == 0 {
            return Err(Errno::NOSPC);
        }
        self.hardships.watches -= 1;
        self.world().places[socket.id].connection.watch(token);
        Ok(())
    }

    fn local_address(&mut self, _: &SimSocket) -> Option<SocketAddr> {
        Some(SocketAddr::from(([192, 0, 2, 200], 8443)))
    }

    fn offload(&self) -> Result<&SimOffload, Reason> {
        self.offload.as_ref().map_err(|reason| *reason)
    }
}
