//! The frames of an HTTP/2 client in any pieces, as truepeer looks at them before `h2` does, and what it changes in them; and header blocks alone.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_https::fuzzing::{any_blocks, any_client, any_watched};

fuzz_target!(|bytes: &[u8]| match bytes.split_first() {
    Some((0..64, blocks)) => any_blocks(blocks),
    Some((192.., frames)) => any_watched(frames),
    Some((_, frames)) => any_client(frames),
    None => {}
});
