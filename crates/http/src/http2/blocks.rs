//! Whole header blocks: a request, a response, trailers. Each must be decoded: later ones refer to it.

use std::rc::Rc;

use super::connection::{Connection, MOST_HANDLES, MOST_STREAMS, Role};
use super::heads::{HeadFault, RequestReader, ResponseReader, TrailerReader, head_bytes};
use super::reason::{Fault, Reason};
use super::receive::Done;
use super::stream::{self, Stream, StreamError};
use crate::ResponseHead;
use crate::framing::BodyLength;

/// The limit of 1xx responses to one request. Otherwise an origin that keeps sending them in time could hold
/// a request forever.
pub const MOST_INTERIM: usize = 64;

impl Connection {
    /// Takes a whole header block.
    pub(super) fn take_block(&mut self, id: u32, ends_stream: bool, block: &[u8]) -> Done {
        let Some(stream) = self.find(id) else {
            let is_request = self.role == Role::Server && id == self.newest && !self.is_over();
            return if is_request && !self.has_reset(id) {
                self.take_request(id, ends_stream, block)
            } else {
                Ok(self.decoder.read(block, |_| {})?)
            };
        };
        let mut stream = stream.borrow_mut();
        if stream.is_received || stream.is_cut {
            self.decoder.read(block, |_| {})?;
            if self.role == Role::Server {
                self.violation(&mut stream, Reason::STREAM_CLOSED);
            }
            return Ok(());
        }
        if stream.has_head {
            self.take_trailers(&mut stream, ends_stream, block)
        } else {
            self.take_response(&mut stream, ends_stream, block)
        }
    }

    fn take_response(&mut self, stream: &mut Stream, ends_stream: bool, block: &[u8]) -> Done {
        let mut reader = ResponseReader::new(&mut stream.head, &self.limits);
        self.decoder.read(block, |field| reader.field(field))?;
        let read = reader.finish();
        if let Err(HeadFault::Excess(error)) = read {
            self.refuse(stream, Reason::CANCEL, StreamError::BadHead(error));
            return Ok(());
        }
        let is_interim = stream.head.status < 200;
        // RFC 9113 8.1: a 1xx response is not the last one.
        if read.is_err() || (ends_stream && is_interim) {
            self.violation(stream, Reason::PROTOCOL_ERROR);
            return Ok(());
        }
        if is_interim {
            let bytes = stream.interim_bytes + head_bytes(&stream.head);
            if stream.interim.len() > MOST_INTERIM || bytes > self.limits.head_bytes {
                self.violation(stream, Reason::ENHANCE_YOUR_CALM);
                return Ok(());
            }
            let interim: ResponseHead = std::mem::take(&mut stream.head);
            stream.interim.push_back(interim);
            stream.interim_bytes = bytes;
        } else {
            stream.has_head = true;
        }
        if ends_stream {
            self.received(stream);
        }
        stream.wake();
        Ok(())
    }

    fn take_trailers(&mut self, stream: &mut Stream, ends_stream: bool, block: &[u8]) -> Done {
        let mut reader = TrailerReader::new(&mut stream.trailers, &self.limits);
        self.decoder.read(block, |field| reader.field(field))?;
        match (reader.finish(), self.role) {
            // RFC 9113 8.1: trailers end the stream.
            (Ok(()), _) if ends_stream => self.received(stream),
            // The client gets a 431.
            (Err(HeadFault::Excess(error)), Role::Server) if ends_stream => {
                stream.bad_trailers = Some(error);
                self.received(stream);
            }
            (Err(HeadFault::Excess(error)), Role::Client) => {
                self.refuse(stream, Reason::CANCEL, StreamError::BadHead(error));
            }
            (_, Role::Client) => self.violation(stream, Reason::PROTOCOL_ERROR),
            (_, Role::Server) => self.malformed(stream),
        }
        stream.wake();
        Ok(())
    }

    fn take_request(&mut self, id: u32, ends_stream: bool, block: &[u8]) -> Done {
        self.tally.begun += 1;
        if self.tally.is_abusive() || self.handles >= MOST_HANDLES {
            return Err(Fault::RapidReset);
        }
        if self.streams.len() >= MOST_STREAMS as usize {
            self.decoder.read(block, |_| {})?;
            // It costs nothing at the origin, so it must not make up for cancelled ones.
            self.tally.begun -= 1;
            // RFC 9113 8.7: the client may repeat the request.
            self.write_reset(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let shared = stream::take();
        let mut stream = shared.borrow_mut();
        stream.begin(id, self.role.stream_window(), self.first_send_window);
        let mut reader = RequestReader::new(&mut stream.request, &mut self.cookies, &self.limits);
        self.decoder.read(block, |field| reader.field(field))?;
        let priority = reader.priority;
        let read = reader.finish(ends_stream);
        stream.priority = priority;
        (stream.has_head, stream.is_received) = (true, ends_stream);
        stream.is_head = stream.request.method() == b"HEAD";
        match read {
            Ok(refused) => stream.refused = refused,
            // RFC 9113 8.1.1. It counts as cancelled, so that a flood of them ends the connection.
            Err(_) => {
                self.tally.taken_back += 1;
                self.malformed += 1;
                self.write_reset(id, Reason::PROTOCOL_ERROR);
                return Ok(());
            }
        }
        stream.announced = match stream.request.length {
            BodyLength::Known(length) if stream.refused.is_none() => Some(length),
            _ => None,
        };
        drop(stream);
        self.streams.push((id, Rc::clone(&shared)));
        self.requests.push_back(shared);
        Ok(())
    }
}
