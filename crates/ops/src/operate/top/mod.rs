//! `truepeer top`: the running truepeer on a terminal.
//!
//! ```text
//! admin socket ──▶ news ──▶ Model::update ─┐
//! keys, signals ─▶ news ──▶ Model::on_key ─┴─▶ view::draw ─▶ the terminal
//! ```

mod listeners;
mod model;
mod news;
mod popup;
mod sessions;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyEventKind};

use self::model::Model;
use self::news::{News, Snapshot};
use crate::admin::client::Client;
use truepeer_config::spec::{TopArgs, defaults};

/// Shows the running truepeer until `q` is typed.
pub fn top(args: &TopArgs) -> anyhow::Result<()> {
    let client = Client::of(&args.ask)?;
    anyhow::ensure!(
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        "top needs a terminal; for a pipe or a file type: truepeer status, or truepeer sessions"
    );
    let mut model = Model::default();
    // Before the screen changes: its error is then readable.
    model.update(Instant::now(), Snapshot::of(&client)?);
    let terminal = ratatui::try_init().context("can't use this terminal");
    let ended = terminal.and_then(|mut terminal| {
        run(client, &mut model, &mut terminal, args.interval.unwrap_or(defaults::TOP_INTERVAL))
    });
    ratatui::restore();
    ended
}

fn run(
    client: Client,
    model: &mut Model,
    terminal: &mut DefaultTerminal,
    interval: Duration,
) -> anyhow::Result<()> {
    let news = news::start(client, interval)?;
    loop {
        // Fails if the terminal is gone.
        terminal.draw(|frame| view::draw(model, frame)).context("the terminal")?;
        match news.recv() {
            Ok(News::Answer(Ok(snapshot))) => model.update(Instant::now(), *snapshot),
            Ok(News::Answer(Err(error))) => model.on_silence(Instant::now(), format!("{error:#}")),
            Ok(News::Input(Event::Key(key))) if key.kind != KeyEventKind::Release => model.on_key(key),
            // The window's size has changed, or the terminal has something to say.
            Ok(News::Input(_)) => {}
            Ok(News::Signal) => return Ok(()),
            Ok(News::Ended(thread)) => anyhow::bail!("the thread {thread:?} has ended"),
            Err(_) => anyhow::bail!("nothing more can be heard"),
        }
        if model.is_over {
            return Ok(());
        }
    }
}
