//! `top` on a screen of any size: 80 columns and 24 lines show everything, smaller ones the most important.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Sparkline};

use super::model::{History, Model, Popup, RECENT};
use super::{listeners, popup, sessions};
use crate::reasons;
use crate::units::{Age, Bytes, Count};

/// The reasons that are shown; `truepeer status` prints all.
const MOST_REASONS: usize = 5;

/// Draws everything.
pub(super) fn draw(model: &Model, frame: &mut Frame<'_>) {
    let height = frame.area().height;
    let reasons = model.refusals.len().min(if height < 20 { 2 } else { MOST_REASONS });
    let below = if height < 14 || reasons == 0 { 0 } else { u16::try_from(reasons + 1).unwrap_or_default() };
    let [head, rates, table, refusals, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(if height < 8 {
            0
        } else if height < 20 {
            2
        } else {
            4
        }),
        Constraint::Min(1),
        Constraint::Length(below),
        Constraint::Length(u16::from(height > 2)),
    ])
    .areas(frame.area());
    draw_head(model, frame, head);
    draw_rates(model, frame, rates);
    if model.shows_listeners {
        listeners::draw(model, frame, table);
    } else {
        sessions::draw(model, frame, table);
    }
    draw_refusals(model, frame, refusals);
    draw_keys(model, frame, keys);
    match &model.popup {
        Popup::None => {}
        Popup::Help => popup::help(frame),
        Popup::Details(session, is_open) => popup::details(session, *is_open, frame),
    }
}

/// Less important.
pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// A part of the screen, with a line above it.
pub(super) fn part(title: String) -> Block<'static> {
    let title = Line::styled(title, Style::new().remove_modifier(Modifier::DIM));
    Block::new().borders(Borders::TOP).border_style(dim()).title(title)
}

fn draw_head(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let Some((at, status)) = &model.answer else { return };
    let red = Style::new().fg(Color::Red);
    if let Some(problem) = &model.problem {
        let age = Age(Instant::now().saturating_duration_since(*at).as_secs_f64());
        let text = format!("No answer for {age}, asking again. {problem}");
        return frame.render_widget(Line::styled(text, red), area);
    }
    let open: usize = status.listeners.iter().map(|listener| listener.open).sum();
    let taken = status.listeners.iter().map(|listener| listener.taken()).sum();
    let state = if status.state == "serving" { Style::new().fg(Color::Green) } else { red };
    let mut spans = vec![
        Span::styled("truepeer ", Modifier::BOLD),
        Span::raw(format!("{} ", status.version)),
        Span::styled(status.state.clone(), state),
        Span::raw(format!("  {} open of {} taken", Count(open as u64), Count(taken))),
    ];
    if let Some(pid) = model.process_before() {
        let text = format!("  process {} instead of {pid}", status.pid);
        spans.push(Span::styled(text, Style::new().fg(Color::Yellow)));
    } else {
        spans.push(Span::styled(format!("  process {}", status.pid), dim()));
    }
    if let Some(reason) = &status.reason {
        spans.push(Span::styled(format!("  {reason}"), red));
    }
    frame.render_widget(Line::from(spans), area);
}

fn draw_rates(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let thirds: [Rect; 3] = Layout::horizontal([Constraint::Ratio(1, 3); 3]).spacing(1).areas(area);
    let last = |history: &History| history.front().copied().flatten().unwrap_or_default();
    let titles = [
        format!("new {}/s", Count(last(&model.taken))),
        format!("up {}/s", Bytes(last(&model.up))),
        format!("down {}/s", Bytes(last(&model.down))),
    ];
    let histories = [(&model.taken, Color::Yellow), (&model.up, Color::Cyan), (&model.down, Color::Green)];
    for ((title, (history, colour)), area) in titles.into_iter().zip(histories).zip(thirds) {
        let width = usize::from(area.width);
        // The newest is at the right.
        let mut data = vec![None; width.saturating_sub(history.len())];
        data.extend(history.iter().take(width).rev());
        let line = Sparkline::default().block(part(title)).data(data).style(Style::new().fg(colour));
        frame.render_widget(line, area);
    }
}

fn draw_refusals(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let mut reasons: Vec<_> =
        model.refusals.iter().map(|(reason, times)| (times.recent(), times.total, reason)).collect();
    reasons.sort_by_key(|(recent, total, reason)| (std::cmp::Reverse((*recent, *total)), *reason));
    let shown = usize::from(area.height.saturating_sub(1));
    let more = match reasons.len().saturating_sub(shown) {
        0 => String::new(),
        more => format!(", {more} more reasons in truepeer status"),
    };
    let lines = reasons.into_iter().take(shown).map(|(recent, total, reason)| {
        let recent = if recent > 0 { format!("+{}", Count(recent)) } else { String::new() };
        let left = usize::from(area.width).saturating_sub(BEFORE_REASON);
        Line::raw(format!("{:>12} {recent:>8}  {}", Count(total), fitting(reason, left)))
    });
    let lines: Vec<_> = lines.collect();
    let title = format!("refusals, + in the last {RECENT} answers{more}");
    frame.render_widget(Paragraph::new(lines).block(part(title)), area);
}

/// The columns before a reason.
const BEFORE_REASON: usize = 23;

/// As much about a reason as there is room for: what it means, its code, what to do.
fn fitting(reason: &str, width: usize) -> String {
    let told = reasons::refusal(reason);
    let mut longest_first = [told.to_string(), told.short()].into_iter();
    let meaning = told.meaning.unwrap_or(reason);
    longest_first.find(|text| text.chars().count() <= width).unwrap_or_else(|| meaning.to_owned())
}

fn draw_keys(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let text = if model.is_typing {
        "a part of an address, a stage, a tag …  Enter keep  Esc clear"
    } else if model.shows_listeners {
        "q quit  ? help  Tab sessions"
    } else {
        "q quit  ? help  / filter  s sort  Up Down choose  Enter details  Tab listeners"
    };
    frame.render_widget(Line::styled(text, dim()), area);
}

#[cfg(test)]
mod tests;
