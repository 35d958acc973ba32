//! Prefixes as other programs write them, for messages that say what to type.

use core::net::{IpAddr, Ipv4Addr};

use ipnet::{Ipv4Subnets, ipv4_mask_to_prefix};

/// A netmask, a range of addresses, an address without its end or a length that is too long, as prefixes
/// with commas between them.
pub fn prefixes_meant(text: &str) -> Option<String> {
    let pair = |between: &[char]| -> Option<(Ipv4Addr, Ipv4Addr)> {
        let (first, second) = text.split_once(between)?;
        Some((first.trim().parse().ok()?, second.trim().parse().ok()?))
    };
    if let Some((base, mask)) = pair(&['/', ' ']) {
        return ipv4_mask_to_prefix(mask).ok().map(|length| format!("{base}/{length}"));
    }
    if let Some((first, last)) = pair(&['-']) {
        let all: Vec<String> = Ipv4Subnets::new(first, last, 0)
            .map(|net| if net.prefix_len() == 32 { net.addr().to_string() } else { net.to_string() })
            .collect();
        return (!all.is_empty()).then(|| all.join(","));
    }
    let (base, length) = text.split_once('/').map_or((text, None), |(base, length)| (base, Some(length)));
    if let (Ok(ip), Some(Ok(length))) = (base.parse::<IpAddr>(), length.map(str::parse::<u32>)) {
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        return (length > longest).then(|| format!("{ip}/{longest}"));
    }
    let numbers: Vec<&str> = base.split('.').take_while(|part| part.parse::<u8>().is_ok()).collect();
    let is_open = base.split('.').skip(numbers.len()).all(|part| ["*", "x", ""].contains(&part));
    if !(1..4).contains(&numbers.len()) || !is_open || (length.is_none() && !base.contains('.')) {
        return None;
    }
    let mut octets = numbers.clone();
    octets.resize(4, "0");
    let whole = (numbers.len() * 8).to_string();
    Some(format!("{}/{}", octets.join("."), length.unwrap_or(&whole)))
}

/// What is wrong with an address such as `10.0.0.300`.
#[must_use]
pub fn above_255(text: &str) -> Option<String> {
    let parts = |word: &str| word.split('.').map(str::to_owned).collect::<Vec<_>>();
    let is_number = |part: &String| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || ".-_".contains(c)));
    let mut addresses = words.map(parts).filter(|parts| parts.len() == 4 && parts.iter().all(is_number));
    addresses.find_map(|numbers| {
        let large = numbers.iter().find(|part| part.parse::<u8>().is_err())?;
        Some(format!("{}: {large} is above 255, the most in an IPv4 address", numbers.join(".")))
    })
}

#[cfg(test)]
mod tests {
    use super::{above_255, prefixes_meant};

    #[test]
    fn a_number_above_255_is_named() {
        for text in ["10.0.0.300", "10.0.0.300:80", "10.0.0.7,10.0.0.300", "10.0.0.300/24=optional"] {
            let said = "10.0.0.300: 300 is above 255, the most in an IPv4 address";
            assert_eq!(above_255(text).as_deref(), Some(said), "{text}");
        }
        for text in ["10.0.0.255", "10.0.0.7/300", "10.0.0", "300.example", "10.0.0.300.example", "::300"] {
            assert_eq!(above_255(text), None, "{text}");
        }
    }

    #[test]
    fn prefixes_of_other_programs_are_understood() {
        for (text, meant) in [
            ("10.0.0.7/255.255.255.0", Some("10.0.0.7/24")),
            ("10.0.0.0 255.0.0.0", Some("10.0.0.0/8")),
            ("10.0.0.0/255.0.255.0", None),
            ("10.0.0.0-10.0.0.255", Some("10.0.0.0/24")),
            ("10.0.0.1-10.0.0.9", Some("10.0.0.1,10.0.0.2/31,10.0.0.4/30,10.0.0.8/31")),
            ("0.0.0.0-255.255.255.255", Some("0.0.0.0/0")),
            ("255.255.255.254-255.255.255.255", Some("255.255.255.254/31")),
            ("10.0.0.9-10.0.0.1", None),
            ("10.0.*.*", Some("10.0.0.0/16")),
            ("192.168.1", Some("192.168.1.0/24")),
            ("10/8", Some("10.0.0.0/8")),
            ("10", None),
            ("10.0.0.0/33", Some("10.0.0.0/32")),
            ("2001:db8::/129", Some("2001:db8::/128")),
            ("10.0.0.0/24", None),
            ("nobody", None),
        ] {
            assert_eq!(prefixes_meant(text).as_deref(), meant, "{text}");
        }
    }
}
