//! Reasons in words, with their codes beside them: what `status`, `top`, `doctor` and the page show. Metrics
//! and JSON have the codes alone.

use std::fmt::{self, Display};

use truepeer_bpf::COUNTERS;
use truepeer_relay::StaysReason;
use truepeer_session::Reason;

/// A code, with what it means and what to do. Both are missing for a code of another version of truepeer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told<'a> {
    pub(crate) code: &'a str,
    pub(crate) meaning: Option<&'static str>,
    pub(crate) advice: Option<&'static str>,
}

/// Why something was refused or failed.
pub(crate) fn refusal(code: &str) -> Told<'_> {
    let reason = Reason::of_code(code);
    Told { code, meaning: reason.map(Reason::meaning), advice: reason.map(Reason::advice) }
}

/// Why a session stays in user space.
pub(crate) fn stay(code: &str) -> Told<'_> {
    let reason = StaysReason::ALL.iter().find(|reason| reason.label() == code);
    Told { code, meaning: reason.map(|reason| reason.meaning()), advice: None }
}

/// What the kernel's programs of `attach` have counted.
pub(crate) fn of_attach(code: &str) -> Told<'_> {
    let counter = COUNTERS.iter().find(|counter| counter.name == code);
    Told { code, meaning: counter.map(|counter| counter.meaning), advice: None }
}

impl Told<'_> {
    /// Without what to do.
    pub(crate) fn short(&self) -> String {
        Told { advice: None, ..*self }.to_string()
    }
}

impl Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(meaning) = self.meaning else { return f.write_str(self.code) };
        f.write_str(meaning)?;
        self.advice.map_or(Ok(()), |advice| write!(f, "; {advice}"))?;
        write!(f, " ({})", self.code)
    }
}

/// The text in lines of at most `width` columns, if that is known. Lines after the first begin with `indent`
/// blanks.
pub(crate) fn folded(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width > indent + 20) else { return text.to_owned() };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, |line| line.chars().count());
        match lines.last_mut() {
            Some(last) if line == 0 => last.push_str(word),
            Some(last) if indent + line + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_that_can_be_counted_is_told_in_words() {
        for reason in Reason::ALL {
            let told = refusal(reason.code()).to_string();
            assert!(told.ends_with(&format!("{} ({})", reason.advice(), reason.code())), "{told}");
        }
        for reason in StaysReason::ALL {
            assert_eq!(
                stay(reason.label()).to_string(),
                format!("{} ({})", reason.meaning(), reason.label())
            );
        }
        for counter in COUNTERS {
            assert_eq!(
                of_attach(counter.name).to_string(),
                format!("{} ({})", counter.meaning, counter.name)
            );
        }
    }

    #[test]
    fn a_code_of_another_version_stays_as_it_is() {
        for told in [refusal("new_code"), stay("new_code"), of_attach("new_code")] {
            assert_eq!(told.to_string(), "new_code");
        }
        assert_eq!(
            refusal("v2_family").short().to_string(),
            "version 2: an unknown address family (v2_family)"
        );
    }

    #[test]
    fn a_long_text_is_folded_under_its_beginning() {
        let text = "one two three four five six seven";
        assert_eq!(folded(text, 4, Some(26)), "one two three four\n    five six seven");
        assert_eq!(folded(text, 4, None), text);
        assert_eq!(folded(text, 4, Some(10)), text, "a terminal that is too narrow folds by itself");
        assert_eq!(folded(&"x".repeat(90), 4, Some(80)), "x".repeat(90));
    }
}
