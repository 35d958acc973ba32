//! The static table of HPACK (RFC 7541, appendix A).

use crate::fields::FieldName;

/// The number of entries.
pub(super) const ENTRIES: usize = 61;

/// The entry at `index`, which counts from 1.
pub(super) fn get(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    STATIC.get(index.checked_sub(1)?).copied()
}

/// What [`FieldName::of`] says of the name at `index`.
pub(super) fn kind(index: usize) -> FieldName {
    match index {
        28 => FieldName::ContentLength,
        35 => FieldName::Expect,
        38 => FieldName::Host,
        48 | 49 => FieldName::OneHop,
        57 => FieldName::TransferEncoding,
        23 | 24 | 26 | 30 | 31 | 32 | 55 => FieldName::Guarded,
        _ => FieldName::Other,
    }
}

/// The first index of a name that is no pseudo-field.
const FIRST_FIELD: usize = 15;
const LONGEST_NAME: usize = 27;
const MOST_OF_ONE_LENGTH: usize = 8;

/// For each length of a name, the indices of the names that have it.
static BY_LENGTH: [[u8; MOST_OF_ONE_LENGTH]; LONGEST_NAME + 1] = {
    let mut by_length = [[0; MOST_OF_ONE_LENGTH]; LONGEST_NAME + 1];
    let mut index = FIRST_FIELD;
    while index <= ENTRIES {
        let length = STATIC[index - 1].0.len();
        let mut at = 0;
        while by_length[length][at] != 0 {
            at += 1;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 61")]
        let index_byte = index as u8;
        by_length[length][at] = index_byte;
        index += 1;
    }
    by_length
};

/// Where the table has this name of a field, in whatever case.
pub(super) fn index_of(name: &[u8]) -> Option<u8> {
    let indices = BY_LENGTH.get(name.len())?.iter().copied().take_while(|&index| index > 0);
    let is_name = |index: u8| STATIC[usize::from(index) - 1].0.eq_ignore_ascii_case(name);
    indices.into_iter().find(|&index| is_name(index))
}

/// RFC 7541, appendix A, from index 1.
static STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_table_are_found_and_known() {
        for (at, (name, _)) in STATIC.iter().enumerate() {
            let index = at + 1;
            assert_eq!(kind(index), FieldName::of(name), "{index}");
            if index < FIRST_FIELD {
                assert_eq!(index_of(name), None);
                continue;
            }
            assert_eq!(index_of(&name.to_ascii_uppercase()).map(usize::from), Some(index));
            let other = [&name[1..], b"-"].concat();
            assert_eq!(index_of(&other), None);
        }
        assert_eq!((get(0), get(62), index_of(&[b'x'; 100])), (None, None, None));
    }
}
