//! An HTTP/2 client that sends anything, in any pieces, and tasks that serve its requests in any order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| truepeer_http::http2::any_client(bytes));
