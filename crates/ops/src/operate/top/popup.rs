//! What lies over the tables: help, and a session's details.

use std::net::SocketAddr;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use crate::admin::listing::SessionDoc;
use crate::units::{Age, Bytes};

const HELP: &str = "\
q, Ctrl-C    quit
/            filter sessions: a part of an address, a stage, a tag
             Enter keeps the filter, Esc clears it
s            sort sessions by rate, bytes, age or client
Up, Down     choose a session; also k, j, PageUp, PageDown, Home, End
Enter        the chosen session's details
Tab          listeners instead of sessions, and back
?            this help

up is towards backends, down towards senders. A session whose client
is not known yet is shown under its sender. A gap in a line: truepeer
did not answer.";

pub(super) fn help(frame: &mut Frame<'_>) {
    let lines: Vec<_> = HELP.lines().map(Line::raw).collect();
    draw(lines, "help, Esc closes it", frame);
}

/// All of one session. `is_open`: it was in the last answer.
pub(super) fn details(session: &SessionDoc, is_open: bool, frame: &mut Frame<'_>) {
    let address = |address: Option<SocketAddr>| {
        address.map_or_else(|| "not known yet".to_owned(), |one| one.to_string())
    };
    let mut fields = vec![
        ("id", session.id.clone()),
        ("client", address(session.client)),
        ("sender", session.sender.to_string()),
        ("listener", session.listener.clone()),
        ("backend", address(session.backend)),
        ("stage", session.stage.clone()),
        ("age", Age(session.age_seconds).to_string()),
        ("up", format!("{}, {}/s", Bytes(session.bytes_up), Bytes(session.rate_up))),
        ("down", format!("{}, {}/s", Bytes(session.bytes_down), Bytes(session.rate_down))),
    ];
    fields.extend(session.tags.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let mut lines: Vec<_> =
        fields.iter().map(|(name, value)| Line::raw(format!("{name:>18}  {value}"))).collect();
    if !is_open {
        lines.push(Line::styled("It has ended, or is not listed any more.", Style::new().fg(Color::Yellow)));
    }
    draw(lines, "session, Esc closes it", frame);
}

fn draw(lines: Vec<Line<'_>>, title: &str, frame: &mut Frame<'_>) {
    let area = frame.area();
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = area.width.min(74);
    let area = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(title);
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), area);
}
