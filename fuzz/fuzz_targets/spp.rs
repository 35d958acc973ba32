//! Datagrams of Simple Proxy Protocol: no panic, and a decoded header is written unchanged into replies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_proto::spp;

fuzz_target!(|datagram: &[u8]| {
    match spp::decode(datagram) {
        Ok(header) => {
            let mut written = [0; spp::LEN];
            assert_eq!(spp::encode(&header, &mut written), Ok(spp::LEN));
            assert_eq!(written, datagram[..spp::LEN]);
        }
        Err(error) => assert!(error.offset <= datagram.len() && error.offset < spp::LEN),
    }
});
