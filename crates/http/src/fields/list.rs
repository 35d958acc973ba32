//! The fields of one message, all in one buffer that is used again for the next one.

use super::name::{self, FieldName};

/// A part of a list's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    start: u32,
    end: u32,
}

/// A field as it stands in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its kind.
    pub name: FieldName,
    /// Its name as it was written.
    pub spelt: &'a [u8],
    /// Its value without surrounding white space.
    pub value: &'a [u8],
    /// The text from the field's name to two bytes behind its value; empty if that is beyond the end.
    around: &'a [u8],
}

impl<'a> Field<'a> {
    /// Whether its name is one of the client's address, such as `X-Real-IP`. `X-Azure-SocketIP` and others
    /// are of a proxy's.
    pub(super) fn names_the_clients_address(&self) -> bool {
        const ENDS: [&str; 8] = [
            "client-ip",
            "clientip",
            "-real-ip",
            "-connecting-ip",
            "-connecting-ipv6",
            "-src-ip",
            "-user-ip",
            "-external-address",
        ];
        ENDS.iter().any(|end| name::ends(self.spelt, end))
    }

    /// Whether its name is one of the client's protocol, such as `X-Forwarded-Ssl`.
    pub(super) fn names_a_protocol(&self) -> bool {
        ["-proto", "-protocol", "-scheme", "-ssl", "-https"].iter().any(|end| name::ends(self.spelt, end))
    }

    /// The field's whole line with CRLF, if it came as [`crate::write`] would write it.
    pub(crate) fn line(&self) -> Option<&'a [u8]> {
        let rest = self.around.strip_prefix(self.spelt)?.strip_prefix(b": ")?;
        (rest.len() == self.value.len() + 2 && rest.ends_with(b"\r\n")).then_some(self.around)
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    name: FieldName,
    spelt: Span,
    value: Span,
}

/// Fields in the order in which they came, and whatever text their message keeps beside them (its first
/// line).
///
/// Clearing keeps the memory: a connection's second message costs no allocation. Resting gives back what few
/// need.
#[derive(Debug, Clone, Default)]
pub struct FieldList {
    text: Vec<u8>,
    entries: Vec<Entry>,
}

impl FieldList {
    /// As much memory as most heads need.
    const USUAL_BYTES: usize = 4 << 10;

    /// Forgets every field and all text.
    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    /// As [`Self::clear`], for a connection that may wait for long: gives back memory that usual heads do not
    /// need.
    pub fn rest(&mut self) {
        self.clear();
        if self.held_bytes() > Self::USUAL_BYTES {
            *self = Self::default();
        }
    }

    /// The bytes of memory that it holds, used or not.
    fn held_bytes(&self) -> usize {
        self.text.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> + Clone {
        self.entries.iter().map(|entry| Field {
            name: entry.name,
            spelt: self.at(entry.spelt),
            value: self.at(entry.value),
            around: self.around(entry),
        })
    }

    fn around(&self, entry: &Entry) -> &[u8] {
        self.text.get(entry.spelt.start as usize..entry.value.end as usize + 2).unwrap_or_default()
    }

    /// The values of every field that is `name`.
    pub fn values(&self, name: FieldName) -> impl Iterator<Item = &[u8]> + Clone {
        self.entries.iter().filter(move |entry| entry.name == name).map(|entry| self.at(entry.value))
    }

    /// Where the values of every field that is `name` stand.
    pub(crate) fn spans(&self, name: FieldName) -> impl Iterator<Item = Span> {
        self.entries.iter().filter(move |entry| entry.name == name).map(|entry| entry.value)
    }

    /// Whether there is such a field.
    #[must_use]
    pub fn has(&self, name: FieldName) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// The elements of the comma-separated lists in all fields that are `name`, empty ones left out.
    pub fn elements(&self, name: FieldName) -> impl Iterator<Item = &[u8]> + Clone {
        self.values(name)
            .flat_map(|value| value.split(|&byte| byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|element| !element.is_empty())
    }

    /// The text that `span` marks.
    #[must_use]
    pub fn at(&self, span: Span) -> &[u8] {
        self.text.get(span.start as usize..span.end as usize).unwrap_or_default()
    }

    /// Adds a field. The caller has checked that name and value are valid.
    pub fn push(&mut self, spelt: &[u8], value: &[u8]) {
        self.push_known(FieldName::of(spelt), spelt, value);
    }

    /// As [`Self::push`], where the kind of the name is known.
    pub(crate) fn push_known(&mut self, name: FieldName, spelt: &[u8], value: &[u8]) {
        let entry = Entry { name, spelt: self.keep(spelt), value: self.keep(value) };
        self.entries.push(entry);
    }

    /// Keeps a piece of text beside the fields.
    pub(crate) fn keep(&mut self, text: &[u8]) -> Span {
        let start = self.text.len();
        self.text.extend_from_slice(text);
        span(start, text.len())
    }

    /// Adds a field whose name and value stand in the text already, so many bytes from its start.
    pub(crate) fn mark(&mut self, spelt: Span, value: Span) {
        let name = FieldName::of(self.at(spelt));
        self.entries.push(Entry { name, spelt, value });
    }
}

/// A span of `len` bytes. Lists are far below 4 GiB: heads have a limit.
pub(crate) fn span(start: usize, len: usize) -> Span {
    let end = u32::try_from(start + len).unwrap_or(u32::MAX);
    Span { start: u32::try_from(start).unwrap_or(u32::MAX), end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rests_holds_no_more_than_usual() {
        let mut list = FieldList::default();
        list.push(b"Cookie", b"a");
        let usual = list.held_bytes();
        list.rest();
        assert!(list.is_empty());
        assert_eq!(list.held_bytes(), usual);
        list.push(b"Cookie", &[b'a'; 30_000]);
        list.rest();
        assert_eq!(list.held_bytes(), 0);
        (0..1000).for_each(|_| list.push(b"A", b""));
        list.rest();
        assert_eq!(list.held_bytes(), 0);
        list.keep(&[b'a'; 30_000]);
        list.rest();
        assert_eq!((list.text.capacity(), list.entries.capacity()), (0, 0));
    }

    #[test]
    fn usual_memory_to_its_last_byte_is_kept() {
        for (bytes, kept) in
            [(FieldList::USUAL_BYTES, FieldList::USUAL_BYTES), (FieldList::USUAL_BYTES + 1, 0)]
        {
            let mut list = FieldList { text: Vec::with_capacity(bytes), entries: Vec::new() };
            assert_eq!(list.held_bytes(), bytes);
            list.rest();
            assert_eq!(list.text.capacity(), kept);
        }
    }

    #[test]
    fn fields_are_counted() {
        let mut list = FieldList::default();
        assert_eq!((list.len(), list.is_empty()), (0, true));
        list.push(b"A", b"1");
        list.push(b"A", b"2");
        assert_eq!((list.len(), list.is_empty()), (2, false));
    }

    /// Such a line is copied into a message without another look at its parts.
    #[test]
    fn only_a_line_that_is_spelt_as_it_would_be_written_is_taken_whole() {
        for (text, name, value, line) in [
            ("Name: value\r\n", 0..4, 6..11, Some("Name: value\r\n")),
            ("Name: value\r\nNext: x\r\n", 0..4, 6..11, Some("Name: value\r\n")),
            ("Empty: \r\n", 0..5, 7..7, Some("Empty: \r\n")),
            ("Name:value\r\n", 0..4, 5..10, None),
            ("Name:  value\r\n", 0..4, 7..12, None),
            ("Name: value \r\n", 0..4, 6..11, None),
            ("Name: value", 0..4, 6..11, None),
        ] {
            let mut list = FieldList::default();
            list.keep(text.as_bytes());
            list.mark(span(name.start, name.len()), span(value.start, value.len()));
            let lines: Vec<_> = list.iter().map(|field| field.line()).collect();
            assert_eq!(lines, [line.map(str::as_bytes)], "{text:?}");
        }
    }
}
