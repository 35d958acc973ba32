//! Numbers and addresses as heads have them. Each request has some, and `core::fmt` costs as much as parsing
//! its head.

use std::io::Write as _;
use std::net::IpAddr;

/// The digits of 2^64 - 1.
const MOST_DIGITS: usize = 20;

/// Appends `number` in decimal.
pub(crate) fn push(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; MOST_DIGITS];
    let mut start = MOST_DIGITS;
    loop {
        start -= 1;
        digits[start] += (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Appends an address as `Display` writes it.
pub(crate) fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    let IpAddr::V4(address) = address else {
        let _ = write!(out, "{address}"); // a vector takes everything
        return;
    };
    // Append all digits at once: each single push would check the vector's capacity.
    let (mut text, mut length) = ([b'.'; "255.255.255.255".len()], 0);
    for (at, byte) in address.octets().into_iter().enumerate() {
        length += usize::from(at > 0);
        for (most, digit) in [(99, byte / 100), (9, byte / 10 % 10), (0, byte % 10)] {
            if byte > most || most == 0 {
                text[length] = b'0' + digit;
                length += 1;
            }
        }
    }
    out.extend_from_slice(&text[..length]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_addresses_are_written_as_display_does() {
        for number in [0, 7, 10, 200, 65_536, u64::MAX] {
            let mut out = b"at ".to_vec();
            push(&mut out, number);
            assert_eq!(out, format!("at {number}").into_bytes());
        }
        for address in [
            "0.0.0.0",
            "9.10.99.100",
            "192.0.2.10",
            "255.255.255.255",
            "::",
            "2001:db8::1",
            "::ffff:192.0.2.1",
        ] {
            let mut out = Vec::new();
            push_address(&mut out, address.parse().unwrap());
            assert_eq!(out, address.as_bytes());
        }
    }
}
