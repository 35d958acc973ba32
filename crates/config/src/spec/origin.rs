//! Origins by host and path, and their health.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use super::address::OriginUrl;
use super::{defaults, text};

/// Origins are checked no more often than this.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// And no more seldom: two checks show that one is down.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// `--origin`: `URL`, or `[HOST][/PATH]=URL` for some requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginRule {
    /// `None`: for all other requests.
    pub(crate) serves: Option<OriginMatch>,
    pub(crate) url: OriginUrl,
    /// The URL as it was typed.
    pub(crate) typed: String,
}

/// Requests by host and path; at least one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginMatch {
    /// In lower case, without a dot at its end, IPv6 addresses in their shortest form. `*.HOST`: all names
    /// below it.
    pub(crate) host: Option<String>,
    pub(crate) path: Option<String>,
}

/// `--origin-health`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthOption {
    /// `None`: every origin without a rule of its own.
    pub(crate) of: Option<OriginMatch>,
    /// `None`: the origin's own.
    pub(crate) host: Option<String>,
    /// `None`: connect.
    pub(crate) path: Option<String>,
    pub(crate) every: Duration,
}

impl FromStr for OriginRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_url = text.starts_with("http://") || text.starts_with("https://");
        let (serves, url) = match text.split_once('=') {
            Some((serves, url)) if !is_url => (Some(serves.parse()?), url),
            _ => (None, text),
        };
        Ok(Self { serves, url: url.parse()?, typed: url.to_owned() })
    }
}

impl FromStr for OriginMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected [HOST][/PATH]=URL with a host, a path or both, and no port, such as api.example=http://127.0.0.1:9000, *.example=http://127.0.0.1:9000 or /static=http://127.0.0.1:7000"
                .to_owned()
        };
        let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        if !path.bytes().all(|byte| is_in_path(byte) && byte != b'?') {
            return Err(wrong());
        }
        let host = if host.is_empty() { None } else { Some(host_of(host).ok_or_else(wrong)?) };
        let path = Some(path.to_owned()).filter(|path| path.len() > 1);
        if host.is_none() && path.is_none() {
            return Err(wrong());
        }
        Ok(Self { host, path })
    }
}

/// A byte of a path or a query.
fn is_in_path(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'#'
}

/// The canonical form of a name (which may begin with `*.`) or an address, without a port. `None`: it is
/// neither.
fn host_of(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('[') {
        let address: Ipv6Addr = inner.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{address}]"));
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let labels = name.strip_prefix("*.").unwrap_or(name);
    is_name(labels).then(|| name.to_ascii_lowercase())
}

/// A name that clients may call a site by, or `*.NAME`.
pub(super) fn site_name(text: &str) -> Result<String, String> {
    let name = host_of(text).filter(|name| !name.starts_with('[') && name.parse::<Ipv4Addr>().is_err());
    name.ok_or_else(|| {
        "expected a host name without a port, such as site.example or *.site.example".to_owned()
    })
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

impl fmt::Display for OriginMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.host.as_deref().unwrap_or_default())?;
        f.write_str(self.path.as_deref().unwrap_or_default())
    }
}

impl FromStr for HealthOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "expected [HOST]/PATH[,TIME] or connect[,TIME], such as /ready,5s or site.example/ready; for one origin [HOST][/PATH]=RULE, such as api.example=/ready"
                .to_owned()
        };
        // A match has no query.
        let (of, rule) = match text.split_once('=').filter(|(of, _)| !of.contains('?')) {
            Some((of, rule)) => (Some(of.parse().map_err(|_: String| wrong())?), rule),
            None => (None, text),
        };
        let (what, every) = match rule.rsplit_once(',') {
            Some((what, time)) => (what, text::parse_duration(time).map_err(|_| wrong())?),
            None => (rule, defaults::ORIGIN_HEALTH),
        };
        if !(LEAST_PAUSE..=LONGEST_PAUSE).contains(&every) {
            let (least, most) = (LEAST_PAUSE.as_millis(), LONGEST_PAUSE.as_secs() / 3600);
            return Err(format!("expected a time of at least {least}ms and at most {most}h"));
        }
        if what == "connect" {
            return Ok(Self { of, host: None, path: None, every });
        }
        let (host, path) = what.split_at(what.find('/').ok_or_else(wrong)?);
        if !path.bytes().all(is_in_path) || !(host.is_empty() || is_authority(host)) {
            return Err(wrong());
        }
        let host = Some(host.to_owned()).filter(|host| !host.is_empty());
        Ok(Self { of, host, path: Some(path.to_owned()), every })
    }
}

/// `HOST` or `HOST:PORT`.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_host = host_of(host).is_some_and(|host| !host.starts_with('*'));
    is_host && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_may_have_a_host_and_a_path() {
        for (text, serves) in [
            ("http://127.0.0.1:1", ""),
            ("https://app.internal/", ""),
            ("api.example=http://app", "api.example"),
            ("API.example/v2/=https://app", "api.example/v2/"),
            ("api.example.=https://app", "api.example"),
            ("*.Example.test=https://app", "*.example.test"),
            ("*.test/x=https://app", "*.test/x"),
            ("/static=http://[::1]:1", "/static"),
            ("/a=http://app/", "/a"),
            ("[2001:db8::1]=http://app", "[2001:db8::1]"),
            ("[2001:DB8:0:0::0:1]=http://app", "[2001:db8::1]"),
        ] {
            let rule: OriginRule = text.parse().unwrap();
            assert_eq!(rule.serves.map(|serves| serves.to_string()).unwrap_or_default(), serves, "{text}");
        }
        for text in [
            "=http://a",
            "/=http://a",
            "a:80=http://a",
            "a b=http://a",
            "/a?b=http://a",
            "/a#b=http://a",
            "::1=http://a",
            "*=http://a",
            "*.=http://a",
            "a.*.b=http://a",
            "*a.b=http://a",
            "[*.a]=http://a",
            ".=http://a",
        ] {
            assert!(text.parse::<OriginRule>().unwrap_err().contains("[HOST][/PATH]=URL"), "{text}");
        }
        for text in ["a=b", "/api=app:80", "a"] {
            assert!(text.parse::<OriginRule>().unwrap_err().contains("https://HOST"), "{text}");
        }
    }

    #[test]
    fn a_site_has_names_and_no_addresses() {
        for (text, name) in [("Site.Example.", "site.example"), ("*.site.test", "*.site.test"), ("a", "a")] {
            assert_eq!(site_name(text).as_deref(), Ok(name));
        }
        for text in ["", "a:443", "https://a", "192.0.2.1", "[::1]", "*", "a.*.b", "a b"] {
            assert!(site_name(text).unwrap_err().starts_with("expected a host name"), "{text}");
        }
    }

    #[test]
    fn a_health_rule_is_a_path_or_a_connection_and_a_time() {
        let seconds = Duration::from_secs;
        for (text, of, host, path, every) in [
            ("/ready", None, None, Some("/ready"), 5),
            ("/ready,2s", None, None, Some("/ready"), 2),
            ("/ready?a=1", None, None, Some("/ready?a=1"), 5),
            ("/ready?a=1,2s", None, None, Some("/ready?a=1"), 2),
            ("connect,1m", None, None, None, 60),
            ("site.test:8443/ready", None, Some("site.test:8443"), Some("/ready"), 5),
            ("[::1]/", None, Some("[::1]"), Some("/"), 5),
            ("api.example=connect", Some("api.example"), None, None, 5),
            ("/api=/ready,3", Some("/api"), None, Some("/ready"), 3),
            ("/api=site/ready?b=c", Some("/api"), Some("site"), Some("/ready?b=c"), 5),
        ] {
            let rule: HealthOption = text.parse().unwrap();
            assert_eq!(rule.of.map(|of| of.to_string()).as_deref(), of, "{text}");
            assert_eq!((rule.host.as_deref(), rule.path.as_deref()), (host, path), "{text}");
            assert_eq!(rule.every, seconds(every), "{text}");
        }
        for text in
            ["", "ready", "/ready,x", "a:1=/ready", "connect,", "a=b", "/ready#x", "a:b/ready", "*.a/ready"]
        {
            assert!(text.parse::<HealthOption>().unwrap_err().contains("connect[,TIME]"), "{text}");
        }
        for text in ["/ready,0", "/ready,99ms", "connect,1ms", "/ready,86401", "/ready,9223372036854775807"] {
            let expected = "at least 100ms and at most 24h";
            assert!(text.parse::<HealthOption>().unwrap_err().contains(expected), "{text}");
        }
        assert_eq!("/ready,24h".parse::<HealthOption>().unwrap().every, LONGEST_PAUSE);
        assert_eq!("/ready,100ms".parse::<HealthOption>().unwrap().every, LEAST_PAUSE);
    }
}
