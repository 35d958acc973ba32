//! A row of the table of needs, for the report.

use serde::Serialize;

use truepeer_privilege::confine::Capability;
use truepeer_privilege::confine::needs::{self, Grade, Need};

/// A need of some way or option, and whether this process could satisfy it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Needed {
    name: &'static str,
    of: &'static str,
    /// Any one of them is enough on this kernel.
    any_of: Vec<&'static str>,
    when: Vec<&'static str>,
    required: bool,
    held: bool,
    why: &'static str,
    #[serde(skip)]
    pub(super) line: String,
}

impl Needed {
    pub(super) fn of(need: &Need) -> Self {
        let word = if need.is_held() { "have" } else { "lack" };
        let (any_of, when, of) = (need.capabilities(), need.moments(), need.of.replace('`', ""));
        Self {
            name: need.name,
            of: need.of,
            any_of: need.enough_on(needs::kernel()).map(Capability::name).collect(),
            when: need.when.iter().map(|moment| moment.name()).collect(),
            required: need.grade == Grade::Required,
            held: need.is_held(),
            why: need.why,
            line: format!("{word}  {any_of} ({when}), for {of}: {}", need.why),
        }
    }
}
