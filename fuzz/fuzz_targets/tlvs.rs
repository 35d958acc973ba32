//! TLVs alone: no panic, and iterating accounts for every byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_proto::tlv::TLV_HEADER_LEN;
use truepeer_proto::{Tlv, Tlvs};

fuzz_target!(|bytes: &[u8]| match Tlvs::parse(bytes) {
    Ok(tlvs) => {
        let walked: usize = tlvs.raw().map(|(_, value)| TLV_HEADER_LEN + value.len()).sum();
        assert_eq!(walked, bytes.len());
        assert_eq!(tlvs.iter().count(), tlvs.raw().count());
        tlvs.iter().for_each(look_at);
    }
    Err(error) => assert!(error.offset < bytes.len()),
});

fn look_at(tlv: Tlv<'_>) {
    drop(format!("{tlv:?}"));
    if let Tlv::Ssl(ssl) = tlv {
        ssl.iter().for_each(|sub| drop(format!("{sub:?}")));
    }
}
