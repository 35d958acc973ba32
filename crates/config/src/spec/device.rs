//! A network device that VPP uses, as it is written.

use std::fmt;
use std::str::FromStr;

/// A network device, by its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VppDevice {
    /// Driven by the kernel, which passes its packets to VPP (af_packet): veth and every device with a name.
    Kernel(String),
    /// Driven by VPP's dpdk plugin, by PCI address.
    Pci(String),
}

impl FromStr for VppDevice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_pci_address(text) {
            return Ok(Self::Pci(text.to_ascii_lowercase()));
        }
        // IFNAMSIZ. VPP reports any other name that the kernel refuses.
        let is_name = (1..16).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:{}#,".contains(&byte));
        match is_name {
            true => Ok(Self::Kernel(text.to_owned())),
            false => Err("expected the name of a device, or a PCI address such as 0000:01:00.0"),
        }
    }
}

/// `0000:01:00.0`, or `01:00.0` as in lspci(8).
fn is_pci_address(text: &str) -> bool {
    let hex =
        |part: &str, digits: usize| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let separators: String = text.chars().filter(|c| matches!(c, ':' | '.')).collect();
    match (parts.as_slice(), separators.as_str()) {
        ([domain, bus, slot, function], "::.") => {
            hex(domain, 4) && hex(bus, 2) && hex(slot, 2) && hex(function, 1)
        }
        ([bus, slot, function], ":.") => hex(bus, 2) && hex(slot, 2) && hex(function, 1),
        _ => false,
    }
}

impl fmt::Display for VppDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(name) | Self::Pci(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_names_or_pci_addresses() {
        for (text, pci) in [
            ("0000:01:00.0", true),
            ("0001:0A:1f.7", true),
            ("01:00.0", true),
            ("eth0", false),
            ("enP1p1s0f0", false),
            ("eth0.100", false),
        ] {
            assert_eq!(matches!(text.parse(), Ok(VppDevice::Pci(_))), pci, "{text}");
            assert!(text.parse::<VppDevice>().is_ok(), "{text}");
        }
        for text in ["", "a name", "a/b", "0000:01:00", "01:00:0", "name-of-sixteen-", "a}"] {
            assert!(text.parse::<VppDevice>().is_err(), "{text:?}");
        }
    }
}
