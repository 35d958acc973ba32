//! The frames of an HTTP/2 client in any pieces, as truepeer changes them before `h2` sees them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| truepeer_https::fuzzing::any_watched(bytes));
