//! Why there is no certificate, and what to do.

use std::time::Duration;

use instant_acme::Problem;

use crate::schedule::RATE_LIMITED;

/// The longest text of an authority in the log.
const MOST_CHARS: usize = 500;

/// An order that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Failure {
    text: String,
    /// The pause that the authority asks for.
    pub(crate) pause: Option<Duration>,
    /// The account is not known there any more: it can be made anew.
    pub(crate) lost_account: bool,
    /// The authority has refused the nonces of a request and of its repetitions.
    pub(crate) bad_nonce: bool,
    /// The authority can't be reached, or does not answer.
    pub(crate) is_of_connection: bool,
}

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            pause: None,
            lost_account: false,
            bad_nonce: false,
            is_of_connection: false,
        }
    }

    /// An error of a request. `pause`: what its answer asks for.
    pub(crate) fn of(doing: &str, error: &instant_acme::Error, pause: Option<Duration>) -> Self {
        match error {
            instant_acme::Error::Api(problem) => Self::told(doing, problem, pause),
            instant_acme::Error::Other(error) => {
                let failure = Self::new(format!("{doing}: {}", causes(&**error)));
                Self { is_of_connection: error.is::<std::io::Error>(), ..failure }
            }
            other => Self::new(format!("{doing}: {}", causes(other))),
        }
    }

    fn told(doing: &str, problem: &Problem, pause: Option<Duration>) -> Self {
        let kind = kind(problem);
        let pause = pause.or((kind == "rateLimited").then_some(RATE_LIMITED));
        let text = format!("{doing}: the authority refuses it: {}", told(problem));
        let (lost_account, bad_nonce) = (kind == "accountDoesNotExist", kind == "badNonce");
        Self { text, pause, lost_account, bad_nonce, is_of_connection: false }
    }

    /// A name that the authority could not check.
    pub(crate) fn of_name(name: &str, by_http: bool, problem: Option<&Problem>) -> Self {
        let Some(problem) = problem else { return Self::new(format!("{name}: the authority refuses it")) };
        let way = if by_http { "port 80 (http-01)" } else { "port 443 (tls-alpn-01)" };
        let hint = match kind(problem) {
            "connection" | "tls" | "unauthorized" | "incorrectResponse" => {
                format!("; expected: {name} leads to this host, and its {way} can be reached from everywhere")
            }
            "dns" => format!("; expected: {name} has an address (A or AAAA) that leads to this host"),
            "caa" => "; expected: no CAA record there that names other authorities only".to_owned(),
            _ => String::new(),
        };
        Self::new(format!("{name}: the authority could not check it: {}{hint}", told(problem)))
    }
}

/// Whether it is about what the authority found when it checked a name.
pub(crate) fn is_of_check(problem: &Problem) -> bool {
    matches!(kind(problem), "connection" | "tls" | "unauthorized" | "incorrectResponse" | "dns" | "caa")
}

/// The last part of a problem's type: urn:ietf:params:acme:error:….
fn kind(problem: &Problem) -> &str {
    problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default()
}

/// The authority's own words, with an explanation of the kinds that users meet.
fn told(problem: &Problem) -> String {
    let mut text = problem.detail.clone().unwrap_or_else(|| "without a reason".to_owned());
    for sub in &problem.subproblems {
        text.extend(sub.detail.iter().map(|detail| format!("; {detail}")));
    }
    let (text, kind) = (line(&text), kind(problem));
    let advice = match kind {
        "externalAccountRequired" => "it wants an account of its own first: eab-id and eab-key",
        "userActionRequired" => "its terms have changed",
        "rejectedIdentifier" => "it certifies no such name",
        "rateLimited" => "too many requests: a staging authority is for trying",
        "invalidContact" | "unsupportedContact" => "it wants another email",
        _ => return format!("{text} ({})", line(kind)),
    };
    format!("{text} ({kind}: {advice})")
}

/// An answer has up to a megabyte; the log has one line for it.
fn line(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MOST_CHARS).collect()
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, detail: &str) -> Problem {
        let json =
            format!(r#"{{"type":"urn:ietf:params:acme:error:{kind}","detail":"{detail}","status":400}}"#);
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn what_the_authority_says_is_explained() {
        let of = |kind| {
            let error = instant_acme::Error::Api(problem(kind, "no"));
            Failure::of("new order", &error, None)
        };
        assert!(of("externalAccountRequired").to_string().contains("eab-id and eab-key"));
        assert_eq!(of("rateLimited").pause, Some(RATE_LIMITED));
        assert_eq!(of("malformed").pause, None);
        assert!(of("accountDoesNotExist").lost_account);
        assert!(of("badNonce").bad_nonce && !of("malformed").bad_nonce);
        assert_eq!(of("malformed").to_string(), "new order: the authority refuses it: no (malformed)");
    }

    #[test]
    fn whatever_the_authority_says_is_one_line() {
        let long = "x".repeat(10_000);
        let told = told(&problem(&format!("a\\nb{long}"), &format!("c\\u001b\\nd{long}")));
        assert!(told.starts_with("cdxx") && told.contains(" (abxx"), "{told}");
        assert!(told.len() < 1100 && !told.contains(char::is_control), "{}", told.len());
    }

    #[test]
    fn a_name_that_cannot_be_checked_is_told_with_what_is_expected() {
        for (kind, by_http, expected) in [
            ("connection", true, "its port 80 (http-01) can be reached"),
            ("unauthorized", false, "its port 443 (tls-alpn-01) can be reached"),
            ("dns", true, "has an address (A or AAAA)"),
            ("caa", true, "CAA record"),
        ] {
            let text = Failure::of_name("a.test", by_http, Some(&problem(kind, "why"))).to_string();
            assert!(text.starts_with("a.test: the authority could not check it: why"), "{text}");
            assert!(text.contains(expected), "{text}");
        }
    }
}
