//! The letters of names and values (RFC 9113 section 8.2.1).

/// The lower case of each byte that a name may contain; 0: none may.
const LOWER: [u8; 256] = {
    let (mut lower, mut at) = ([0; 256], 0);
    let letters = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    while at < letters.len() {
        lower[letters[at] as usize] = letters[at];
        lower[letters[at].to_ascii_uppercase() as usize] = letters[at];
        at += 1;
    }
    lower
};

/// Whether it is a token in lower case. A pseudo-field's name is none.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| LOWER[usize::from(byte)] == byte && byte != 0)
}

/// Whether it is a token, in whatever case.
pub(super) fn is_token(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| LOWER[usize::from(byte)] != 0)
}

/// Whether a field may have this value, as in HTTP/1.1.
pub(super) fn is_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens_and_values_have_no_control_characters() {
        for byte in 0..=u8::MAX {
            let is_letter = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(is_token(&[b'a', byte]), is_letter, "{byte}");
            assert_eq!(is_name(&[b'a', byte]), is_letter && !byte.is_ascii_uppercase(), "{byte}");
            assert_eq!(is_value(&[byte]), byte == b'\t' || !byte.is_ascii_control(), "{byte}");
        }
        assert!(!is_name(b"") && !is_token(b"") && is_value(b""));
    }
}
