//! The compiled programs.

use crate::AttachError;

/// An object file with its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object {
    pub(crate) name: &'static str,
    bytes: &'static [u8],
}

impl Object {
    pub(crate) fn bytes(self) -> Result<&'static [u8], AttachError> {
        if are_built_in() { Ok(self.bytes) } else { Err(AttachError::NotBuilt) }
    }
}

/// Whether clang was there when this was built.
pub const fn are_built_in() -> bool {
    cfg!(not(no_programs))
}

macro_rules! object {
    ($constant:ident, $name:literal) => {
        #[cfg(not(no_programs))]
        pub(crate) const $constant: Object = Object {
            name: $name,
            bytes: aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/", $name, ".o")),
        };
        #[cfg(no_programs)]
        pub(crate) const $constant: Object = Object { name: $name, bytes: &[] };
    };
}

object!(TCP_INGRESS, "tcp_ingress");
object!(TCP_EGRESS, "tcp_egress");
object!(PEER_NAME, "peer_name");
object!(TCP_END, "tcp_end");
object!(HEADER_CHECK, "header_check");
