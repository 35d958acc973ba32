//! The host of a `Host` field.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// The host without a dot at its end; an IPv6 address in its shortest form.
fn canonical(host: &[u8]) -> Cow<'_, [u8]> {
    let inner = host.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
    let address = inner.and_then(|inner| std::str::from_utf8(inner).ok()?.parse::<Ipv6Addr>().ok());
    match address {
        Some(address) => Cow::Owned(format!("[{address}]").into_bytes()),
        None => Cow::Borrowed(host.strip_suffix(b".").unwrap_or(host)),
    }
}

/// The host of a `Host` field; IPv6 addresses keep their brackets.
pub fn without_port(host: &[u8]) -> &[u8] {
    let end = match host.iter().position(|&byte| byte == b']') {
        Some(bracket) => bracket + 1,
        None => host.iter().position(|&byte| byte == b':').unwrap_or(host.len()),
    };
    &host[..end]
}

/// The host of a `Host` field in its canonical form.
pub fn host_of(field: &[u8]) -> Cow<'_, [u8]> {
    canonical(without_port(field))
}
