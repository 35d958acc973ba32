//! Header fields: which ones a message has, which may be passed on, and who the client is said to be. Pure.
//!
//! ```text
//! FieldList ──▶ hop (what belongs to one connection goes) ──▶ forwarded (who the client is) ──▶ to the origin
//! ```

pub mod auth;
pub mod forwarded;
pub mod hop;
mod list;
mod name;

pub(crate) use list::span;
pub use list::{Field, FieldList, Span};
pub use name::FieldName;
