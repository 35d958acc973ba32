//! What the targets for HTTP/1 share: the code itself, and a second parser to hold it against.
//!
//! The modules are compiled as they stand, not through their crate, which has TLS in it: a minute of C for each build.

#[path = "../../../crates/https/src/http1/mod.rs"]
#[allow(dead_code, unused_imports, reason = "what its crate does with it is not needed here")]
pub mod code;
#[path = "../../../crates/https/src/decimal.rs"]
pub mod decimal;
#[path = "../../../crates/https/src/fields/mod.rs"]
#[allow(dead_code, unused_imports, reason = "what its crate does with it is not needed here")]
pub mod fields;
#[allow(dead_code, reason = "each target has its own use for it")]
pub mod plain;
