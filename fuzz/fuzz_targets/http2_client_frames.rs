//! The frames of an HTTP/2 client in any pieces, as truepeer looks at them before `h2` does; and header blocks alone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_https::fuzzing::{any_blocks, any_client};

fuzz_target!(|bytes: &[u8]| match bytes.split_first() {
    Some((0..64, blocks)) => any_blocks(blocks),
    Some((_, frames)) => any_client(frames),
    None => {}
});
