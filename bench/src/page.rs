//! The page of the HTTPS loads. Every origin serves it, and every response is compared with it.

use std::sync::LazyLock;

use crate::pattern::Pattern;

/// Bytes of the page.
pub(crate) const PAGE_BYTES: usize = 1024;

static PAGE: LazyLock<Vec<u8>> = LazyLock::new(|| Pattern::bulk().at(0, PAGE_BYTES).to_vec());

/// What the origin serves under `/1kb`.
pub(crate) fn page() -> &'static [u8] {
    &PAGE
}
