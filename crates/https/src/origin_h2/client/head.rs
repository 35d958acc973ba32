//! Reads a response's head, or its trailers, as RFC 9113 section 8 demands them.

use http::StatusCode;
use truepeer_http::fields::{FieldList, FieldName};
use truepeer_http::{HeadError, HttpLimits, ResponseHead};

/// What a field's line has besides its text in HTTP/1.1, whose limits these are.
const FIELD_BYTES: usize = ": \r\n".len();

/// What a head of valid fields counts against its limit.
pub(super) fn head_bytes(head: &ResponseHead) -> usize {
    head.fields.iter().map(|field| field.spelt.len() + field.value.len() + FIELD_BYTES).sum()
}

/// Takes the fields of one block.
pub(super) struct HeadReader<'a> {
    into: Into<'a>,
    /// The bytes that the fields may still take, and their number.
    bytes_left: usize,
    fields_left: usize,
    has_status: bool,
    has_fields: bool,
    fault: Option<Fault>,
}

/// Why fields are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// They violate the protocol.
    Malformed,
    /// They are more than the limits of heads allow, which an origin needn't know (RFC 9113 section 10.5.1).
    Excess(HeadError),
}

enum Into<'a> {
    Head(&'a mut ResponseHead),
    Trailers(&'a mut FieldList),
    /// The stream has ended: the block matters for the decoder only.
    Nothing,
}

impl<'a> HeadReader<'a> {
    pub(super) fn of_head(head: &'a mut ResponseHead, limits: &HttpLimits) -> Self {
        Self::new(Into::Head(head), limits)
    }

    pub(super) fn of_trailers(trailers: &'a mut FieldList, limits: &HttpLimits) -> Self {
        Self::new(Into::Trailers(trailers), limits)
    }

    pub(super) fn of_nothing(limits: &HttpLimits) -> Self {
        Self::new(Into::Nothing, limits)
    }

    fn new(into: Into<'a>, limits: &HttpLimits) -> Self {
        let (bytes_left, fields_left) = (limits.head_bytes, limits.fields);
        Self { into, bytes_left, fields_left, has_status: false, has_fields: false, fault: None }
    }

    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        if self.fault.is_some() || matches!(self.into, Into::Nothing) {
            return;
        }
        let bytes = name.len() + value.len() + FIELD_BYTES;
        let count = usize::from(name != b":status");
        match (self.bytes_left.checked_sub(bytes), self.fields_left.checked_sub(count)) {
            (None, _) => self.fault = Some(Fault::Excess(HeadError::TooLong)),
            (_, None) => self.fault = Some(Fault::Excess(HeadError::TooManyFields)),
            (Some(bytes_left), Some(fields_left)) => {
                (self.bytes_left, self.fields_left) = (bytes_left, fields_left);
                self.fault = if self.take(name, value) { None } else { Some(Fault::Malformed) };
            }
        }
    }

    /// What is wrong, if the fields are no whole head or no trailers.
    pub(super) fn fault(&self) -> Option<Fault> {
        let lacks_status = !self.has_status && matches!(self.into, Into::Head(_));
        self.fault.or(lacks_status.then_some(Fault::Malformed))
    }

    /// Whether the field is valid.
    fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        if name == b":status" {
            let Into::Head(head) = &mut self.into else { return false };
            let status = StatusCode::from_bytes(value).ok().filter(|_| !self.has_status && !self.has_fields);
            let Some(status) = status else { return false };
            head.begin_http2(status.as_u16(), status.canonical_reason().unwrap_or_default().as_bytes());
            self.has_status = true;
            return true;
        }
        self.has_fields = true;
        // RFC 9113 8.2.2: no connection-specific fields. Their names have no other meaning in a trailer.
        let is_valid = is_name(name) && value.iter().all(|&byte| is_in_value(byte));
        if !is_valid || is_of_connection(name) {
            return false;
        }
        match &mut self.into {
            Into::Head(head) if self.has_status => head.fields.push(name, value.trim_ascii()),
            Into::Head(_) => return false,
            // RFC 9110 6.5.1: a trailer must not change the framing, the routing, or the client's identity.
            Into::Trailers(list) if FieldName::of(name) == FieldName::Other => {
                list.push(name, value.trim_ascii())
            }
            Into::Trailers(_) | Into::Nothing => {}
        }
        true
    }
}

fn is_of_connection(name: &[u8]) -> bool {
    matches!(name, b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade")
}

/// Whether it is a token in lower case (RFC 9113 section 8.2.1). A pseudo-field is none.
pub(in super::super) fn is_name(name: &[u8]) -> bool {
    const IN_NAME: [bool; 256] = {
        let (mut is, mut at) = ([false; 256], 0);
        let others = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
        while at < others.len() {
            is[others[at] as usize] = true;
            at += 1;
        }
        is
    };
    !name.is_empty() && name.iter().all(|&byte| IN_NAME[usize::from(byte)])
}

/// Whether a field's value may contain the byte, as in HTTP/1.1.
pub(in super::super) fn is_in_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(fields: &[(&str, &str)], trailers: bool) -> bool {
        fault(fields, trailers).is_none()
    }

    fn fault(fields: &[(&str, &str)], trailers: bool) -> Option<Fault> {
        let (mut head, mut list, limits) =
            (ResponseHead::default(), FieldList::default(), HttpLimits::default());
        let mut reader = if trailers {
            HeadReader::of_trailers(&mut list, &limits)
        } else {
            HeadReader::of_head(&mut head, &limits)
        };
        fields.iter().for_each(|(name, value)| reader.field(name.as_bytes(), value.as_bytes()));
        reader.fault()
    }

    #[test]
    fn heads_begin_with_one_status_and_have_valid_fields() {
        assert!(reads(&[(":status", "200"), ("a", "b\tc"), ("a", "")], false));
        for fields in [
            &[][..],
            &[("a", "b")],
            &[("a", "b"), (":status", "200")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "200"), (":path", "/")],
            &[(":status", "20")],
            &[(":status", "099")],
            &[(":status", "2000")],
            &[(":status", "200"), ("A", "b")],
            &[(":status", "200"), ("", "b")],
            &[(":status", "200"), ("a b", "b")],
            &[(":status", "200"), ("a", "b\r\nx: y")],
            &[(":status", "200"), ("a", "\0")],
            &[(":status", "200"), ("connection", "close")],
            &[(":status", "200"), ("transfer-encoding", "chunked")],
        ] {
            assert!(!reads(fields, false), "{fields:?}");
        }
    }

    #[test]
    fn trailers_have_no_pseudo_fields() {
        assert!(reads(&[], true));
        assert!(reads(&[("x-sum", "5")], true));
        assert!(!reads(&[(":status", "200")], true));
        assert!(!reads(&[("upgrade", "a")], true));
    }

    #[test]
    fn heads_have_limits() {
        let limits = HttpLimits::default();
        let names: Vec<String> = (0..=limits.fields).map(|number| format!("a{number}")).collect();
        let mut many: Vec<(&str, &str)> = names.iter().map(|name| (&name[..], "b")).collect();
        many.insert(0, (":status", "200"));
        assert_eq!(fault(&many, false), Some(Fault::Excess(HeadError::TooManyFields)));
        many.truncate(limits.fields + 1);
        assert!(reads(&many, false));
        let long = "x".repeat(limits.head_bytes);
        assert_eq!(
            fault(&[(":status", "200"), ("a", &long)], false),
            Some(Fault::Excess(HeadError::TooLong))
        );
    }
}
