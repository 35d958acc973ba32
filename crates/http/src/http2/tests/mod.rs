//! The state alone, without a connection: frames in, frames out.

mod abuse;
mod client;
mod server;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::frame::*;
use super::*;
use crate::HttpLimits;

type Shared = Rc<RefCell<Connection>>;

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Which streams were woken.
#[derive(Default)]
struct Woken(Arc<Mutex<Vec<u32>>>);

impl Woken {
    fn waker(&self, id: u32) -> Waker {
        struct Note(u32, Arc<Mutex<Vec<u32>>>);

        impl Wake for Note {
            fn wake(self: Arc<Self>) {
                self.1.lock().unwrap().push(self.0);
            }
        }

        Waker::from(Arc::new(Note(id, Arc::clone(&self.0))))
    }

    /// Since the last call.
    fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&head(payload.len(), kind, flags, stream)[..], payload].concat()
}

fn number(kind: u8, stream: u32, number: u32) -> Vec<u8> {
    frame(kind, 0, stream, &number.to_be_bytes())
}

fn shared(role: Role) -> Shared {
    Rc::new(RefCell::new(Connection::new(role, &HttpLimits::default())))
}

/// SETTINGS with these parameters.
fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = settings
        .iter()
        .flat_map(|(id, value)| id.to_be_bytes().into_iter().chain(value.to_be_bytes()))
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// The other end says this, in whole frames.
fn say(connection: &Shared, bytes: &[u8]) -> Result<(), Fault> {
    let taken = connection.borrow_mut().receive(bytes, Duration::ZERO)?;
    assert_eq!(taken, bytes.len());
    Ok(())
}

/// The frames that were written: kind, flags, stream and payload.
fn sent(connection: &Shared) -> Vec<(u8, u8, u32, Vec<u8>)> {
    let mut connection = connection.borrow_mut();
    let out = connection.unsent();
    let (mut rest, mut frames) = (out.strip_prefix(CLIENT_PREFACE).unwrap_or(out), Vec::new());
    while let Some(head) = FrameHead::of(rest) {
        let (payload, after) = rest[HEAD_BYTES..].split_at(head.length);
        frames.push((head.kind, head.flags, head.stream, payload.to_vec()));
        rest = after;
    }
    assert!(rest.is_empty(), "whole frames are written");
    let length = connection.unsent().len();
    connection.on_taken(length);
    frames
}

fn kinds(connection: &Shared) -> Vec<u8> {
    sent(connection).into_iter().map(|(kind, ..)| kind).collect()
}

fn resets(connection: &Shared) -> Vec<(u32, Reason)> {
    let resets = sent(connection).into_iter().filter(|(kind, ..)| *kind == RST_STREAM);
    let reason = |payload: Vec<u8>| Reason(u32::from_be_bytes(payload.try_into().unwrap()));
    resets.map(|(_, _, stream, payload)| (stream, reason(payload))).collect()
}
