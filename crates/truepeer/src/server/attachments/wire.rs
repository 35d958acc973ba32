//! Messages between a confined process and its attach keeper: a line of JSON each.

use std::io::{self, BufRead, Read as _, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use truepeer_config::plan::AttachKey;
use truepeer_config::spec::Verbosity;
use truepeer_ops::admin::AttachmentDoc;

/// No message is longer. A port's state takes some 2 KiB.
const MOST_BYTES: u64 = 16 << 20;

/// The number of a request without an answer, and of a message that answers none.
pub(super) const UNASKED: u32 = 0;

/// An answer has the number of its request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Message<T> {
    pub(super) number: u32,
    pub(super) body: T,
}

/// A request to the keeper. What a key stands for, the keeper reads from the file. Only those with an answer
/// below have one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum Request {
    Apply {
        keys: Vec<AttachKey>,
        verbosity: Verbosity,
    },
    Names,
    BeginTakeOver(Vec<String>),
    EndTakeOver,
    HandOver(Vec<String>),
    Renew,
    Drain,
    HaveEnded,
    Show,
    /// Detach what is left at once, and end.
    End,
}

/// The keeper's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) enum Answer {
    /// After [`Request::End`]; without a request, an attachment has been detached.
    Done,
    /// Each change of [`Request::Apply`].
    Changed(Vec<String>),
    Names(Vec<String>),
    Ended(bool),
    Shown(Vec<AttachmentDoc>),
    Failed(String),
}

/// Sends one message.
pub(super) fn send<T: Serialize>(mut out: impl Write, number: u32, body: T) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Message { number, body })?;
    line.push(b'\n');
    out.write_all(&line)
}

/// Receives one message.
///
/// # Errors
/// `UnexpectedEof` at the end of the stream, otherwise that of the read, or of what is no message.
pub(super) fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Message<T>> {
    let mut line = String::new();
    if from.take(MOST_BYTES).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}
