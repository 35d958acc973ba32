//! `truepeer connect`: which header goes to which destinations.

use truepeer_handover::{ConnectSettings, MOST_TLVS, TlvOfFile};
use truepeer_policy::Destinations;
use truepeer_proto::Version;

use super::problem::Problem;
use super::senders::{read_sent, refuse_twice_sent, since_1970};
use crate::spec::{ConnectArgs, defaults};

/// The settings, with files of secrets read.
pub fn connect_settings(spec: &ConnectArgs) -> Result<ConnectSettings, Problem> {
    let version = spec.send_proxy.unwrap_or(defaults::SEND_PROXY);
    if !spec.send_tlv.is_empty() && version == Version::V1 {
        return Err(Problem::needs("send-tlv", "send-proxy", "v2"));
    }
    refuse_twice_sent(&spec.send_tlv)?;
    if spec.send_tlv.len() > MOST_TLVS {
        return Err(Problem::at("send-tlv", format!("expected at most {MOST_TLVS}")));
    }
    let mut tlvs = Vec::new();
    for (sent, secrets) in spec.send_tlv.iter().zip(read_sent(&spec.send_tlv)?) {
        // The program may change its directory.
        let path = std::path::absolute(&sent.file).unwrap_or_else(|_| sent.file.clone());
        if path.to_str().is_none_or(|path| path.contains('\n')) {
            return Err(Problem::at("send-tlv", "expected a path in UTF-8 without a line break"));
        }
        let mut tlv = TlvOfFile { kind: sent.kind, is_keyed: sent.is_keyed, path, read: None };
        tlv.set(&secrets, since_1970);
        tlvs.push(tlv);
    }
    tlvs.sort_by_key(|tlv| tlv.is_keyed);
    let mut to = Destinations::default();
    spec.to.iter().for_each(|entry| to.extend(entry));
    Ok(ConnectSettings { from: spec.from, version, to, tlvs, verbose: spec.how.verbose })
}
