//! Whole exchanges of HTTP/1.1, from the client to the origin, on simulated connections: the input decides
//! what both send, and when they end, reset, read, wait.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| truepeer_https::fuzzing::any_exchanges(bytes));
