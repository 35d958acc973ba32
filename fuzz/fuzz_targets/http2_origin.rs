//! An HTTP/2 origin that sends anything, in any pieces, to truepeer's client.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| truepeer_http::http2::any_origin(bytes));
