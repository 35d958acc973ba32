//! All that `top` waits for, in one channel: answers, keys and signals. Each source is a thread of its own,
//! so that a slow answer delays no key.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::admin::client::Client;
use crate::admin::listing::SessionDoc;
use crate::admin::status::StatusDoc;

/// The most sessions that are asked for: sorting more would show little, and cost much every second.
pub(super) const MOST_SESSIONS: usize = 5000;

/// What has happened.
pub(super) enum News {
    Answer(anyhow::Result<Box<Snapshot>>),
    Input(Event),
    /// A signal asks for the end.
    Signal,
    /// A thread has panicked, or its source is gone.
    Ended(&'static str),
}

/// The running truepeer at one moment.
pub(super) struct Snapshot {
    pub(super) status: StatusDoc,
    pub(super) sessions: Vec<SessionDoc>,
}

impl Snapshot {
    pub(super) fn of(client: &Client) -> anyhow::Result<Self> {
        let other = "the answer is not of this version of truepeer";
        let status = client.ask("GET", "/status")?;
        let sessions = client.ask("GET", &format!("/sessions?limit={MOST_SESSIONS}"))?;
        Ok(Self {
            status: serde_json::from_str(&status).context(other)?,
            sessions: serde_json::from_str(&sessions).context(other)?,
        })
    }
}

/// Starts to listen to everything.
pub(super) fn start(client: Client, interval: Duration) -> anyhow::Result<Receiver<News>> {
    let (sender, news) = channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT, SIGHUP]).context("can't wait for signals")?;
    spawn("signals", &sender, move |sender| {
        if signals.forever().next().is_some() {
            let _ = sender.send(News::Signal); // top may have ended
        }
    })?;
    spawn("keys", &sender, |sender| {
        while let Ok(event) = event::read() {
            if sender.send(News::Input(event)).is_err() {
                return;
            }
        }
    })?;
    spawn("answers", &sender, move |sender| {
        loop {
            let due = Instant::now() + interval;
            if sender.send(News::Answer(Snapshot::of(&client).map(Box::new))).is_err() {
                return;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    })?;
    Ok(news)
}

fn spawn(
    name: &'static str,
    sender: &Sender<News>,
    work: impl FnOnce(&Sender<News>) + Send + 'static,
) -> anyhow::Result<()> {
    let last = Last(name, sender.clone());
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || work(&last.1))
        .map(drop)
        .with_context(|| format!("can't start the thread {name:?}"))
}

/// Tells of the thread's end, also by a panic.
struct Last(&'static str, Sender<News>);

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.1.send(News::Ended(self.0)); // top may have ended
    }
}
