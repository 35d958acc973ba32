//! The compiled programs.

use std::sync::OnceLock;

use crate::error::AttachError;

/// An object file and its name.
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

impl Object {
    /// Whether it has a table with an entry for each processor.
    pub(crate) fn has_gro_splits(self) -> bool {
        self.name == UDP_INGRESS.name || self.name == UDP_EGRESS.name
    }
}

/// Tells one build of the programs of an attachment from another (FNV-1a). Never 0.
pub(crate) fn fingerprint() -> u32 {
    static FINGERPRINT: OnceLock<u32> = OnceLock::new();
    const OBJECTS: [Object; 9] =
        [TCP_INGRESS, TCP_EGRESS, PEER_NAME, TCP_END, UDP_INGRESS, UDP_EGRESS, UDP_SEND, BACKSTOP, WITNESS];
    *FINGERPRINT.get_or_init(|| {
        let bytes = OBJECTS.iter().flat_map(|object| object.bytes);
        bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)).max(1)
    })
}

/// Whether clang was available when this was built.
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
object!(UDP_INGRESS, "udp_ingress");
object!(UDP_EGRESS, "udp_egress");
object!(UDP_SEND, "udp_send");
object!(BACKSTOP, "backstop");
object!(WITNESS, "witness");
object!(SPLICE_IN, "splice_in");
object!(SPLICE_OUT, "splice_out");

/// Programs of tests: `c/test`.
#[cfg(test_programs)]
pub(crate) mod of_tests {
    use super::Object;

    object!(BANS_TEST, "bans_test");
    object!(HEADER_CHECK, "header_check");
    object!(TCP_INGRESS_TEST, "tcp_ingress_test");
    object!(TCP_EGRESS_TEST, "tcp_egress_test");
    object!(TCP_END_TEST, "tcp_end_test");
    object!(OTHER_PROGRAMS, "other_programs");
}
