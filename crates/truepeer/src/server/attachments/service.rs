//! The attach keeper's side.

use std::io::BufReader;
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context as _;
use rustix::process::{Pid, getppid};
use tracing::error;

use super::Shown;
use super::own::{Own, name};
use super::wire::{self, Answer, Message, Request, UNASKED};
use truepeer_cli::file::{ConfigSource, LoadedConfig};
use truepeer_config::plan::{AttachKey, CheckedAttach, CheckedEntry};
use truepeer_ops::log;
use truepeer_privilege::keeper::hold_no_output;

/// Serves until [`Request::End`] or the end of the stream. `relay`: the process that asks, this one's parent.
/// Returns the exit status.
pub(super) fn serve(line: UnixStream, relay: Pid, source: &ConfigSource, loaded: &LoadedConfig) -> i32 {
    let _ = rustix::thread::set_name(c"truepeer-attach");
    let started = hold_no_output().and_then(|()| line.try_clone()).and_then(|replies| {
        let replies = Replies(Arc::new(Mutex::new(replies)));
        let (shows, (to_show, asked)) = (replies.clone(), mpsc::channel());
        thread::Builder::new().name("show".to_owned()).spawn(move || show(&asked, &shows))?;
        Ok((replies, to_show))
    });
    let (replies, to_show) = match started {
        Ok(started) => started,
        Err(error) => {
            error!("the attach keeper can't start: {error}");
            return 1;
        }
    };
    let detaches = replies.clone();
    // At the end of the stream without `End` it is not dropped: what is attached stays, as after kill -9 of a
    // process that attaches by itself.
    let mut own = ManuallyDrop::new(Own::new(Arc::new(move || detaches.give(UNASKED, Answer::Done))));
    let mut loaded = Some(loaded);
    let mut requests = BufReader::new(line);
    while let Ok(Message { number, body }) = wire::receive(&mut requests) {
        if getppid() != Some(relay) {
            // It has ended, and the next truepeer may have attached the same.
            break;
        }
        match body {
            Request::Apply { keys, verbosity } => {
                let answer = match apply(&mut own, source, &mut loaded, &keys) {
                    Ok(changes) => {
                        log::set_verbosity(verbosity);
                        Answer::Changed(changes)
                    }
                    Err(failure) => Answer::Failed(format!("{failure:#}")),
                };
                replies.give(number, answer);
            }
            Request::Names => replies.give(number, Answer::Names(own.names())),
            Request::BeginTakeOver(names) => own.begin_take_over(&names),
            Request::EndTakeOver => own.end_take_over(),
            Request::HandOver(names) => own.hand_over(&names),
            Request::Renew => own.renew(),
            Request::Drain => own.drain(),
            Request::HaveEnded => replies.give(number, Answer::Ended(own.have_ended())),
            // A container engine may have to be asked, and orders don't wait for that.
            Request::Show => _ = to_show.send((number, own.shown())),
            Request::End => {
                drop(ManuallyDrop::into_inner(own));
                replies.give(number, Answer::Done);
                break;
            }
        }
    }
    0
}

/// Reads states, one after the other. Only the last of those who wait is answered: the others have given up.
fn show(asked: &Receiver<(u32, Shown)>, replies: &Replies) {
    while let Ok(first) = asked.recv() {
        let (number, shown) = asked.try_iter().last().unwrap_or(first);
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

/// Applies what the file says of these. `loaded`: what was read at the start, until it has been applied.
fn apply(
    own: &mut Own,
    source: &ConfigSource,
    loaded: &mut Option<&LoadedConfig>,
    keys: &[AttachKey],
) -> anyhow::Result<Vec<String>> {
    if keys.is_empty() {
        return own.apply(&[]);
    }
    let Some(loaded) = loaded.take() else {
        return own.apply(&of_keys(keys, &source.attachments()?.iter().collect::<Vec<_>>())?);
    };
    let all = loaded.checked.entries.iter().filter_map(|entry| match entry {
        CheckedEntry::Attach(attach) => Some(attach.as_ref()),
        CheckedEntry::Relay { .. } => None,
    });
    own.apply(&of_keys(keys, &all.collect::<Vec<_>>())?)
}

fn of_keys<'a>(keys: &[AttachKey], all: &[&'a CheckedAttach]) -> anyhow::Result<Vec<&'a CheckedAttach>> {
    let of_key = |key: &AttachKey| {
        let found = all.iter().find(|attach| attach.key == *key).copied();
        found.with_context(|| {
            format!("the file has changed meanwhile, and doesn't attach {} any more: reload again", name(key))
        })
    };
    keys.iter().map(of_key).collect()
}
