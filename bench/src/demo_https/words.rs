//! Constants shared by load and origin.

/// The first argument that turns this program into the load.
pub(super) const AS_LOAD: &str = "__demo-load";
/// The guide's file.
pub(super) const PAGE: &str = "/1kb";
/// The path for which the origin returns the address it sees.
pub(super) const WHO: &str = "/who";
