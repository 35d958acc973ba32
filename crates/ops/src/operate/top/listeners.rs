//! The table of listeners and attached ports.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use super::model::Model;
use super::view::{dim, part};
use crate::units::{Bytes, Count};

pub(super) fn draw(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let Some((_, status)) = &model.answer else { return };
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let listeners = status.listeners.iter().zip(&model.rates).map(|(listener, rates)| {
        let closed = if listener.listening { "" } else { " (closed)" };
        let name = format!("{} {}{closed}", listener.protocol.name(), listener.name());
        let numbers = [
            Count(listener.open as u64).to_string(),
            Count(rates.taken).to_string(),
            Count(rates.refused).to_string(),
            Bytes(rates.up).to_string(),
            Bytes(rates.down).to_string(),
        ];
        Row::new([listener.entry.clone(), name].map(Cell::from).into_iter().chain(numbers.map(right)))
    });
    let ports = status.attachments.iter().flat_map(|place| place.ports.iter().map(move |port| (place, port)));
    let attached = ports.map(|(place, port)| {
        let netns = if place.netns.is_empty() { String::new() } else { format!(" in {}", place.netns) };
        let name = format!("{} port {}{netns}", port.protocol.name(), port.port);
        let open = right(Count(port.open as u64).to_string());
        Row::new(["attach".to_owned(), name].map(Cell::from).into_iter().chain([open]))
    });
    let head = ["entry", "listener"].map(Cell::from).into_iter();
    let head =
        head.chain(["open", "new/s", "refused/s", "up/s", "down/s"].map(|text| right(text.to_owned())));
    let widths = [6, 0, 8, 8, 9, 9, 9].map(|width| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let table = Table::new(listeners.chain(attached), widths)
        .header(Row::new(head).style(dim()))
        .block(part(format!("{} listeners", status.listeners.len())));
    frame.render_widget(table, area);
}
