//! Who may open a session, and whether a header is expected of them. Never guessed: the rule is known from the
//! sender's address before its first byte is read.

use core::fmt;
use core::str::FromStr;

use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;

use crate::prefixes::host;
use crate::{PrefixSet, SenderAddr};

/// Whether a sender's connections begin with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderRule {
    /// Every connection begins with one; one that does not is refused.
    #[default]
    Require,
    /// A connection may begin with one. Whoever may connect may then claim to be anybody: for listed senders only.
    Optional,
    /// No connection begins with one: the first byte belongs to the backend, whatever it looks like.
    Forbid,
}

/// Text that is not a header rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a header rule: expected require, optional or forbid")]
pub struct ParseHeaderRuleError(String);

impl HeaderRule {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Require => "require",
            Self::Optional => "optional",
            Self::Forbid => "forbid",
        }
    }
}

impl FromStr for HeaderRule {
    type Err = ParseHeaderRuleError;

    fn from_str(text: &str) -> Result<Self, ParseHeaderRuleError> {
        [Self::Require, Self::Optional, Self::Forbid]
            .into_iter()
            .find(|rule| rule.as_str() == text)
            .ok_or_else(|| ParseHeaderRuleError(text.to_owned()))
    }
}

impl fmt::Display for HeaderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The allow-list and the header rules of one listener.
#[derive(Clone)]
pub struct Senders {
    /// Who may connect. Fails closed: an empty set admits nobody.
    pub allow: PrefixSet,
    /// The rule for senders without one of their own.
    pub header: HeaderRule,
    /// Rules by sender prefix; the longest prefix that holds the sender decides.
    exceptions: JointPrefixMap<IpNet, HeaderRule>,
}

impl Senders {
    /// These senders, one rule for all.
    pub fn new(allow: PrefixSet, header: HeaderRule) -> Self {
        Self { allow, header, exceptions: JointPrefixMap::new() }
    }

    /// Sets the rule of the senders in `prefixes`. It does not admit them.
    pub fn set_rule(&mut self, prefixes: &PrefixSet, rule: HeaderRule) {
        for prefix in prefixes.iter() {
            self.exceptions.insert(prefix, rule);
        }
    }

    /// The rule of a sender, admitted or not.
    pub fn rule(&self, sender: SenderAddr) -> HeaderRule {
        self.exceptions.get_lpm(&host(sender.ip())).map_or(self.header, |(_, rule)| *rule)
    }
}

/// Loopback only, a header required.
impl Default for Senders {
    fn default() -> Self {
        Self::new(PrefixSet::loopback(), HeaderRule::Require)
    }
}

impl fmt::Debug for Senders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exceptions: Vec<_> = self.exceptions.iter().map(|(prefix, rule)| (prefix, *rule)).collect();
        f.debug_struct("Senders")
            .field("allow", &self.allow)
            .field("header", &self.header)
            .field("exceptions", &exceptions)
            .finish()
    }
}
