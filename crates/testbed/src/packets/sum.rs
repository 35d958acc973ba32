//! The Internet's checksum (RFC 1071).

use std::net::IpAddr;

/// The checksum of these bytes, which start at an even offset.
pub(super) fn of(bytes: &[u8]) -> u16 {
    fold(add(0, bytes))
}

/// The checksum of a transport's bytes and the pseudo-header of its IP version.
pub(super) fn of_transport(from: IpAddr, to: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    let mut sum = u32::from(protocol);
    for address in [from, to] {
        sum = match address {
            IpAddr::V4(ip) => add(sum, &ip.octets()),
            IpAddr::V6(ip) => add(sum, &ip.octets()),
        };
    }
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    fold(add(add(sum, &len.to_be_bytes()), bytes))
}

fn add(sum: u32, bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    // 64 KiB of words are less than 2^31.
    bytes.chunks(2).map(word).fold(sum, u32::wrapping_add)
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    !u16::try_from(twice & 0xffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_over_data_and_its_checksum_is_zero() {
        // The example of RFC 1071, 3.
        let words = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(of(&words), !0xddf2);
        assert_eq!(of(&[words.as_slice(), &of(&words).to_be_bytes()].concat()), 0);
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3, 0]));
    }
}
