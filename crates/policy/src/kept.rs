//! Bans as lines of a text: the list of those that are kept.

use std::fmt::Write as _;

use crate::bans::Ban;

/// The list of `truepeer ban --keep`. Everybody may read it: a truepeer that serves may have any user. Only
/// root may write to its directory, which is not that of a service: its user could lead root's writes
/// elsewhere.
pub const KEPT_BANS: &str = "/var/lib/truepeer-bans/list";

impl Ban {
    /// A line: client, port, when it was set, when it ends (seconds since 1970), user and reason, `-` for
    /// nothing.
    #[must_use]
    pub fn line(&self) -> String {
        fn or_dash<T: ToString>(value: Option<T>) -> String {
            value.map_or_else(|| "-".to_owned(), |value| value.to_string())
        }
        let mut line = format!("{} {} {} ", self.clients, or_dash(self.port), self.since);
        // Writing to a String can't fail.
        let _ = writeln!(line, "{} {} {}", or_dash(self.until), or_dash(self.by), self.why);
        line
    }

    /// The ban of a line, without its end.
    #[must_use]
    pub fn of_line(line: &str) -> Option<Self> {
        fn unless_dash<T: std::str::FromStr>(text: &str) -> Option<Option<T>> {
            if text == "-" { Some(None) } else { text.parse().ok().map(Some) }
        }
        let mut words = line.splitn(6, ' ');
        let mut next = || words.next();
        Some(Self {
            clients: next()?.parse().ok()?,
            port: unless_dash(next()?)?,
            since: next()?.parse().ok()?,
            until: unless_dash(next()?)?,
            by: unless_dash(next()?)?,
            why: next()?.into(),
        })
    }
}
