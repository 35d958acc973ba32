//! Schemes that authenticate a connection instead of a request.

use super::list::{Field, FieldList};

/// Whether these fields, a request's or a response's, ask for or are part of a scheme that authenticates the
/// TCP connection: NTLM, Negotiate (RFC 4559 section 4). An origin takes every later request on such a
/// connection for the same user's, so that it must carry nobody else's.
#[must_use]
pub fn binds_the_connection(fields: &FieldList) -> bool {
    fields.iter().any(|field| is_about_authentication(&field) && names_such_a_scheme(field.value))
}

fn is_about_authentication(field: &Field<'_>) -> bool {
    [&b"authorization"[..], b"www-authenticate", b"proxy-authenticate", b"proxy-authorization"]
        .iter()
        .any(|name| field.spelt.eq_ignore_ascii_case(name))
}

/// Challenges may stand in one list. A comma within a parameter makes pieces that are no schemes: at worst a
/// connection is kept for one client that others could have used.
fn names_such_a_scheme(value: &[u8]) -> bool {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).any(|challenge| {
        let end = challenge.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(challenge.len());
        [&b"ntlm"[..], b"negotiate", b"nego2", b"kerberos"]
            .iter()
            .any(|scheme| challenge[..end].eq_ignore_ascii_case(scheme))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_of_connections_are_told_from_those_of_requests() {
        for (name, value, binds) in [
            ("WWW-Authenticate", "NTLM", true),
            ("www-authenticate", "Basic realm=\"a, b\", negotiate", true),
            ("WWW-Authenticate", "Negotiate oYG2MIGzoAMKAQ==", true),
            ("Proxy-Authenticate", "ntlm TlRMTVNTUAAC", true),
            ("Authorization", "nTLM TlRMTVNTUAAB", true),
            ("Authorization", "Negotiate YII=", true),
            ("Authorization", "Basic bnRsbTpudGxt", false),
            ("Authorization", "Bearer NTLM", false),
            ("WWW-Authenticate", "Basic realm=\"NTLM\"", false),
            ("WWW-Authenticate", "", false),
            ("X-Scheme", "NTLM", false),
        ] {
            let mut list = FieldList::default();
            list.push(b"Accept", b"*/*");
            list.push(name.as_bytes(), value.as_bytes());
            assert_eq!(binds_the_connection(&list), binds, "{name}: {value}");
        }
    }
}
