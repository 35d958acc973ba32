//! Which fields go on: those of one connection only do not (RFC 9110 section 7.6.1).
//!
//! `Via` is neither added nor removed, although RFC 9110 section 7.6.3 has gateways add it to requests:
//! origins turn compression off for it.

use super::list::{Field, FieldList};
use super::name::FieldName;

/// The fields that may be passed on, in order. Not among them: what belongs to the connection, what frames
/// the body, `Host` and `Expect`, all of which the writer writes itself; what `Connection` names; and
/// [look-alikes](FieldName::LookAlike).
///
/// `Connection` can't name what others decide by: a client that writes `Connection: authorization`, or
/// `x-forwarded-for`, would make an origin believe something else than it was told (only [`FieldName::Other`]
/// can be named).
pub fn onward(fields: &FieldList) -> impl Iterator<Item = Field<'_>> + Clone {
    let names_some = fields.elements(FieldName::Connection).any(|option| !is_usual(option));
    fields.iter().filter(move |field| match field.name {
        FieldName::Other => {
            !(names_some
                && fields
                    .elements(FieldName::Connection)
                    .any(|option| option.eq_ignore_ascii_case(field.spelt)))
        }
        FieldName::Host
        | FieldName::ContentLength
        | FieldName::TransferEncoding
        | FieldName::Connection
        | FieldName::OneHop
        | FieldName::Te
        | FieldName::Upgrade
        | FieldName::Expect
        | FieldName::LookAlike => false,
        _ => true,
    })
}

/// Options that name no field of [`FieldName::Other`].
fn is_usual(option: &[u8]) -> bool {
    [&b"keep-alive"[..], b"close", b"upgrade", b"te"].iter().any(|usual| usual.eq_ignore_ascii_case(option))
}

/// Whether the sender of these fields takes trailers: `TE: trailers`.
#[must_use]
pub fn takes_trailers(fields: &FieldList) -> bool {
    fields.elements(FieldName::Te).any(|coding| coding.eq_ignore_ascii_case(b"trailers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(fields: &[(&str, &str)]) -> Vec<String> {
        let mut list = FieldList::default();
        fields.iter().for_each(|(name, value)| list.push(name.as_bytes(), value.as_bytes()));
        onward(&list).map(|field| String::from_utf8_lossy(field.spelt).into_owned()).collect()
    }

    #[test]
    fn fields_of_the_connection_stay() {
        let all = [
            ("Host", "a"),
            ("Accept", "*/*"),
            ("Connection", "close, X-Private"),
            ("X-Private", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Connection", "keep-alive"),
            ("Proxy-Authorization", "Basic x"),
            ("Proxy", "http://evil"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"),
            ("Content_Length", "5"),
            ("X-Kept", "2"),
        ];
        assert_eq!(passed(&all), ["Accept", "X-Kept"]);
    }

    /// The option `close` names it. RFC 9112 12.1 reserves the name for that reason.
    #[test]
    fn a_field_called_close_stays() {
        assert_eq!(passed(&[("Connection", "close"), ("Close", "1"), ("A", "2")]), ["A"]);
    }

    #[test]
    fn connection_cannot_name_what_others_decide_by() {
        for name in ["Authorization", "Cookie", "X-Forwarded-For", "Forwarded", "Content-Type", "Trailer"] {
            assert_eq!(
                passed(&[("Connection", name), (name, "x"), ("connection", "X-Y"), ("x-y", "")]),
                [name]
            );
        }
    }

    #[test]
    fn trailers_are_asked_for_by_te() {
        for (value, takes) in
            [("trailers", true), ("gzip, Trailers", true), ("trailers;q=1", false), ("", false)]
        {
            let mut list = FieldList::default();
            list.push(b"TE", value.as_bytes());
            assert_eq!(takes_trailers(&list), takes, "{value}");
        }
    }
}
