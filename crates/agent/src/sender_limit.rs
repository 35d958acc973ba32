//! The operator's limit on what pods and containers may allow: `--allow-senders`.

use std::str::FromStr;

use anyhow::{Context, Result};
use ipnet::IpNet;
use truepeer_policy::PrefixSet;

/// The senders that pods may allow. By default, all.
#[derive(Clone, Default)]
pub(crate) struct SenderLimit(Option<PrefixSet>);

/// An entry of `--allow-senders`, as typed.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Prefixes(Box<PrefixSet>),
    File(String),
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(['/', '.']) {
            return Ok(Self::File(text.to_owned()));
        }
        let prefixes: PrefixSet = text.parse().map_err(|_| {
            "expected private, any, an address, a prefix such as 10.0.0.0/8, or the path of a file (beginning with / or .)"
        })?;
        Ok(Self::Prefixes(Box::new(prefixes)))
    }
}

impl SenderLimit {
    /// Reads the files.
    pub(crate) fn of(entries: &[Entry]) -> Result<Self> {
        if entries.is_empty() {
            return Ok(Self::default());
        }
        let mut sender_limit = PrefixSet::new();
        for entry in entries {
            match entry {
                Entry::Prefixes(prefixes) => sender_limit.extend(prefixes),
                Entry::File(path) => {
                    let text =
                        std::fs::read_to_string(path).with_context(|| format!("--allow-senders {path}"))?;
                    sender_limit.extend(
                        &PrefixSet::parse_file(&text).with_context(|| format!("--allow-senders {path}"))?,
                    );
                }
            }
        }
        Ok(Self(Some(sender_limit)))
    }

    /// One of these senders that the operator doesn't let pods allow.
    pub(crate) fn exceeded_by<'a>(&self, senders: impl IntoIterator<Item = &'a IpNet>) -> Option<IpNet> {
        let sender_limit = self.0.as_ref()?;
        let is_inside = |prefix: &IpNet| sender_limit.iter().any(|outer| outer.contains(prefix));
        senders.into_iter().find(|prefix| !is_inside(prefix)).copied()
    }

    /// For messages.
    pub(crate) fn shown(&self) -> String {
        let prefixes = self.0.iter().flat_map(PrefixSet::iter).map(|prefix| prefix.to_string());
        let all: Vec<_> = prefixes.collect();
        match all.len() {
            0..=8 => all.join(","),
            count => format!("{},… ({count} prefixes)", all[..8].join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation;

    fn exceeds(sender_limit: &[&str], allow: &str) -> Option<String> {
        let entries: Vec<Entry> = sender_limit.iter().map(|text| text.parse().unwrap()).collect();
        let annotations = [("truepeer.dev/ports", "80"), ("truepeer.dev/allow", allow)];
        let rules = annotation::parse(annotations).unwrap().unwrap();
        SenderLimit::of(&entries).unwrap().exceeded_by(&rules.allow).map(|prefix| prefix.to_string())
    }

    #[test]
    fn only_what_is_inside_the_cap_may_be_allowed() {
        assert_eq!(exceeds(&[], "any"), None);
        assert_eq!(exceeds(&["10.0.0.0/8"], "10.0.0.7,10.1.0.0/16,::ffff:10.2.0.1"), None);
        assert_eq!(exceeds(&["10.0.0.0/8"], "10.0.0.7,11.0.0.1").as_deref(), Some("11.0.0.1/32"));
        assert_eq!(exceeds(&["10.0.0.0/8"], "10.0.0.0/7").as_deref(), Some("10.0.0.0/7"));
        assert_eq!(exceeds(&["0.0.0.0/0"], "any").as_deref(), Some("::/0"));
        assert_eq!(exceeds(&["::/0"], "::ffff:10.0.0.1").as_deref(), Some("10.0.0.1/32"));
        assert_eq!(exceeds(&["private", "2001:db8::/32"], "192.168.0.0/24,2001:db8::7"), None);
    }

    #[test]
    fn an_empty_file_allows_nothing() {
        assert_eq!(exceeds(&["/dev/null"], "10.0.0.7").as_deref(), Some("10.0.0.7/32"));
        assert!(SenderLimit::of(&["./no-such-file".parse().unwrap()]).is_err());
        assert!("lan".parse::<Entry>().unwrap_err().starts_with("expected private"));
    }
}
