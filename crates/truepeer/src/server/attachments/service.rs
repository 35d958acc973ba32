//! The attach keeper's side.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};

use super::own::{Own, name};
use super::wire::{self, Answer, Request};
use crate::file::ConfigSource;
use crate::keeper::hold_no_output;
use crate::plan::{CheckedAttach, CheckedEntry};

/// Serves until the other process says so, or ends. Returns the exit status.
pub(super) fn serve(line: &UnixStream, source: &ConfigSource) -> i32 {
    let _ = rustix::thread::set_name(c"truepeer-attach");
    if hold_no_output().is_err() {
        return 1;
    }
    let mut own = Own::new(Arc::new(|| {}));
    let mut requests = BufReader::new(line);
    while let Ok(request) = wire::receive(&mut requests) {
        if matches!(request, Request::End) {
            drop(own);
            let _ = wire::send(line, &Answer::Done);
            return 0;
        }
        let answer = carry_out(&mut own, source, request);
        // A process that has ended doesn't wait for it, and the next read fails.
        let _ = wire::send(line, &answer.unwrap_or_else(|failure| Answer::Failed(format!("{failure:#}"))));
    }
    // It has ended without a word: what it has attached stays, as if it had attached that itself.
    std::mem::forget(own);
    0
}

fn carry_out(own: &mut Own, source: &ConfigSource, request: Request) -> anyhow::Result<Answer> {
    match request {
        Request::Apply(names) => return apply(own, source, &names).map(Answer::Changed),
        Request::BeginTakeOver(names) => own.begin_take_over(&names),
        Request::EndTakeOver => own.end_take_over(),
        Request::HandOver(names) => own.hand_over(&names),
        Request::Renew => own.renew(),
        Request::Drain | Request::End => own.drain(),
        Request::HaveEnded => return Ok(Answer::Ended(own.have_ended())),
        Request::Show => return Ok(Answer::Shown(own.shown().read())),
    }
    Ok(Answer::Done)
}

/// Applies the file's attachments of these names.
fn apply(own: &mut Own, source: &ConfigSource, names: &[String]) -> anyhow::Result<Vec<String>> {
    if names.is_empty() {
        return own.apply(&[]);
    }
    let loaded = source.load()?;
    let all = loaded.checked.entries.iter().filter_map(|entry| match entry {
        CheckedEntry::Attach(attach) => Some(attach.as_ref()),
        CheckedEntry::Relay { .. } => None,
    });
    let all: Vec<&CheckedAttach> = all.collect();
    let of_name = |wanted: &String| {
        let found = all.iter().find(|attach| name(&attach.key) == *wanted).copied();
        found.with_context(|| {
            anyhow!("the file has changed meanwhile, and has no attachment {wanted} any more")
        })
    };
    own.apply(&names.iter().map(of_name).collect::<anyhow::Result<Vec<_>>>()?)
}
