//! A table of the page: columns beside each other, and on a phone below each other with their names.

use std::fmt::{self, Display, Write as _};

use crate::reasons::Told;

/// A section with a table, which the script renews. It is hidden while it has no rows.
pub(super) struct Table<'a> {
    title: &'a str,
    id: &'a str,
    head: &'a [&'a str],
    rows: String,
}

pub(super) enum Cell<'a> {
    Text(String),
    /// A number, or a time.
    Number(String),
    /// A sentence, which takes the whole width on a phone.
    Words(String),
    /// A reason, with its code.
    Told(Told<'a>),
}

impl<'a> Table<'a> {
    pub(super) fn new(title: &'a str, id: &'a str, head: &'a [&'a str]) -> Self {
        Self { title, id, head, rows: String::new() }
    }

    /// Adds a row. `about`: the client or sender that it is about, by which the page's search finds it.
    pub(super) fn row(&mut self, about: Option<&str>, cells: &[Cell<'_>]) -> fmt::Result {
        match about {
            Some(about) => write!(self.rows, "<tr data-about=\"{}\">", Escaped(about))?,
            None => self.rows.push_str("<tr>"),
        }
        for (name, cell) in self.head.iter().zip(cells) {
            let name = Escaped(name);
            match cell {
                Cell::Text(text) => write!(self.rows, "<td data-name=\"{name}\">{}", Escaped(text)),
                Cell::Number(text) => write!(self.rows, "<td data-name=\"{name}\" class=n>{}", Escaped(text)),
                Cell::Words(text) => {
                    write!(self.rows, "<td data-name=\"{name}\" class=words>{}", Escaped(text))
                }
                Cell::Told(told) => {
                    write!(self.rows, "<td data-name=\"{name}\" class=words>")?;
                    write_told(&mut self.rows, told)
                }
            }?;
            self.rows.push_str("</td>");
        }
        self.rows.push_str("</tr>\n");
        Ok(())
    }

    /// Writes the section.
    pub(super) fn write(self, page: &mut String) -> fmt::Result {
        let hidden = if self.rows.is_empty() { " hidden" } else { "" };
        let (title, id) = (Escaped(self.title), self.id);
        write!(page, "<section id={id} data-live{hidden}><h2>{title}</h2>\n<table><thead><tr>")?;
        for name in self.head {
            // Numbers stand below the right end of their name.
            let class = if self.is_number(name) { " class=n" } else { "" };
            write!(page, "<th{class}>{}</th>", Escaped(name))?;
        }
        writeln!(page, "</tr></thead><tbody>\n{}</tbody></table></section>", self.rows)
    }

    fn is_number(&self, name: &str) -> bool {
        self.rows.contains(&format!("<td data-name=\"{}\" class=n>", Escaped(name)))
    }
}

fn write_told(out: &mut String, told: &Told<'_>) -> fmt::Result {
    if let Some(meaning) = told.meaning {
        write!(out, "{}", Escaped(meaning))?;
        if let Some(advice) = told.advice {
            out.push_str("; ");
            write_marked(out, advice)?;
        }
        out.push(' ');
    }
    write!(out, "<code>{}</code>", Escaped(told.code))
}

/// Names of options stand in backquotes.
fn write_marked(out: &mut String, text: &str) -> fmt::Result {
    text.split('`').enumerate().try_for_each(|(place, part)| match (place % 2, Escaped(part)) {
        (0, part) => write!(out, "{part}"),
        (_, part) => write!(out, "<b>{part}</b>"),
    })
}

/// Text within HTML, also in an attribute's quotes.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // It would turn the text around it.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                    write!(f, "{{U+{:04X}}}", character as u32)?
                }
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}
