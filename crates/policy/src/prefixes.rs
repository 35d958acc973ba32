//! Sets of prefixes, and their notation in words and files.
//!
//! One syntax everywhere: `loopback`, `private`, `any`, a prefix such as `10.0.0.0/8`, or a single address.
//! Bits after the prefix length are ignored, as in similar programs written in Go.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use prefix_trie::joint::JointPrefixSet;

/// The meaning of `loopback`.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];
/// The meaning of `private`: RFC 1918 and RFC 4193. It excludes loopback, link-local and carrier-grade NAT
/// addresses.
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];
/// The meaning of `any`.
const ANY: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Addresses by prefix. Empty by default.
#[derive(Clone)]
pub struct PrefixSet(JointPrefixSet<IpNet>);

/// Text that is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a prefix: expected loopback, private, any, an address, or a prefix such as 10.0.0.0/8 or 2001:db8::/32"
)]
pub struct PrefixError {
    text: String,
}

/// A line of a prefix file that is not a prefix. The whole file is then unused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct PrefixFileError {
    /// Counted from 1.
    pub line: usize,
    /// The content of the line.
    pub error: PrefixError,
}

impl PrefixSet {
    /// No address.
    pub fn new() -> Self {
        Self(JointPrefixSet::new())
    }

    /// This machine: `127.0.0.0/8` and `::1`.
    pub fn loopback() -> Self {
        Self::of(&LOOPBACK)
    }

    /// Every address.
    pub fn any() -> Self {
        Self::of(&ANY)
    }

    fn of(prefixes: &[&str]) -> Self {
        prefixes.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Parses a file: one entry on each line. `#` (or `;`) starts a comment, also after an entry. Blank lines
    /// are skipped. Fails closed: one invalid line makes the whole file invalid.
    pub fn parse_file(text: &str) -> Result<Self, PrefixFileError> {
        let mut set = Self::new();
        for (index, line) in text.lines().enumerate() {
            let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
            if !entry.is_empty() {
                let entry = entry.parse().map_err(|error| PrefixFileError { line: index + 1, error })?;
                set.extend(&entry);
            }
        }
        Ok(set)
    }

    /// Adds one prefix. An IPv4-mapped one counts as IPv4.
    pub fn insert(&mut self, prefix: IpNet) {
        self.0.insert(canonical(prefix));
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        for prefix in other.0.iter() {
            self.0.insert(prefix);
        }
    }

    /// Whether an address (in canonical form) is in the set.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.get_lpm(&host(ip)).is_some()
    }

    /// Whether every address of a family is in the set.
    pub fn has_everybody(&self) -> bool {
        self.0.iter().any(|prefix| prefix.prefix_len() == 0)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The prefixes, IPv4 first, in order.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> + '_ {
        self.0.iter()
    }
}

/// An IPv4-mapped IPv6 prefix as the IPv4 prefix it stands for; host bits cleared.
fn canonical(prefix: IpNet) -> IpNet {
    if let IpNet::V6(v6) = prefix
        && let Some(ip) = v6.addr().to_ipv4_mapped()
        && let Some(length) = v6.prefix_len().checked_sub(96)
        && let Ok(v4) = Ipv4Net::new(ip, length)
    {
        return IpNet::V4(v4.trunc());
    }
    prefix.trunc()
}

/// One prefix or address, without the words.
pub(crate) fn parse_prefix(text: &str) -> Option<IpNet> {
    let prefix = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    Some(canonical(prefix))
}

impl FromStr for PrefixSet {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        match text {
            "loopback" => Ok(Self::of(&LOOPBACK)),
            "private" => Ok(Self::of(&PRIVATE)),
            "any" => Ok(Self::of(&ANY)),
            _ => match parse_prefix(text) {
                Some(prefix) => Ok(core::iter::once(prefix).collect()),
                None => Err(PrefixError { text: text.to_owned() }),
            },
        }
    }
}

impl FromIterator<IpNet> for PrefixSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(prefixes: I) -> Self {
        let mut set = Self::new();
        prefixes.into_iter().for_each(|prefix| set.insert(prefix));
        set
    }
}

impl Default for PrefixSet {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for PrefixSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PrefixSet {}

impl fmt::Display for PrefixSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, prefix) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            prefix.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for PrefixSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The prefix that contains only this address, for look-ups.
pub(crate) fn host(ip: IpAddr) -> IpNet {
    IpNet::from(ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> PrefixSet {
        text.parse().unwrap()
    }

    fn holds(set: &PrefixSet, ip: &str) -> bool {
        set.contains(ip.parse().unwrap())
    }

    #[test]
    fn words_mean_what_the_documentation_says() {
        for (word, inside, outside) in [
            ("loopback", &["127.0.0.1", "127.255.0.9", "::1"][..], &["10.0.0.1", "::", "128.0.0.0"][..]),
            (
                "private",
                &["10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.9.9", "fd00::1"],
                &["127.0.0.1", "172.32.0.0", "100.64.0.1", "169.254.0.1", "fe80::1", "2001:db8::1"],
            ),
            ("any", &["0.0.0.0", "255.255.255.255", "::", "2001:db8::1"], &[]),
            ("10.0.0.7", &["10.0.0.7"], &["10.0.0.6", "10.0.0.8", "::ffff:0:0"]),
            ("10.0.0.7/8", &["10.255.0.1"], &["11.0.0.0"]),
            ("2001:db8::/32", &["2001:db8:ffff::1"], &["2001:db9::", "1.2.3.4"]),
            ("::ffff:10.0.0.0/104", &["10.9.9.9"], &["11.0.0.1"]),
            ("::/0", &["::1"], &["1.2.3.4"]),
        ] {
            for ip in inside {
                assert!(holds(&set(word), ip), "{word} has {ip}");
            }
            for ip in outside {
                assert!(!holds(&set(word), ip), "{word} has not {ip}");
            }
        }
    }

    #[test]
    fn what_is_not_a_prefix_is_refused_with_its_text() {
        for text in
            ["", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "localhost", "Any", " any", "::/129", "10.0.0.0/8 x"]
        {
            let error = text.parse::<PrefixSet>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("10.0.0.0/8"), "{error}");
        }
    }

    #[test]
    fn files_have_comments_and_blank_lines() {
        let read = PrefixSet::parse_file("# head\n\n 10.0.0.0/8 # ours\r\n\t::1\n;old\nprivate").unwrap();
        assert_eq!(read.to_string(), "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7");
        assert!(PrefixSet::parse_file("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn a_broken_line_refuses_the_file_and_is_named() {
        let error = PrefixSet::parse_file("10.0.0.0/8\n\n10.0.0.300 # typo\n").unwrap_err();
        assert_eq!(error.line, 3);
        let text = error.to_string();
        assert!(text.starts_with("line 3: \"10.0.0.300\" is not a prefix"), "{text}");
    }

    #[test]
    fn the_empty_set_holds_nobody() {
        assert!(!holds(&PrefixSet::new(), "127.0.0.1"));
        assert!(!PrefixSet::new().has_everybody());
        assert!(PrefixSet::any().has_everybody());
    }
}
