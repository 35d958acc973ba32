//! The suites, their loads, the transports, and the backends.

mod backend;
mod load;
mod scale;
mod selection;
mod suite;
mod transport;

pub(crate) use backend::{Kind, OriginKind};
pub(crate) use load::{FEW, Load, MANY, ON_STACKS};
pub(crate) use scale::Scale;
pub(crate) use selection::Selection;
pub(crate) use suite::Suite;
pub(crate) use transport::Transport;
