//! What is wrong in a file, each with its place.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str};

/// A range of bytes of the file.
pub(super) type Span = Range<usize>;

/// An error or a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    is_warning: bool,
    /// `None`: the file as a whole.
    span: Option<Span>,
    text: String,
    help: Option<String>,
    /// A related place, and its label.
    other: Option<(Span, &'static str)>,
}

impl Finding {
    pub(super) fn error(span: Span, text: impl Into<String>) -> Self {
        Self { is_warning: false, span: Some(span), text: text.into(), help: None, other: None }
    }

    pub(super) fn of_file(text: impl Into<String>) -> Self {
        Self { is_warning: false, span: None, text: text.into(), help: None, other: None }
    }

    pub(super) fn warning(span: Span, text: impl Into<String>) -> Self {
        Self { is_warning: true, ..Self::error(span, text) }
    }

    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// The key and the value of a help that is one line to type.
    pub(super) fn to_type(&self) -> Option<(&str, &str)> {
        let (name, value) = self.help.as_deref()?.strip_prefix("type ")?.split_once(" = ")?;
        let is_key =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_key.then(|| (name, value.split_at(end_of_value(value)).0))
    }

    /// With another line to type in the place of this one.
    pub(super) fn typing(mut self, line: &str) -> Self {
        let value =
            self.to_type().map_or(0, |(name, value)| "type ".len() + name.len() + " = ".len() + value.len());
        let behind = self.help.as_deref().and_then(|help| help.get(value..)).unwrap_or_default();
        self.help = Some(format!("type {line}{behind}"));
        self
    }

    pub(super) fn beside(self, span: Span, label: &'static str) -> Self {
        Self { other: Some((span, label)), ..self }
    }
}

/// Everything that was found in one file.
#[derive(Debug)]
pub struct Findings {
    path: PathBuf,
    text: String,
    found: Vec<Finding>,
    /// The file wants its log in JSON.
    pub(super) is_json: bool,
}

impl Findings {
    pub(super) fn new(path: &Path, text: String) -> Self {
        Self { path: path.to_owned(), text, found: Vec::new(), is_json: false }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        self.found.push(finding);
    }

    /// In the order of the file.
    pub(super) fn sort(&mut self) {
        self.found.sort_by_key(|finding| finding.span.as_ref().map(|span| span.start));
    }

    /// Forgets what was found in the lines of the first `count` findings, which are about the syntax.
    pub(super) fn keep_one_a_line(&mut self, count: usize) {
        let line = |finding: &Finding| finding.span.as_ref().map(|span| self.place(span).0);
        let lines: Vec<_> = self.found.iter().take(count).map(line).collect();
        let keep = |(index, finding): (usize, &Finding)| index < count || !lines.contains(&line(finding));
        let kept: Vec<_> = self.found.iter().enumerate().map(keep).collect();
        let mut kept = kept.into_iter();
        self.found.retain(|_| kept.next().unwrap_or(true));
    }

    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub(crate) fn have_errors(&self) -> bool {
        self.found.iter().any(|finding| !finding.is_warning)
    }

    /// With carets, for people.
    pub(crate) fn render(&self, renderer: &Renderer) -> String {
        let path = self.path.to_string_lossy();
        let path = normalize_untrusted_str(&path);
        let rendered: Vec<_> =
            self.found.iter().map(|finding| renderer.render(&[self.group(finding, &path)])).collect();
        rendered.join("\n\n")
    }

    fn group<'a>(&'a self, finding: &'a Finding, path: &'a str) -> Group<'a> {
        let level = if finding.is_warning { Level::WARNING } else { Level::ERROR };
        let text = normalize_untrusted_str(&finding.text);
        let Some(span) = &finding.span else {
            return Group::with_title(level.primary_title(format!("{path}: {text}")));
        };
        let primary = AnnotationKind::Primary.span(self.within(span));
        let mut snippet = Snippet::source(&self.text).path(path).annotation(primary);
        if let Some((span, label)) = &finding.other {
            snippet = snippet.annotation(AnnotationKind::Context.span(self.within(span)).label(*label));
        }
        let group = level.primary_title(text).element(snippet);
        match &finding.help {
            Some(help) => group.element(Level::HELP.message(normalize_untrusted_str(help))),
            None => group,
        }
    }

    /// A span that can be marked: within the text, on characters' boundaries.
    fn within(&self, span: &Span) -> Span {
        let floor = |mut at: usize| {
            at = at.min(self.text.len());
            while !self.text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        let (start, end) = (floor(span.start), floor(span.end));
        start..end.max(start)
    }

    /// The text there.
    pub(super) fn typed(&self, span: &Span) -> String {
        self.text[self.within(span)].to_owned()
    }

    /// The lines of the table in which the span is, and of others of the same name.
    pub(super) fn table_of(&self, span: &Span) -> Vec<&str> {
        let place = self.place(span).0;
        let mut tables: Vec<(&str, bool, Vec<&str>)> = vec![("", false, Vec::new())];
        for (number, line) in (1..).zip(self.text.lines()) {
            if line.starts_with('[') {
                tables.push((line.trim(), false, Vec::new()));
            }
            let last = tables.len() - 1;
            tables[last].1 |= number == place;
            tables[last].2.push(line);
        }
        let name = tables.iter().find(|table| table.1).map_or("", |table| table.0);
        let is_it = |table: &&(&str, bool, Vec<&str>)| table.1 || table.0 == name && !name.starts_with("[[");
        tables.iter().filter(is_it).flat_map(|table| table.2.clone()).collect()
    }

    /// The last line above the one in which the span starts, if it is not blank.
    pub(super) fn last_above(&self, span: &Span) -> Option<Span> {
        let start = self.text[..self.within(span).start].rfind('\n')?;
        let above = self.text[..start].trim_end();
        Some(above.rfind('\n').map_or(0, |end| end + 1)..above.len())
    }

    /// The lines below the one in which the span starts.
    pub(super) fn below(&self, span: &Span) -> impl Iterator<Item = &str> {
        self.text[self.within(span).start..].lines().skip(1)
    }

    /// The line in which a span starts.
    pub(super) fn line(&self, span: &Span) -> &str {
        let at = self.within(span).start;
        let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        self.text[start..].lines().next().unwrap_or_default()
    }

    /// The text of the span's line up to the span.
    pub(super) fn before_in_line(&self, span: &Span) -> &str {
        self.text[..self.within(span).start].rsplit('\n').next().unwrap_or_default()
    }

    /// Line and column, from 1, in characters.
    fn place(&self, span: &Span) -> (usize, usize) {
        let before = &self.text[..self.within(span).start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        (line, column)
    }
}

/// A line each, for a log: `FILE:LINE:COLUMN: TEXT`.
impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (index, finding) in self.found.iter().filter(|finding| !finding.is_warning).enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match &finding.span {
                Some(span) => {
                    let (line, column) = self.place(span);
                    write!(f, "{path}:{line}:{column}: {}", finding.text)?;
                }
                None => write!(f, "{path}: {}", finding.text)?,
            }
            if let Some(help) = &finding.help {
                write!(f, "; {help}")?;
            }
        }
        Ok(())
    }
}

/// Where a value ends, behind which a help may say more.
fn end_of_value(text: &str) -> usize {
    let (mut is_inside, mut depth) = (false, 0);
    let is_end = |(_, c): &(usize, char)| {
        is_inside ^= *c == '"';
        depth += i32::from(!is_inside && *c == '[') - i32::from(!is_inside && *c == ']');
        !is_inside && depth == 0 && [',', ';', ' '].contains(c)
    };
    text.char_indices().find(is_end).map_or(text.len(), |(at, _)| at)
}
