//! Certificates of TLS clients, and the names in them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|der: &[u8]| truepeer_stream::tls::any_certificate(der));
