//! Hosts with ports, as `Host` and absolute targets name them.

/// Whether `text` is `uri-host [ ":" port ]` with a host that is not empty (RFC 9110 section 7.2): no user,
/// no space, no list, and nothing that two programs could take for two different hosts.
#[must_use]
pub fn is_valid_host(text: &[u8]) -> bool {
    let (host, port) = match text {
        [b'[', inside @ ..] => {
            let Some(end) = inside.iter().position(|&byte| byte == b']') else { return false };
            let (literal, rest) = inside.split_at(end);
            if !is_ip_literal(literal) {
                return false;
            }
            match rest {
                [b']'] => return true,
                [b']', b':', port @ ..] => (None, port),
                _ => return false,
            }
        }
        _ => match text.iter().position(|&byte| byte == b':') {
            Some(colon) => (Some(&text[..colon]), &text[colon + 1..]),
            None => (Some(text), &[][..]),
        },
    };
    let is_host = host.is_none_or(|host| !host.is_empty() && host.iter().all(|&byte| is_reg_name(byte)));
    is_host && port.len() <= 5 && port.iter().all(u8::is_ascii_digit)
}

/// RFC 3986: unreserved, percent-encoded or sub-delims; without those that end a host for somebody (`,` `;`
/// `'` `(`…).
fn is_reg_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)
}

/// An IPv6 address. No zone: it means nothing on another host.
fn is_ip_literal(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_with_ports() {
        for good in [
            "a",
            "a.example",
            "a.example:443",
            "192.0.2.1:8443",
            "[::1]",
            "[2001:db8::1]:443",
            "a:",
            "x_y",
            "%C3%A4",
        ] {
            assert!(is_valid_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            ":443",
            "a b",
            "user@a",
            "user:pw@a",
            "a,b",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "[::1",
            "::1",
            "[::1]x",
            "[::1]:x",
            "[fe80::1%25lo]",
            "[a]",
            "a:b",
            "a:-1",
            "a:123456",
            "a:1:2",
            "\u{e4}",
            "a\u{7f}",
            "a\0",
            "[]",
            "<a>",
            "\"a\"",
        ] {
            assert!(!is_valid_host(bad.as_bytes()), "{bad}");
        }
    }
}
