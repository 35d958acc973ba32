//! A plain reader of messages as truepeer writes them. It is strict: truepeer writes each message anew.

/// How a body ends.
pub(super) enum Framing {
    Nothing,
    Length(usize),
    Chunked,
    UntilClose,
}

pub(super) struct Head {
    pub(super) first: String,
    fields: Vec<(String, String)>,
}

impl Head {
    /// The value of the only field of this name.
    pub(super) fn only(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let value = values.next()?;
        assert!(values.next().is_none(), "{name} comes twice");
        Some(&value.1)
    }

    pub(super) fn has(&self, name: &str, value: &str) -> bool {
        self.fields.iter().any(|(field, is)| field.eq_ignore_ascii_case(name) && is == value)
    }

    /// The framing that the fields name; `None`: neither a length nor chunks.
    pub(super) fn framing(&self) -> Option<Framing> {
        match (self.only("Content-Length"), self.only("Transfer-Encoding")) {
            (None, None) => None,
            (Some(length), None) => Some(Framing::Length(length.parse().expect("a length"))),
            (None, Some("chunked")) => Some(Framing::Chunked),
            (length, coding) => panic!("Content-Length: {length:?}, Transfer-Encoding: {coding:?}"),
        }
    }
}

/// A message, or as much of it as there is.
pub(super) struct Message {
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Option<Head>,
    /// Its end is there, too. Without that, it ends with the connection or is broken off.
    pub(super) is_whole: bool,
    pub(super) is_until_close: bool,
    /// The length of the whole message.
    pub(super) length: usize,
}

/// The message at the front; `None`: its head is not whole.
pub(super) fn message(bytes: &[u8], framing: impl FnOnce(&Head) -> Framing) -> Option<Message> {
    let (head, mut at) = head(bytes)?;
    let framing = framing(&head);
    let is_until_close = matches!(framing, Framing::UntilClose);
    let mut body = Vec::new();
    let mut trailers = None;
    let is_whole = match framing {
        Framing::Nothing => true,
        Framing::Length(length) => {
            let rest = &bytes[at..];
            body.extend_from_slice(&rest[..length.min(rest.len())]);
            at += body.len();
            body.len() == length
        }
        Framing::UntilClose => {
            body.extend_from_slice(&bytes[at..]);
            at = bytes.len();
            false
        }
        Framing::Chunked => {
            let end = chunks(&bytes[at..], &mut body);
            if let Some((length, section)) = end {
                at += length;
                trailers = Some(section);
            }
            trailers.is_some()
        }
    };
    Some(Message { head, body, trailers, is_whole, is_until_close, length: at })
}

/// The head, and its length.
fn head(bytes: &[u8]) -> Option<(Head, usize)> {
    let end = find(bytes, b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes[..end]);
    let mut lines = text.split("\r\n");
    let first = lines.next()?.to_owned();
    Some((Head { first, fields: lines.map(field).collect() }, end + 4))
}

fn field(line: &str) -> (String, String) {
    let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?} is no field"));
    assert!(!name.is_empty() && !name.contains([' ', '\t']), "{line:?} is no field");
    (name.to_owned(), value.trim().to_owned())
}

/// Reads chunks into `body`. Returns the length of all, and the trailers, if the end is there.
fn chunks(bytes: &[u8], body: &mut Vec<u8>) -> Option<(usize, Head)> {
    let mut at = 0;
    loop {
        let line = find(&bytes[at..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).expect("the size of a chunk");
        let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
        at += line + 2;
        if size == 0 {
            break;
        }
        let rest = &bytes[at..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        let end = rest.get(size..size + 2)?;
        assert_eq!(end, b"\r\n", "the end of a chunk");
        at += size + 2;
    }
    if bytes[at..].starts_with(b"\r\n") {
        return Some((at + 2, Head { first: String::new(), fields: Vec::new() }));
    }
    let end = at + find(&bytes[at..], b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes[at..end]);
    let fields = text.split("\r\n").map(field).collect();
    Some((end + 4, Head { first: String::new(), fields }))
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|part| part == text)
}
