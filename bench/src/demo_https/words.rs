//! What load and origin agree on.

/// The first argument that makes this program the load.
pub(super) const AS_LOAD: &str = "__demo-load";
/// The guide's file.
pub(super) const PAGE: &str = "/1kb";
/// The path that the origin answers with the address it sees.
pub(super) const WHO: &str = "/who";
