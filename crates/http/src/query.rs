//! The query of a request's target: `client=192.0.2.0%2F24&limit=7`.

/// The names and values, in order, with `%2F` and the like decoded in the values. A name without `=` has an
/// empty value. What is no escape stays as it is, and so does `+`; bytes that are not UTF-8 become U+FFFD.
pub fn pairs(query: &str) -> impl Iterator<Item = (&str, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name, decoded(value))
    })
}

fn decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(digit(*high) * 16 + digit(*low));
                after
            }
            _ => {
                bytes.push(*first);
                after
            }
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The value of a hexadecimal digit.
fn digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn escapes_are_decoded_and_the_rest_stays() {
        let all: Vec<_> = pairs("client=192.0.2.0%2F24&&limit&x=%zz%4a%4A%&y=a+b%2").collect();
        let expected = [("client", "192.0.2.0/24"), ("limit", ""), ("x", "%zzJJ%"), ("y", "a+b%2")];
        assert_eq!(all, expected.map(|(name, value)| (name, value.to_owned())));
        let hex: Vec<_> = pairs("a=%+1%ff%c3%a9").map(|(_, value)| value).collect();
        assert_eq!(hex, ["%+1\u{fffd}\u{e9}"]);
        assert_eq!(pairs("").count(), 0);
    }
}
