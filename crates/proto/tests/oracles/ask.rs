//! Asking the three crates.

use std::net::SocketAddr;

use ppp::PartialResult;
use proxy_protocol_rs::ParseError;

use crate::Told;

/// An implementation, by its crate's name.
pub(crate) type Oracle = (&'static str, fn(&[u8]) -> Told);

pub(crate) const ORACLES: [Oracle; 3] =
    [("ppp", ask_ppp), ("proxy-header", ask_proxy_header), ("proxy-protocol-rs", ask_proxy_protocol_rs)];

fn ask_ppp(bytes: &[u8]) -> Told {
    let result = ppp::HeaderResult::parse(bytes);
    if result.is_incomplete() {
        return Told::NeedMore;
    }
    match result {
        ppp::HeaderResult::V1(Ok(header)) => {
            Told::Done { addresses: ppp_v1(&header.addresses), consumed: header.header.len() }
        }
        ppp::HeaderResult::V2(Ok(header)) => {
            let proxied = header.command == ppp::v2::Command::Proxy
                && header.protocol != ppp::v2::Protocol::Unspecified;
            let addresses = ppp_v2(&header.addresses).filter(|_| proxied);
            Told::Done { addresses, consumed: header.header.len() }
        }
        ppp::HeaderResult::V1(Err(_)) | ppp::HeaderResult::V2(Err(_)) => Told::Refused,
    }
}

fn ppp_v1(addresses: &ppp::v1::Addresses) -> Option<(SocketAddr, SocketAddr)> {
    match addresses {
        ppp::v1::Addresses::Unknown => None,
        ppp::v1::Addresses::Tcp4(ip) => Some((
            (ip.source_address, ip.source_port).into(),
            (ip.destination_address, ip.destination_port).into(),
        )),
        ppp::v1::Addresses::Tcp6(ip) => Some((
            (ip.source_address, ip.source_port).into(),
            (ip.destination_address, ip.destination_port).into(),
        )),
    }
}

fn ppp_v2(addresses: &ppp::v2::Addresses) -> Option<(SocketAddr, SocketAddr)> {
    match addresses {
        ppp::v2::Addresses::IPv4(ip) => Some((
            (ip.source_address, ip.source_port).into(),
            (ip.destination_address, ip.destination_port).into(),
        )),
        ppp::v2::Addresses::IPv6(ip) => Some((
            (ip.source_address, ip.source_port).into(),
            (ip.destination_address, ip.destination_port).into(),
        )),
        ppp::v2::Addresses::Unspecified | ppp::v2::Addresses::Unix(_) => None,
    }
}

fn ask_proxy_header(bytes: &[u8]) -> Told {
    match proxy_header::ProxyHeader::parse(bytes, proxy_header::ParseConfig::default()) {
        Ok((header, consumed)) => {
            let addresses = header.proxied_address().map(|pair| (pair.source, pair.destination));
            Told::Done { addresses, consumed }
        }
        Err(proxy_header::Error::BufferTooShort) => Told::NeedMore,
        Err(_) => Told::Refused,
    }
}

fn ask_proxy_protocol_rs(bytes: &[u8]) -> Told {
    match proxy_protocol_rs::parse(bytes) {
        Ok((info, consumed)) => {
            Told::Done { addresses: info.source_inet().zip(info.destination_inet()), consumed }
        }
        Err(ParseError::Incomplete) => Told::NeedMore,
        Err(_) => Told::Refused,
    }
}
