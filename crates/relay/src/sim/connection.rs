//! One simulated TCP connection: our socket with its edges, what is under way, and the other end's kernel.
//!
//! Modelled after Linux (`net/ipv4/tcp.c`, `tcp_input.c`): which edges there are and which are not, and in which
//! order reads, ends and errors come out.

use std::collections::VecDeque;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use crate::io::Token;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The backend has not answered.
    Dialling,
    Open,
    /// Reset, refused or timed out.
    Broken,
}

/// How the stream towards the other end ended, as its application sees it after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Fin,
    Reset,
}

/// How large the buffers are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rooms {
    /// Of our receive buffer.
    pub(super) inbound: usize,
    /// Of our send buffer.
    pub(super) outbound: usize,
    /// Of the other end's receive buffer.
    pub(super) arrived: usize,
}

#[derive(Debug)]
pub(super) struct Connection {
    state: State,
    rooms: Rooms,
    /// Received by our kernel, not read by us.
    inbound: VecDeque<u8>,
    fin_received: bool,
    /// The place of the urgent byte in all that is received (the socket has SO_OOBINLINE).
    urgent: Option<usize>,
    /// `sk_err`: reported once, by whatever call comes first.
    error: Option<Errno>,
    /// Written by us, not acknowledged.
    outbound: VecDeque<u8>,
    fin_sent: bool,
    /// Our descriptor is gone.
    closed: bool,
    linger_zero: bool,
    /// SOCK_NOSPACE: a write did not fit, an edge will tell when there is room.
    no_space: bool,
    watch: Option<Token>,
    /// On epoll's ready list.
    edge: bool,
    arrived: VecDeque<u8>,
    their_end: Option<End>,
    /// The other end's descriptor is gone: its kernel answers bytes with a reset.
    their_socket_closed: bool,
    /// Calls that found nothing to read, or no room, since an event said that there is.
    reads_in_vain: usize,
    writes_in_vain: usize,
    /// All bytes that we have read or dropped, and all that we have written.
    pub(super) read_bytes: usize,
    pub(super) written_bytes: usize,
}

impl Connection {
    /// A connection that is established, or still dialled.
    pub(super) fn new(rooms: Rooms, established: bool) -> Self {
        Self {
            state: if established { State::Open } else { State::Dialling },
            rooms,
            inbound: VecDeque::new(),
            fin_received: false,
            urgent: None,
            error: None,
            outbound: VecDeque::new(),
            fin_sent: false,
            closed: false,
            linger_zero: false,
            no_space: false,
            watch: None,
            edge: false,
            arrived: VecDeque::new(),
            their_end: None,
            their_socket_closed: false,
            reads_in_vain: 0,
            writes_in_vain: 0,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    fn raise_edge(&mut self) {
        self.edge |= self.watch.is_some();
    }

    /// The connection breaks under us: tcp_reset(), tcp_done().
    fn break_with(&mut self, errno: Errno) {
        if self.state == State::Broken {
            return;
        }
        self.state = State::Broken;
        self.error = Some(errno);
        self.outbound.clear();
        self.raise_edge();
    }
}

/// Our socket.
impl Connection {
    /// tcp_recvmsg(): bytes first, then the end if one came, then the error, once; then it reads like an end.
    pub(super) fn readable_bytes(&mut self) -> Result<usize, Errno> {
        if !self.inbound.is_empty() {
            // Reads stop in front of an urgent byte, and may begin with it.
            let in_front = self.bytes_before_urgent().filter(|&bytes| bytes > 0);
            return Ok(in_front.unwrap_or(self.inbound.len()));
        }
        if self.fin_received {
            return Ok(0);
        }
        if let Some(errno) = self.error.take() {
            return Err(errno);
        }
        if self.state == State::Broken {
            return Ok(0);
        }
        self.reads_in_vain += 1;
        // Once more than needed, where an event of the same batch has led to reading what this one's event tells.
        assert!(self.reads_in_vain <= 2, "there was nothing to read, and no event has said otherwise since");
        Err(Errno::AGAIN)
    }

    /// Unread bytes in front of the urgent one, if it has not been read.
    fn bytes_before_urgent(&self) -> Option<usize> {
        self.urgent?.checked_sub(self.read_bytes)
    }

    /// tcp_splice_read(): as reading, but there is no way past an urgent byte.
    pub(super) fn spliceable_bytes(&mut self) -> Result<usize, Errno> {
        if self.bytes_before_urgent() == Some(0) { Err(Errno::AGAIN) } else { self.readable_bytes() }
    }

    /// The first `length` unread bytes, which are there.
    pub(super) fn copy_to(&self, buffer: &mut [u8]) {
        for (byte, unread) in buffer.iter_mut().zip(&self.inbound) {
            *byte = *unread;
        }
    }

    pub(super) fn take_out(&mut self, length: usize) -> Vec<u8> {
        self.read_bytes += length;
        self.inbound.drain(..length).collect()
    }

    /// tcp_sendmsg(): how many bytes there is room for. Whoever finds too little is told when there is more.
    pub(super) fn writable_bytes(&mut self, wanted: usize) -> Result<usize, Errno> {
        match self.state {
            State::Dialling => {
                self.no_space = true;
                Err(Errno::AGAIN)
            }
            State::Broken => Err(self.error.take().unwrap_or(Errno::PIPE)),
            State::Open if self.fin_sent => Err(Errno::PIPE),
            State::Open => {
                let room = self.rooms.outbound - self.outbound.len();
                self.no_space |= room < wanted;
                if room > 0 {
                    return Ok(room.min(wanted));
                }
                // Likewise; and a copy finds out twice: when it has read, and when it holds what it has read.
                self.writes_in_vain += 1;
                assert!(self.writes_in_vain <= 4, "there was no room, and no event has said otherwise since");
                Err(Errno::AGAIN)
            }
        }
    }

    pub(super) fn put_in(&mut self, bytes: &[u8]) {
        self.written_bytes += bytes.len();
        self.outbound.extend(bytes);
    }

    /// A write that took less than there was room for (memory pressure) arms the edge, too.
    pub(super) fn note_partial_write(&mut self) {
        self.no_space = true;
    }

    pub(super) fn shutdown_write(&mut self) -> Result<(), Errno> {
        if self.state != State::Open {
            return Err(Errno::NOTCONN);
        }
        self.fin_sent = true;
        Ok(())
    }

    pub(super) fn linger_zero(&mut self) {
        self.linger_zero = true;
    }

    /// SIOCOUTQ: the end of the stream counts as a byte.
    pub(super) fn unacknowledged(&self) -> usize {
        let fin = self.fin_sent && self.their_end.is_none() && self.state == State::Open;
        self.outbound.len() + usize::from(fin)
    }

    pub(super) fn connect_result(&mut self) -> Result<(), Errno> {
        self.error.take().map_or(Ok(()), Err)
    }

    pub(super) fn watch(&mut self, token: Token) {
        self.watch = Some(token);
        self.edge = !self.poll().is_empty();
    }

    /// close(): a reset if asked for, or if bytes were not read; else an end after all that was written.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.watch = None;
        self.edge = false;
        if self.state != State::Open {
            return;
        }
        if self.linger_zero || !self.inbound.is_empty() {
            self.outbound.clear();
            self.state = State::Broken;
            self.their_end.get_or_insert(End::Reset);
            return;
        }
        self.fin_sent = true;
    }

    /// tcp_poll().
    fn poll(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        let broken = self.state == State::Broken;
        if self.state == State::Dialling {
            return flags;
        }
        let input_ended = self.fin_received || broken;
        flags.set(EventFlags::HUP, broken || (self.fin_received && self.fin_sent));
        flags.set(EventFlags::RDHUP, input_ended);
        flags.set(EventFlags::IN, input_ended || !self.inbound.is_empty());
        flags.set(EventFlags::OUT, broken || self.fin_sent || self.has_much_room());
        flags.set(EventFlags::PRI, self.bytes_before_urgent().is_some());
        flags.set(EventFlags::ERR, self.error.is_some());
        flags
    }

    /// sk_stream_is_writeable(): a third of the send buffer is free.
    fn has_much_room(&self) -> bool {
        self.outbound.len() * 3 <= self.rooms.outbound * 2
    }

    /// What epoll_wait() reports: an edge, with all that holds by now; nothing if nothing does.
    pub(super) fn take_event(&mut self) -> Option<(Token, EventFlags)> {
        if !std::mem::take(&mut self.edge) {
            return None;
        }
        let flags = self.poll();
        if flags.contains(EventFlags::IN) {
            self.reads_in_vain = 0;
        }
        if flags.contains(EventFlags::OUT) {
            self.writes_in_vain = 0;
        }
        self.watch.filter(|_| !flags.is_empty()).map(|token| (token, flags))
    }

    pub(super) fn has_edge(&self) -> bool {
        self.edge
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }
}

/// The network, and the other end's socket.
impl Connection {
    /// The backend answers, or its kernel refuses.
    pub(super) fn answer(&mut self, result: Result<(), Errno>) {
        match result {
            Ok(()) => {
                self.state = State::Open;
                self.raise_edge();
            }
            Err(errno) => self.break_with(errno),
        }
    }

    pub(super) fn is_dialling(&self) -> bool {
        self.state == State::Dialling
    }

    /// Whether something of ours is under way.
    pub(super) fn can_deliver(&self) -> bool {
        if self.state != State::Open || self.their_end.is_some() {
            return false;
        }
        let room = self.rooms.arrived - self.arrived.len();
        if self.outbound.is_empty() { self.fin_sent } else { room > 0 || self.their_socket_closed }
    }

    /// Brings up to `most` bytes, or the end, to the other end.
    pub(super) fn deliver(&mut self, most: usize) {
        if self.outbound.is_empty() {
            self.their_end = Some(End::Fin);
            return;
        }
        if self.their_socket_closed {
            let errno = if self.fin_received { Errno::PIPE } else { Errno::CONNRESET };
            return self.break_with(errno);
        }
        let length = most.min(self.outbound.len()).min(self.rooms.arrived - self.arrived.len());
        self.arrived.extend(self.outbound.drain(..length));
        if self.no_space && self.has_much_room() {
            self.no_space = false;
            self.raise_edge();
        }
    }

    /// Room for what the other end sends.
    pub(super) fn room_for_them(&self) -> usize {
        let may =
            self.state == State::Open && !self.their_socket_closed && self.their_end != Some(End::Reset);
        if may { self.rooms.inbound - self.inbound.len() } else { 0 }
    }

    /// The other end sends.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if self.closed {
            // Nobody will read it: our kernel answers with a reset.
            self.state = State::Broken;
            self.outbound.clear();
            self.their_end = Some(End::Reset);
            return;
        }
        self.inbound.extend(bytes);
        self.raise_edge();
    }

    /// The other end marks the last byte that it has sent as urgent.
    pub(super) fn receive_urgent(&mut self) {
        if self.state == State::Open {
            self.urgent = (self.read_bytes + self.inbound.len()).checked_sub(1);
            self.raise_edge();
        }
    }

    /// The other end shuts its direction down.
    pub(super) fn receive_fin(&mut self) {
        if self.state == State::Open && !self.fin_received {
            self.fin_received = true;
            self.raise_edge();
        }
    }

    /// The other end resets.
    pub(super) fn receive_reset(&mut self) {
        self.their_socket_closed = true;
        let errno = if self.fin_received { Errno::PIPE } else { Errno::CONNRESET };
        self.break_with(errno);
    }

    /// The other end closes its socket: as [`Connection::close`].
    pub(super) fn close_theirs(&mut self) {
        if self.arrived.is_empty() {
            self.receive_fin();
            self.their_socket_closed = true;
        } else {
            self.receive_reset();
        }
    }

    pub(super) fn arrived_bytes(&self) -> usize {
        self.arrived.len()
    }

    pub(super) fn take_arrived(&mut self, length: usize) -> Vec<u8> {
        self.arrived.drain(..length).collect()
    }

    /// How our stream ended, whether or not all of it was taken.
    pub(super) fn end_of_stream(&self) -> Option<End> {
        self.their_end
    }

    /// How our stream ended, once all of it was taken.
    pub(super) fn their_end(&self) -> Option<End> {
        self.their_end.filter(|_| self.arrived.is_empty())
    }
}
