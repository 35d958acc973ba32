//! Several origins, and the choice between them for each request.

use std::fmt;
use std::rc::Rc;

use super::dial::{Dial, OriginProtocol};
use super::health::OriginHealth;
use super::pool::Pool;
use crate::host::host_of;
use crate::http2::Http2Pool;

/// An origin and its connections.
#[derive(Debug)]
pub struct Origin<O: Dial> {
    /// Makes connections to it.
    pub dialler: O,
    /// The version of HTTP to speak with it.
    pub protocol: OriginProtocol,
    /// Keeps idle connections (HTTP/1.1).
    pub pool: Rc<Pool<O::Stream>>,
    /// The HTTP/2 connections.
    pub http2: Rc<Http2Pool>,
    /// Whether its addresses are up, if that is checked.
    pub health: OriginHealth,
}

/// The requests that an origin gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Serves {
    /// The host, in lower case and without a dot at its end; `*.HOST`: all names below it; `None`: any.
    pub host: Option<String>,
    /// The path, or its start up to a slash; `None`: any.
    pub prefix: Option<String>,
}

impl fmt::Display for Serves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.host.as_deref().unwrap_or_default())?;
        f.write_str(self.prefix.as_deref().unwrap_or_default())
    }
}

impl Serves {
    fn matches(&self, host: &[u8], target: &[u8]) -> bool {
        self.host.as_ref().is_none_or(|wanted| has_host(wanted, host))
            && self.prefix.as_ref().is_none_or(|prefix| begins_with(target, prefix.as_bytes()))
    }

    /// The order of rules, the largest first: an exact host, then `*.HOST` with the longest host, then rules
    /// without a host; among equals, the longest path.
    fn precision(&self) -> (bool, usize, usize) {
        let below = self.host.as_ref().filter(|host| host.starts_with('*'));
        let is_exact = self.host.is_some() && below.is_none();
        (is_exact, below.map_or(0, String::len), self.prefix.as_ref().map_or(0, String::len))
    }
}

fn has_host(wanted: &str, host: &[u8]) -> bool {
    match wanted.strip_prefix('*') {
        Some(end) => {
            let at = host.len().saturating_sub(end.len());
            at > 0 && host[at..].eq_ignore_ascii_case(end.as_bytes())
        }
        None => host.eq_ignore_ascii_case(wanted.as_bytes()),
    }
}

/// `/api` has `/api`, `/api/x` and `/api?x`, not `/apis`.
fn begins_with(target: &[u8], prefix: &[u8]) -> bool {
    let Some(rest) = target.strip_prefix(prefix) else { return false };
    prefix.ends_with(b"/") || matches!(rest.first(), None | Some(b'/' | b'?'))
}

/// The origins of a listener.
pub struct Origins<O: Dial> {
    /// Gets the requests that no other origin serves.
    default: Origin<O>,
    /// The more precise rules first.
    others: Vec<(Serves, Origin<O>)>,
}

impl<O: Dial> Origins<O> {
    /// `default` gets the requests that none of `others` serves.
    #[must_use]
    pub fn new(default: Origin<O>, mut others: Vec<(Serves, Origin<O>)>) -> Self {
        others.sort_by_key(|(serves, _)| std::cmp::Reverse(serves.precision()));
        Self { default, others }
    }

    /// The number of the origin for a request.
    pub fn pick(&self, host: &[u8], target: &[u8]) -> usize {
        if self.others.is_empty() {
            return 0;
        }
        let host = host_of(host);
        let found = self.others.iter().position(|(serves, _)| serves.matches(&host, target));
        found.map_or(0, |at| at + 1)
    }

    /// The origin with this number.
    pub fn at(&self, number: usize) -> &Origin<O> {
        match number.checked_sub(1) {
            None => &self.default,
            Some(other) => self.others.get(other).map_or(&self.default, |(_, origin)| origin),
        }
    }

    /// The requests of the origin with this number, as they were typed.
    pub fn name(&self, number: usize) -> impl fmt::Display {
        let serves = number.checked_sub(1).and_then(|other| self.others.get(other)).map(|(serves, _)| serves);
        serves.map_or_else(|| "default".to_owned(), Serves::to_string)
    }

    /// The number of origins.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }
}

impl<O: Dial> fmt::Debug for Origins<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origins").field("count", &self.count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(host: &str, prefix: &str) -> Serves {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Serves { host: some(host), prefix: some(prefix) }
    }

    /// The first that matches, as [`Origins::pick`] orders them.
    fn pick(host: &str, target: &str) -> &'static str {
        let all = [
            ("", "/api"),
            ("", "/api/v2"),
            ("", "/static/"),
            ("b.test", ""),
            ("b.test", "/api"),
            ("[::1]", ""),
            ("*.test", ""),
            ("*.b.test", ""),
            ("*.b.test", "/api"),
            ("c.b.test", ""),
        ];
        let mut all: Vec<_> = all.into_iter().map(|(host, prefix)| serves(host, prefix)).collect();
        all.sort_by_key(|serves| std::cmp::Reverse(serves.precision()));
        let host = host_of(host.as_bytes());
        let found = all.iter().find(|one| one.matches(&host, target.as_bytes()));
        let text = found.map(|one| {
            format!("{}{}", one.host.as_deref().unwrap_or(""), one.prefix.as_deref().unwrap_or(""))
        });
        text.unwrap_or_default().leak()
    }

    #[test]
    fn the_more_precise_rule_decides() {
        for (host, target, expected) in [
            ("a", "/", ""),
            ("a", "/api", "/api"),
            ("a", "/api?x", "/api"),
            ("a", "/apis", ""),
            ("a", "/api/v2/x", "/api/v2"),
            ("a", "/api/v22", "/api"),
            ("a", "/static", ""),
            ("a", "/static/x", "/static/"),
            ("B.test:8443", "/", "b.test"),
            ("b.test", "/api/v2", "b.test/api"),
            ("b.test.", "/", "b.test"),
            ("b.test.:8443", "/api", "b.test/api"),
            ("[::1]:443", "/", "[::1]"),
            ("[0:0::0:1]:443", "/", "[::1]"),
            ("[::2]", "/", ""),
            ("a", "*", ""),
            // A host before the names below one, the longer of those before the shorter, and all of them
            // before a path.
            ("a.test", "/api", "*.test"),
            ("test", "/", ""),
            (".test", "/", ""),
            ("atest", "/", ""),
            ("x.y.test", "/", "*.test"),
            ("X.B.Test:443", "/", "*.b.test"),
            ("x.b.test", "/api/v2", "*.b.test/api"),
            ("x.y.b.test.", "/", "*.b.test"),
            ("c.b.test", "/api", "c.b.test"),
        ] {
            assert_eq!(pick(host, target), expected, "{host} {target}");
        }
    }
}
