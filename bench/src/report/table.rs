//! A table in Markdown with aligned columns, so that it is also readable on a terminal.

/// Rows of cells; the first row is the heading, the first column is left-aligned.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn with_heading<S: Into<String>>(cells: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![cells.into_iter().map(Into::into).collect()] }
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The lines, each with a line feed.
    pub(super) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(3)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            text += &line(row, &widths);
            if number == 0 {
                text += &rule(&widths);
            }
        }
        text
    }
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = widths.iter().enumerate().map(|(column, &width)| {
        let cell = row.get(column).map_or("", String::as_str);
        if column == 0 { format!(" {cell:<width$} ") } else { format!(" {cell:>width$} ") }
    });
    format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
}

fn rule(widths: &[usize]) -> String {
    let cells = widths.iter().enumerate().map(|(column, &width)| {
        let dashes = "-".repeat(width);
        if column == 0 { format!(" {dashes} ") } else { format!(" {dashes}:") }
    });
    format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let mut table = Table::with_heading(["", "↓ Mbps"]);
        table.push(vec!["no proxy".into(), "12".into()]);
        assert_eq!(table.render(), "|          | ↓ Mbps |\n| -------- | ------:|\n| no proxy |     12 |\n");
    }
}
