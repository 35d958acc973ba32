//! From what a receiver should do and what it did to a verdict.

use std::fmt;

use truepeer_proto::vectors::Level;

use crate::seen::Seen;

/// What the specification wants of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Taken,
    Refused,
    /// Either; but the application must not see it.
    Any,
    /// Only that nothing is answered: the header is not complete.
    Nothing,
}

/// How the other side stands to one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As the rule says.
    Holds,
    /// Against a MUST.
    Broken,
    /// Against a SHOULD.
    Advised,
    /// Another choice than truepeer's, which the text leaves open.
    Permitted,
    /// It does not show.
    Unknown,
}

impl Verdict {
    pub(crate) fn of(want: Want, level: Level, seen: &Seen) -> Self {
        match (want, seen) {
            // PROXY 2: "MUST NOT start processing the connection before" the header is "complete and valid"
            (_, Seen::Leaked(_)) | (Want::Nothing, Seen::Taken) => Self::Broken,
            (Want::Nothing | Want::Any, _)
            | (Want::Taken, Seen::Taken)
            | (Want::Refused, Seen::Refused(_)) => Self::Holds,
            (_, Seen::Silent) => Self::Unknown,
            (Want::Taken, Seen::Refused(_)) | (Want::Refused, Seen::Taken) => Self::against(level),
        }
    }

    /// Another result than a rule of this level has.
    pub(crate) fn against(level: Level) -> Self {
        match level {
            Level::Must => Self::Broken,
            Level::Should => Self::Advised,
            Level::May => Self::Permitted,
        }
    }

    /// The word for machines.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Broken => "broken",
            Self::Advised => "advised",
            Self::Permitted => "permitted",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Taken => "taken",
            Self::Refused => "refused",
            Self::Any => "either",
            Self::Nothing => "no answer",
        })
    }
}

#[cfg(test)]
mod tests {
    use truepeer_proto::vectors::Level::{May, Must, Should};

    use super::{Verdict, Want};
    use crate::seen::Seen;

    #[test]
    fn silence_accuses_nobody_and_a_leak_everybody() {
        let refused = || Seen::Refused("closed".to_owned());
        for (want, seen, must, should, may) in [
            (Want::Taken, refused(), Verdict::Broken, Verdict::Advised, Verdict::Permitted),
            (Want::Refused, Seen::Taken, Verdict::Broken, Verdict::Advised, Verdict::Permitted),
            (Want::Refused, refused(), Verdict::Holds, Verdict::Holds, Verdict::Holds),
            (Want::Refused, Seen::Silent, Verdict::Unknown, Verdict::Unknown, Verdict::Unknown),
            (Want::Taken, Seen::Silent, Verdict::Unknown, Verdict::Unknown, Verdict::Unknown),
            (Want::Any, refused(), Verdict::Holds, Verdict::Holds, Verdict::Holds),
            (Want::Nothing, Seen::Silent, Verdict::Holds, Verdict::Holds, Verdict::Holds),
        ] {
            let verdicts = [Must, Should, May].map(|level| Verdict::of(want, level, &seen));
            assert_eq!(verdicts, [must, should, may], "{want} {seen}");
        }
        for want in [Want::Taken, Want::Refused, Want::Any, Want::Nothing] {
            assert_eq!(Verdict::of(want, May, &Seen::Leaked(String::new())), Verdict::Broken);
        }
    }
}
