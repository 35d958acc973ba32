//! Privileges: what each way needs, as data.

mod capability;
pub(crate) mod needs;

pub(crate) use capability::{Capability, held};
