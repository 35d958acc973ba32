//! RFC 9112 as simply as possible: a whole message at once, without limits or regard for memory. As strict as
//! truepeer's parser.

/// The lines of a head, split.
pub struct Head<'a> {
    pub first_line: &'a [u8],
    pub fields: Vec<(&'a [u8], &'a [u8])>,
    /// The length up to the end of the empty line.
    pub len: usize,
}

/// How a body ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Framing {
    Nothing,
    Length(u64),
    Chunked,
}

/// The head at the start of `input`, after at most one empty line.
pub fn head(input: &[u8]) -> Option<Head<'_>> {
    let start = if input.starts_with(b"\r\n") { 2 } else { 0 };
    let end = start + input[start..].windows(4).position(|window| window == b"\r\n\r\n")?;
    let mut lines = split(&input[start..end]).into_iter();
    let first_line = lines.next().filter(|line| !line.is_empty() && is_text(line))?;
    let fields = lines.map(field).collect::<Option<_>>()?;
    Some(Head { first_line, fields, len: end + 4 })
}

impl<'a> Head<'a> {
    pub fn values(&self, name: &str) -> Vec<&'a [u8]> {
        let fields = self.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name.as_bytes()));
        fields.map(|(_, value)| *value).collect()
    }

    /// The framing from the fields; `None`: none, or contradictory.
    pub fn framing(&self) -> Option<Framing> {
        match (&self.values("content-length")[..], &self.values("transfer-encoding")[..]) {
            ([], []) => Some(Framing::Nothing),
            ([length], []) if !length.is_empty() && length.iter().all(u8::is_ascii_digit) => {
                std::str::from_utf8(length).ok()?.parse().ok().map(Framing::Length)
            }
            ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Some(Framing::Chunked),
            _ => None,
        }
    }
}

/// A chunked body at the start of `input`: its data, and its encoded length.
pub fn chunked(input: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let end = at + input[at..].windows(2).position(|window| window == b"\r\n")?;
        let line = &input[at..end];
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let is_size = (1..=16).contains(&digits) && (digits == line.len() || line[digits] == b';');
        if !is_size || !is_text(line) {
            return None;
        }
        let size = u64::from_str_radix(std::str::from_utf8(&line[..digits]).ok()?, 16).ok()?;
        at = end + 2;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok()?;
        data.extend_from_slice(input.get(at..at.checked_add(size)?)?);
        at += size;
        if input.get(at..at + 2)? != b"\r\n" {
            return None;
        }
        at += 2;
    }
    // Trailers: fields up to an empty line.
    loop {
        let end = at + input[at..].windows(2).position(|window| window == b"\r\n")?;
        let line = &input[at..end];
        at = end + 2;
        if line.is_empty() {
            return Some((data, at));
        }
        field(line)?;
    }
}

fn split(mut text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    while let Some(at) = text.windows(2).position(|window| window == b"\r\n") {
        lines.push(&text[..at]);
        text = &text[at + 2..];
    }
    lines.push(text);
    lines
}

fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let is_name = !name.is_empty()
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte));
    let start = value.iter().position(|byte| !b" \t".contains(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !b" \t".contains(byte)).map_or(start, |last| last + 1);
    (is_name && is_text(value)).then(|| (name, &value[start..end]))
}

/// No control character except the tab.
fn is_text(text: &[u8]) -> bool {
    text.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}
