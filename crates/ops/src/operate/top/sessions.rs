//! The table of sessions.

use std::net::SocketAddr;

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Modifier;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, TableState};

use super::model::Model;
use super::view::{dim, part};
use crate::admin::listing::SessionDoc;
use crate::units::{Age, Bytes, Count};

/// stage, up, down and age, and a blank before each.
const NUMBERS: [u16; 4] = [10, 9, 9, 6];
/// On a screen as wide as this, there is room for senders.
const WIDE: u16 = 110;

pub(super) fn draw(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let visible = model.visible();
    let is_wide = area.width >= WIDE;
    let parties = if is_wide { 3 } else { 2 };
    let left = area.width.saturating_sub(NUMBERS.iter().sum::<u16>() + 3 + parties);
    // The longest IPv4 address with a port has 21 characters.
    let first = if is_wide { left / 3 } else { left - left / 2 };
    let rows = visible.iter().map(|session| row(session, usize::from(first), is_wide));
    let right = |text: &'static str| Cell::from(Line::from(text).right_aligned());
    let mut head = vec![Cell::from("client"), Cell::from("backend")];
    if is_wide {
        head.insert(1, Cell::from("sender"));
    }
    head.push(Cell::from("stage"));
    head.extend(["up/s", "down/s", "age"].map(right));
    let mut widths = vec![Constraint::Length(first); usize::from(parties)];
    if let Some(last) = widths.last_mut() {
        *last = Constraint::Fill(1);
    }
    widths.extend(NUMBERS.map(Constraint::Length));
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(dim()))
        .row_highlight_style(Modifier::REVERSED)
        .block(part(title(model, visible.len())));
    let mut state = TableState::new().with_selected(model.chosen_in(&visible));
    frame.render_stateful_widget(table, area, &mut state);
}

fn title(model: &Model, visible: usize) -> String {
    let open: usize =
        model.answer.iter().flat_map(|(_, status)| &status.listeners).map(|listener| listener.open).sum();
    let filter = match (&*model.filter, model.is_typing) {
        ("", false) => String::new(),
        (filter, true) => format!(", filter: {filter}_"),
        (filter, false) => format!(", filter: {filter}"),
    };
    // Only the first ones are asked for.
    let listed = if model.listed() < super::news::MOST_SESSIONS {
        String::new()
    } else {
        format!(" of the first {} of {}", Count(model.listed() as u64), Count(open as u64))
    };
    format!("{} sessions{listed} by {}{filter}", Count(visible as u64), model.sort.name())
}

fn row(session: &SessionDoc, first: usize, is_wide: bool) -> Row<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let address = |address: Option<SocketAddr>| {
        address.map_or_else(|| "-".to_owned(), |one| fit(&one.to_string(), first))
    };
    let mut cells =
        vec![address(session.client.or((!is_wide).then_some(session.sender))), address(session.backend)];
    if is_wide {
        cells.insert(1, address(Some(session.sender)));
    }
    cells.push(session.stage.clone());
    let numbers = [
        Bytes(session.rate_up).to_string(),
        Bytes(session.rate_down).to_string(),
        Age(session.age_seconds).to_string(),
    ];
    Row::new(cells.into_iter().map(Cell::from).chain(numbers.map(right)))
}

/// An address that is too wide loses its middle: the network and the port remain.
fn fit(address: &str, width: usize) -> String {
    if address.len() <= width || width < 12 {
        return address.to_owned();
    }
    let port = address.rfind(']').unwrap_or(address.len());
    let end = address.len().saturating_sub(port);
    let start = width.saturating_sub(end + 1);
    format!("{}…{}", &address[..start.min(port)], &address[port..])
}

#[cfg(test)]
mod tests {
    use super::fit;

    #[test]
    fn a_long_address_keeps_its_network_and_its_port() {
        let long = "[2001:db8:1234:5678:9abc:def0:1234:5678]:49152";
        assert_eq!(fit(long, 21), "[2001:db8:123…]:49152");
        assert_eq!(fit(long, 46), long);
        assert_eq!(fit("255.255.255.255:65535", 21), "255.255.255.255:65535");
        for width in 0..50 {
            assert!(width < 12 || fit(long, width).chars().count() <= width, "{width}");
        }
    }
}
