//! One simulated TCP connection: the relay's socket with its edges, the bytes in flight, and the other end's
//! kernel.
//!
//! Modelled on Linux (`net/ipv4/tcp.c`, `tcp_input.c`): which edges occur, and in which order reads, ends and
//! errors are reported.

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

/// How the stream towards the other end ended, as its application sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Fin,
    Reset,
}

/// The sizes of the buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rooms {
    /// The relay's receive buffer.
    pub(super) inbound: usize,
    /// The relay's send buffer.
    pub(super) outbound: usize,
    /// The other end's receive buffer.
    pub(super) arrived: usize,
}

/// What the other end has sent since the cut and no socket gets, in flight to the session's other connection.
#[derive(Debug, Default)]
pub(super) struct Translated {
    pub(super) bytes: VecDeque<u8>,
    pub(super) end: Option<End>,
    /// The end has reached the other connection.
    pub(super) has_ended: bool,
    /// All bytes since the cut.
    pub(super) total: usize,
    /// How many more the other connection's far end takes.
    pub(super) room: usize,
    /// What is sent now reaches the socket: it was under way, or a program saw an older stage. Not after
    /// something was translated.
    pub(super) slips: bool,
    /// How often that happened.
    pub(super) slipped: usize,
}

impl Translated {
    fn has_begun(&self) -> bool {
        self.total > 0 || self.end.is_some()
    }

    fn takes_it(&self) -> bool {
        !self.slips || self.has_begun()
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    state: State,
    rooms: Rooms,
    /// Received by the kernel, not read by the relay.
    inbound: VecDeque<u8>,
    fin_received: bool,
    /// The position of the urgent byte among all received bytes (the socket has SO_OOBINLINE).
    urgent: Option<usize>,
    /// `sk_err`: reported once, by the first call that finds it.
    error: Option<Errno>,
    /// Written by the relay, not acknowledged.
    outbound: VecDeque<u8>,
    fin_sent: bool,
    /// The relay's descriptor is closed.
    closed: bool,
    linger_zero: bool,
    /// SOCK_NOSPACE: a write did not fit, so an edge will announce room.
    no_space: bool,
    watch: Option<Token>,
    /// On epoll's ready list.
    edge: bool,
    arrived: VecDeque<u8>,
    their_end: Option<End>,
    /// The other end's descriptor is closed: its kernel answers bytes with a reset.
    their_socket_closed: bool,
    /// The number of calls that found nothing to read, or no room, since the last event that reported it.
    reads_in_vain: usize,
    writes_in_vain: usize,
    /// From the cut on: what the other end sends past the relay's socket.
    pub(super) translated: Option<Translated>,
    /// close() says nothing.
    pub(super) is_silent: bool,
    /// The number of all bytes that were read or dropped, and of all that were written.
    pub(super) read_bytes: usize,
    pub(super) written_bytes: usize,
}

impl Connection {
    /// A connection that is established or in progress.
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
            translated: None,
            is_silent: false,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    fn raise_edge(&mut self) {
        self.edge |= self.watch.is_some();
    }

    /// The connection breaks: tcp_reset(), tcp_done().
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

/// The relay's socket.
impl Connection {
    /// tcp_recvmsg(): first bytes, then an end if one came, then the error once. After that it returns 0.
    pub(super) fn readable_bytes(&mut self) -> Result<usize, Errno> {
        if !self.inbound.is_empty() {
            // Reads stop before an urgent byte, and may start with it.
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
        // One more than necessary: another event of the same batch may have led to reading what this event
        // announces.
        assert!(self.reads_in_vain <= 2, "there was nothing to read, and no event has said otherwise since");
        Err(Errno::AGAIN)
    }

    /// The number of unread bytes before the urgent one, if that has not been read.
    fn bytes_before_urgent(&self) -> Option<usize> {
        self.urgent?.checked_sub(self.read_bytes)
    }

    /// tcp_splice_read(): as a read, but it never passes an urgent byte.
    pub(super) fn spliceable_bytes(&mut self) -> Result<usize, Errno> {
        if self.bytes_before_urgent() == Some(0) { Err(Errno::AGAIN) } else { self.readable_bytes() }
    }

    /// Takes the first `length` unread bytes, which exist.
    pub(super) fn copy_to(&self, buffer: &mut [u8]) {
        for (byte, unread) in buffer.iter_mut().zip(&self.inbound) {
            *byte = *unread;
        }
    }

    pub(super) fn take_out(&mut self, length: usize) -> Vec<u8> {
        self.read_bytes += length;
        self.inbound.drain(..length).collect()
    }

    /// tcp_sendmsg(): returns how many bytes fit. A caller that finds too little room gets an edge when there
    /// is more.
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
                // As for reads. A copy finds out twice: after reading, and when it holds the bytes.
                self.writes_in_vain += 1;
                assert!(self.writes_in_vain <= 4, "there was no room, and no event has said otherwise since");
                Err(Errno::AGAIN)
            }
        }
    }

    pub(super) fn put_in(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            // A small buffer fills up after every few bytes. In vain are only writes without progress in
            // between.
            self.writes_in_vain = 0;
        }
        self.written_bytes += bytes.len();
        self.outbound.extend(bytes);
    }

    /// A write that accepts less than there is room for (memory pressure) arms the edge, too.
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

    /// SIOCOUTQ: the end of the stream counts as one byte.
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

    /// close(): sends a reset if requested or if bytes are unread, otherwise FIN after all written bytes.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.watch = None;
        self.edge = false;
        if self.state != State::Open || self.is_silent {
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

    /// tcp_poll(). Where it finds too little room it asks for the edge that says when there is more.
    fn poll(&mut self) -> EventFlags {
        let mut flags = EventFlags::empty();
        let broken = self.state == State::Broken;
        if self.state == State::Dialling {
            return flags;
        }
        let input_ended = self.fin_received || broken;
        flags.set(EventFlags::HUP, broken || (self.fin_received && self.fin_sent));
        flags.set(EventFlags::RDHUP, input_ended);
        flags.set(EventFlags::IN, input_ended || !self.inbound.is_empty());
        let writable = broken || self.fin_sent || self.has_much_room();
        self.no_space |= !writable;
        flags.set(EventFlags::OUT, writable);
        flags.set(EventFlags::PRI, self.bytes_before_urgent().is_some());
        flags.set(EventFlags::ERR, self.error.is_some());
        flags
    }

    /// sk_stream_is_writeable(): a third of the send buffer is free.
    fn has_much_room(&self) -> bool {
        self.outbound.len() * 3 <= self.rooms.outbound * 2
    }

    /// What epoll_wait() reports: an edge with all current conditions, or nothing if there are none.
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
    /// The backend accepts, or its kernel refuses.
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

    /// Whether bytes or an end of the relay's are in flight.
    pub(super) fn can_deliver(&self) -> bool {
        if self.state != State::Open || self.their_end.is_some() {
            return false;
        }
        let room = self.rooms.arrived - self.arrived.len();
        if self.outbound.is_empty() { self.fin_sent } else { room > 0 || self.their_socket_closed }
    }

    /// Delivers up to `most` bytes, or the end, to the other end.
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

    /// Room for the other end's bytes.
    pub(super) fn room_for_them(&self) -> usize {
        if self.their_socket_closed || self.their_end == Some(End::Reset) {
            return 0;
        }
        match &self.translated {
            Some(translated) if translated.takes_it() => translated.room,
            _ if self.state != State::Open => 0,
            translated => {
                let room = self.rooms.inbound - self.inbound.len();
                translated.as_ref().map_or(room, |translated| room.min(translated.room))
            }
        }
    }

    /// How many bytes the other end takes now.
    pub(super) fn room_at_their_end(&self) -> usize {
        self.rooms.arrived.saturating_sub(self.arrived.len())
    }

    /// The bytes that the relay's socket has received, read or not.
    pub(super) fn received_bytes(&self) -> usize {
        self.read_bytes + self.inbound.len()
    }

    /// How the relay's socket stands: unread bytes, unacknowledged ones, an end that was received.
    pub(super) fn stand(&self) -> (usize, usize, bool) {
        (self.inbound.len(), self.outbound.len(), self.fin_received)
    }

    /// Neither end has come.
    pub(super) fn is_established(&self) -> bool {
        self.state == State::Open && !self.fin_received && !self.fin_sent
    }

    /// Translated bytes reach the other end. False: its socket is closed, so it answers with a reset.
    pub(super) fn arrive(&mut self, bytes: impl IntoIterator<Item = u8>) -> bool {
        if !self.their_socket_closed {
            self.arrived.extend(bytes);
        }
        !self.their_socket_closed
    }

    /// A translated end reaches the other end.
    pub(super) fn arrive_at_end(&mut self, end: End) {
        self.their_end.get_or_insert(end);
    }

    /// The other end knows the connection no more, and answers what is in flight to it.
    pub(super) fn answer_with_reset(&mut self) {
        if !self.closed && !self.outbound.is_empty() {
            self.break_with(Errno::CONNRESET);
        }
    }

    /// Where something goes that the other end sends, if not to the socket.
    fn past_the_socket(&mut self) -> Option<&mut Translated> {
        let translated = self.translated.as_mut()?;
        translated.slipped += usize::from(!translated.takes_it());
        translated.takes_it().then_some(translated)
    }

    /// The other end sends.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if let Some(translated) = self.past_the_socket() {
            translated.total += bytes.len();
            translated.bytes.extend(bytes);
            return;
        }
        if self.closed {
            // The relay won't read it: its kernel answers with a reset.
            self.state = State::Broken;
            self.outbound.clear();
            self.their_end = Some(End::Reset);
            return;
        }
        self.inbound.extend(bytes);
        self.raise_edge();
    }

    /// The other end marks the last byte that it sent as urgent.
    pub(super) fn receive_urgent(&mut self) {
        if self.state == State::Open {
            self.urgent = (self.read_bytes + self.inbound.len()).checked_sub(1);
            self.raise_edge();
        }
    }

    /// The other end ends its sending direction.
    pub(super) fn receive_fin(&mut self) {
        if let Some(translated) = self.past_the_socket() {
            translated.end = translated.end.or(Some(End::Fin));
            return;
        }
        if self.state == State::Open && !self.fin_received {
            self.fin_received = true;
            self.raise_edge();
        }
    }

    /// The other end resets.
    pub(super) fn receive_reset(&mut self) {
        self.their_socket_closed = true;
        if let Some(translated) = self.past_the_socket() {
            translated.end = Some(End::Reset);
            return;
        }
        let errno = if self.fin_received { Errno::PIPE } else { Errno::CONNRESET };
        self.break_with(errno);
    }

    /// The other end closes its socket, as in [`Connection::close`].
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

    /// How the relay's stream ended, whether or not all of it was taken.
    pub(super) fn end_of_stream(&self) -> Option<End> {
        self.their_end
    }

    /// How the relay's stream ended, once all of it was taken.
    pub(super) fn their_end(&self) -> Option<End> {
        self.their_end.filter(|_| self.arrived.is_empty())
    }
}
