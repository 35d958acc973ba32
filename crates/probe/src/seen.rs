//! What a connection shows about the header on it.

use std::fmt;

use crate::app::App;
use crate::talk::{End, Talk};

/// What the receiver did, as far as its application shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The application answered the request alone: the header was taken off.
    Taken,
    /// The connection ended, or an error was answered.
    Refused(String),
    /// The application was given bytes of the header, or greeted before the header was there.
    Leaked(String),
    /// Neither an answer nor an end.
    Silent,
}

impl Seen {
    /// `header`: what was sent before the request.
    pub(crate) fn of(app: App, header: &[u8], talk: &Talk) -> Self {
        let Talk { greeting, answer, end, .. } = talk;
        let served = !app.speaks_first() || (!greeting.is_empty() && app.greets(greeting));
        if served && app.answers(answer) == Some(true) {
            return Self::Taken;
        }
        if app.is_echo()
            && !answer.is_empty()
            && header.windows(answer.len().min(5)).any(|part| answer.starts_with(part))
        {
            return Self::Leaked(format!("the application received \"{}\"", start_of(answer)));
        }
        if app.speaks_first() && served {
            if talk.was_early {
                return Self::Leaked("the application greeted before the header was complete".to_owned());
            }
            let answered = if answer.is_empty() { "ended".to_owned() } else { start_of(answer) };
            return Self::Refused(format!("greeted, then answered \"{answered}\""));
        }
        let said = if answer.is_empty() { greeting } else { answer };
        match (said.is_empty(), end) {
            (false, _) => Self::Refused(format!("answered \"{}\"", start_of(said))),
            (true, End::Closed) => Self::Refused("closed".to_owned()),
            (true, End::Reset) => Self::Refused("reset".to_owned()),
            (true, End::Open) => Self::Silent,
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str("taken"),
            Self::Refused(how) => write!(f, "refused: {how}"),
            Self::Leaked(how) => write!(f, "leaked: {how}"),
            Self::Silent => f.write_str("no answer"),
        }
    }
}

/// The first line, without what a terminal would obey.
fn start_of(said: &[u8]) -> String {
    let line = said.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.escape_ascii().to_string().trim_end_matches("\\r").chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::Seen;
    use crate::talk::{End, Talk};

    fn seen(app: &str, greeting: &[u8], answer: &[u8], end: End) -> Seen {
        let talk = Talk {
            own: Ipv4Addr::LOCALHOST.into(),
            was_early: false,
            greeting: greeting.to_vec(),
            answer: answer.to_vec(),
            end,
            took: Duration::ZERO,
        };
        Seen::of(app.parse().expect(app), b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", &talk)
    }

    #[test]
    fn only_the_right_answer_is_a_header_taken() {
        let echoed = b"truepeer probe: echo this\r\n";
        assert_eq!(seen("echo", b"", echoed, End::Open), Seen::Taken);
        assert!(matches!(seen("echo", b"", b"PROXY TCP4 192", End::Open), Seen::Leaked(_)));
        assert_eq!(seen("echo", b"", b"", End::Closed), Seen::Refused("closed".to_owned()));
        assert_eq!(seen("echo", b"", b"", End::Reset), Seen::Refused("reset".to_owned()));
        assert_eq!(seen("echo", b"", b"", End::Open), Seen::Silent);
        assert_eq!(seen("smtp", b"220 mx\r\n", b"250 mx\r\n", End::Open), Seen::Taken);
        assert!(matches!(seen("smtp", b"220 mx\r\n", b"502 what?\r\n", End::Open), Seen::Refused(_)));
        assert_eq!(
            seen("smtp", b"554 no\r\n", b"", End::Closed),
            Seen::Refused("answered \"554 no\"".to_owned())
        );
        let bad = seen("http", b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", End::Closed);
        assert_eq!(bad, Seen::Refused("answered \"HTTP/1.1 400 Bad Request\"".to_owned()));
    }
}
