//! Several sites on one listener, told apart by the name that a client asks for in its handshake (SNI).

use std::collections::HashMap;
use std::sync::Arc;

use rustls::ServerConfig;
use truepeer_origin::host::host_of;
use truepeer_stream::tls::{Hello, ServerTls};

/// What happens to clients that ask for no site's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownHost {
    /// The first site serves them.
    #[default]
    First,
    /// Their handshake is refused, and a request for such a host, too.
    Refuse,
}

/// The sites by name. An exact name comes first, then `*.NAME`, which stands for one label (RFC 9525, 6.3).
#[derive(Debug, Default)]
pub struct SiteNames {
    exact: HashMap<String, usize>,
    /// `*.example.org` as `example.org`.
    below: HashMap<String, usize>,
    unknown: UnknownHost,
}

impl SiteNames {
    /// `all`: the names of each site, in lower case. A name belongs to the first site that has it.
    #[must_use]
    pub fn new<'a>(all: impl IntoIterator<Item = &'a [String]>, unknown: UnknownHost) -> Self {
        let mut names = Self { unknown, ..Self::default() };
        for (number, of_site) in all.into_iter().enumerate() {
            for name in of_site {
                let (map, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut names.below, parent),
                    None => (&mut names.exact, name.as_str()),
                };
                map.entry(name.to_owned()).or_insert(number);
            }
        }
        names
    }

    /// The site that has this name.
    fn find(&self, name: &str) -> Option<usize> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let below = || self.below.get(name.split_once('.')?.1);
        self.exact.get(&name).or_else(below).copied()
    }

    /// The site for a client that asks for `name`. `None`: it is refused.
    pub(crate) fn site(&self, name: Option<&str>) -> Option<usize> {
        let unknown = (self.unknown == UnknownHost::First).then_some(0);
        name.and_then(|name| self.find(name)).or(unknown)
    }

    /// Whether a request for `host` (which may have a port) belongs on a connection of another site than
    /// `own`. A name that no site has stays with the site of its connection, unless such names are refused.
    pub(crate) fn misdirects(&self, own: usize, host: &[u8]) -> bool {
        let found = std::str::from_utf8(&host_of(host)).ok().and_then(|host| self.find(host));
        found.map_or(self.unknown == UnknownHost::Refuse, |site| site != own)
    }
}

/// The site that a connection has reached.
#[derive(Debug, Clone)]
pub struct OwnSite {
    /// All sites of the listener.
    pub names: Arc<SiteNames>,
    /// Its number among them.
    pub number: usize,
}

/// The TLS configurations of several sites.
#[derive(Debug)]
pub struct SitesTls {
    names: Arc<SiteNames>,
    first: Arc<ServerTls>,
    others: Vec<Arc<ServerTls>>,
}

impl SitesTls {
    /// The configuration of each site, in the order of `names`.
    #[must_use]
    pub fn new(names: Arc<SiteNames>, first: Arc<ServerTls>, others: Vec<Arc<ServerTls>>) -> Self {
        Self { names, first, others }
    }

    /// The configuration for this client. `None`: it is refused.
    pub(crate) fn choose(&self, hello: &Hello) -> Option<Arc<ServerConfig>> {
        match self.names.site(hello.name.as_deref())?.checked_sub(1) {
            None => Some(self.first.config()),
            Some(other) => self.others.get(other).map(|tls| tls.config()),
        }
    }

    /// The configuration for a client whose first message can't be read, to tell it so.
    pub(crate) fn any(&self) -> Arc<ServerConfig> {
        self.first.config()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(unknown: UnknownHost) -> SiteNames {
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = [of(&["a.test", "www.a.test"]), of(&["b.test", "*.b.test"]), of(&["x.b.test", "a.test"])];
        SiteNames::new(all.iter().map(Vec::as_slice), unknown)
    }

    #[test]
    fn a_site_is_found_by_its_name() {
        let names = names(UnknownHost::First);
        for (name, site) in [
            ("a.test", 0),
            ("WWW.A.test.", 0),
            ("b.test", 1),
            ("y.b.test", 1),
            ("x.b.test", 2),
            // A wildcard stands for one label.
            ("z.y.b.test", 0),
            ("c.test", 0),
        ] {
            assert_eq!(names.site(Some(name)), Some(site), "{name}");
        }
        assert_eq!(names.site(None), Some(0));
    }

    #[test]
    fn an_unknown_name_is_refused_if_so_configured() {
        let names = names(UnknownHost::Refuse);
        assert_eq!((names.site(Some("c.test")), names.site(None)), (None, None));
        assert_eq!(names.site(Some("b.test")), Some(1));
    }

    #[test]
    fn a_request_for_another_sites_host_is_misdirected() {
        let first = names(UnknownHost::First);
        for (own, host, expected) in [
            (0, "a.test", false),
            (0, "A.test.:8443", false),
            (0, "b.test", true),
            (0, "x.b.test:443", true),
            (1, "x.b.test", true),
            (1, "y.b.test", false),
            (2, "a.test", true),
            // Nobody's.
            (1, "c.test", false),
            (1, "[::1]:443", false),
            (1, "", false),
        ] {
            assert_eq!(first.misdirects(own, host.as_bytes()), expected, "{own} {host}");
        }
        let refusing = names(UnknownHost::Refuse);
        assert!(refusing.misdirects(0, b"c.test") && refusing.misdirects(0, b"192.0.2.1"));
        assert!(!refusing.misdirects(0, b"a.test:443"));
    }
}
