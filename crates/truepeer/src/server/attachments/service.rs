//! The attach keeper's side.

use std::io::BufReader;
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;

use super::Shown;
use super::own::{Own, name};
use super::wire::{self, Answer, Message, Request};
use crate::file::{ConfigSource, LoadedConfig};
use crate::keeper::hold_no_output;
use crate::log;
use crate::plan::{AttachKey, CheckedAttach, CheckedEntry};

/// The number of a message that answers no request.
pub(super) const UNASKED: u32 = 0;

/// Serves until the other process says so, or ends. Returns the exit status.
pub(super) fn serve(line: UnixStream, source: &ConfigSource, loaded: &LoadedConfig) -> i32 {
    let _ = rustix::thread::set_name(c"truepeer-attach");
    if hold_no_output().is_err() {
        return 1;
    }
    let Ok(replies) = line.try_clone() else { return 1 };
    let replies = Replies(Arc::new(Mutex::new(replies)));
    let (to_show, shown) = mpsc::channel();
    let (shows, detaches) = (replies.clone(), replies.clone());
    if thread::Builder::new().name("show".to_owned()).spawn(move || show(&shown, &shows)).is_err() {
        return 1;
    }
    // At the end of the stream without `End` it is not dropped: what is attached stays, as after kill -9 of a process that attaches by itself.
    let mut own = ManuallyDrop::new(Own::new(Arc::new(move || detaches.give(UNASKED, Answer::Done))));
    let mut service = Service { source, loaded: Some(loaded) };
    let mut requests = BufReader::new(line);
    while let Ok(Message { number, body }) = wire::receive(&mut requests) {
        match body {
            Request::End => {
                drop(ManuallyDrop::into_inner(own));
                replies.give(number, Answer::Done);
                return 0;
            }
            // A container engine may have to be asked, and orders don't wait for that.
            Request::Show => _ = to_show.send((number, own.shown())),
            order => replies.give(number, service.carry_out(&mut own, order)),
        }
    }
    0
}

/// Reads states, one after the other.
fn show(asked: &Receiver<(u32, Shown)>, replies: &Replies) {
    while let Ok((number, shown)) = asked.recv() {
        replies.give(number, Answer::Shown(shown.read()));
    }
}

#[derive(Clone)]
struct Replies(Arc<Mutex<UnixStream>>);

impl Replies {
    fn give(&self, number: u32, answer: Answer) {
        let line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // If the other process has ended, the next read finds the end of the stream.
        let _ = wire::send(&*line, number, answer);
    }
}

struct Service<'a> {
    source: &'a ConfigSource,
    /// What was read at the start, until it has been applied.
    loaded: Option<&'a LoadedConfig>,
}

impl Service<'_> {
    fn carry_out(&mut self, own: &mut Own, order: Request) -> Answer {
        match order {
            Request::Apply(keys) => match self.apply(own, &keys) {
                Ok(changes) => return Answer::Changed(changes),
                Err(failure) => return Answer::Failed(format!("{failure:#}")),
            },
            Request::HaveEnded => return Answer::Ended(own.have_ended()),
            Request::BeginTakeOver(names) => own.begin_take_over(&names),
            Request::EndTakeOver => own.end_take_over(),
            Request::HandOver(names) => own.hand_over(&names),
            Request::Renew => own.renew(),
            Request::Drain => own.drain(),
            Request::Show | Request::End => {}
        }
        Answer::Done
    }

    /// Applies what the file says of these.
    fn apply(&mut self, own: &mut Own, keys: &[AttachKey]) -> anyhow::Result<Vec<String>> {
        if keys.is_empty() {
            return own.apply(&[]);
        }
        let Some(loaded) = self.loaded.take() else {
            let (process, attachments) = self.source.attachments()?;
            let changes = own.apply(&of_keys(keys, &attachments.iter().collect::<Vec<_>>())?)?;
            log::set_verbosity(process.log.verbosity);
            return Ok(changes);
        };
        let all = loaded.checked.entries.iter().filter_map(|entry| match entry {
            CheckedEntry::Attach(attach) => Some(attach.as_ref()),
            CheckedEntry::Relay { .. } => None,
        });
        own.apply(&of_keys(keys, &all.collect::<Vec<_>>())?)
    }
}

fn of_keys<'a>(keys: &[AttachKey], all: &[&'a CheckedAttach]) -> anyhow::Result<Vec<&'a CheckedAttach>> {
    let of_key = |key: &AttachKey| {
        let found = all.iter().find(|attach| attach.key == *key).copied();
        found.with_context(|| {
            format!("the file has changed meanwhile: it doesn't attach {} any more", name(key))
        })
    };
    keys.iter().map(of_key).collect()
}
