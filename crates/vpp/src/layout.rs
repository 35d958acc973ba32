//! VPP's configuration: the guide's two layouts as lines for vppctl. Pure.
//!
//! ```text
//! loopback   client 172.16.3.1 ── table 3 ─▶ table 2 ── proxy 172.16.2.1 ── table 2 ─▶ table 1 ── server 172.16.1.1
//! ethernet   client's network ─▶ first device 172.16.2.1/24 ── proxy ── second device 172.16.1.2/24 ─▶ origin's network
//! ```

use std::fmt;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use truepeer_config::spec::VppDevice;

/// The guide's secret, the same for every namespace. It only prevents mix-ups. Access is controlled by the
/// private directory: only a user who can open its sockets can use VPP.
pub(super) const SECRET: u64 = 1234;

/// The application namespace that VPP creates itself.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// A program's place in the loopback layout: namespace, interface, table and address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Station {
    pub(super) namespace: &'static str,
    pub(super) interface: &'static str,
    pub(super) table: u32,
    pub(super) address: &'static str,
}

/// In the order in which the guide creates them.
pub(super) const STATIONS: [Station; 3] = [
    Station { namespace: "server", interface: "loop0", table: 1, address: "172.16.1.1" },
    Station { namespace: "proxy", interface: "loop1", table: 2, address: "172.16.2.1" },
    Station { namespace: "client", interface: "loop2", table: 3, address: "172.16.3.1" },
];

/// One of the guide's two layouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Origin, proxy and client on VPP, each in its own namespace.
    Loopback,
    /// Only the proxy on VPP, between two devices.
    Ethernet([VppPort; 2]),
}

/// A device and its address in VPP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VppPort {
    pub(crate) device: VppDevice,
    pub(crate) address: Ipv4Net,
}

impl VppPort {
    /// The device's name in VPP. dpdk devices get theirs in startup.conf, by position.
    pub(super) fn interface(&self, place: usize) -> String {
        match &self.device {
            VppDevice::Kernel(name) => format!("host-{name}"),
            VppDevice::Pci(_) => format!("eth{place}"),
        }
    }
}

/// A line for vppctl, and VPP's answer on success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) words: String,
    pub(super) answer: Answer,
}

/// vppctl's exit status is always success. A failure is an unexpected answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    /// The line answers with the name of what it created.
    Name(String),
}

impl Line {
    fn silent(words: impl Into<String>) -> Self {
        Self { words: words.into(), answer: Answer::Nothing }
    }

    fn naming(words: impl Into<String>, name: impl Into<String>) -> Self {
        Self { words: words.into(), answer: Answer::Name(name.into()) }
    }

    /// Whether VPP did what the line says.
    pub(super) fn is_done(&self, said: &str) -> bool {
        match &self.answer {
            Answer::Nothing => said.trim().is_empty(),
            Answer::Name(name) => said.trim() == name,
        }
    }
}

impl Layout {
    /// The lines in order.
    pub(super) fn lines(&self) -> Vec<Line> {
        match self {
            Self::Loopback => loopback(),
            Self::Ethernet(ports) => {
                ports.iter().enumerate().flat_map(|(place, port)| ethernet(place, port)).collect()
            }
        }
    }

    /// The namespaces in which programs can be started.
    pub(super) fn namespaces(&self) -> Vec<&'static str> {
        match self {
            Self::Loopback => STATIONS.iter().map(|station| station.namespace).collect(),
            Self::Ethernet(_) => vec![DEFAULT_NAMESPACE],
        }
    }

    /// The namespace of the proxy itself.
    pub(super) fn namespace_of_proxy(&self) -> &'static str {
        match self {
            Self::Loopback => "proxy",
            Self::Ethernet(_) => DEFAULT_NAMESPACE,
        }
    }

    /// The devices that VPP drives itself.
    pub(super) fn pci_addresses(&self) -> Vec<&str> {
        match self {
            Self::Loopback => Vec::new(),
            Self::Ethernet(ports) => ports
                .iter()
                .filter_map(|port| match &port.device {
                    VppDevice::Pci(address) => Some(address.as_str()),
                    VppDevice::Kernel(_) => None,
                })
                .collect(),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => {
                f.write_str("loopback:")?;
                STATIONS.iter().try_for_each(|at| write!(f, " {} {}", at.namespace, at.address))
            }
            Self::Ethernet(ports) => {
                f.write_str("ethernet:")?;
                ports.iter().try_for_each(|port| write!(f, " {} {}", port.device, port.address))
            }
        }
    }
}

/// Three tables are needed: within one table VPP drops packets to its own addresses.
fn loopback() -> Vec<Line> {
    let mut lines = Vec::new();
    for Station { interface, .. } in STATIONS {
        lines.push(Line::naming("create loopback interface", interface));
        lines.push(Line::silent(format!("set interface state {interface} up")));
    }
    for Station { interface, table, .. } in STATIONS {
        lines.push(Line::silent(format!("ip table add {table}")));
        lines.push(Line::silent(format!("set interface ip table {interface} {table}")));
    }
    for Station { interface, address, .. } in STATIONS {
        lines.push(Line::silent(format!("set interface ip address {interface} {address}/24")));
    }
    for Station { namespace, interface, .. } in STATIONS {
        lines.push(Line::silent(format!("app ns add id {namespace} secret {SECRET} if {interface}")));
    }
    let [server, proxy, client] = STATIONS;
    for (from, to) in [(proxy, server), (proxy, client), (server, proxy), (client, proxy)] {
        lines.push(Line::silent(format!(
            "ip route add {}/32 table {} via lookup in table {}",
            to.address, from.table, to.table
        )));
    }
    lines
}

/// Version 2 of the kernel's packet rings. Version 3, the default, delays packets to batch them.
fn ethernet(place: usize, port: &VppPort) -> Vec<Line> {
    let name = port.interface(place);
    let mut lines = Vec::new();
    if let VppDevice::Kernel(device) = &port.device {
        let mac = mac(port.address.addr());
        lines.push(Line::naming(format!("create host-interface v2 name {device} hw-addr {mac}"), &name));
    }
    lines.push(Line::silent(format!("set interface state {name} up")));
    lines.push(Line::silent(format!("set interface ip address {name} {}", port.address)));
    lines
}

/// VPP's own choice is random, and neighbours send to the old one for up to half a minute after a new start.
/// As unique in its network as the address is.
fn mac(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:fe:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use truepeer_config::spec::defaults::ETHERNET_ADDRESSES;

    fn words(layout: &Layout) -> Vec<String> {
        layout.lines().into_iter().map(|line| line.words).collect()
    }

    fn ethernet_of(first: &str, second: &str) -> Layout {
        let port = |device: &str, place: usize| VppPort {
            device: device.parse().unwrap(),
            address: ETHERNET_ADDRESSES[place],
        };
        Layout::Ethernet([port(first, 0), port(second, 1)])
    }

    #[test]
    fn the_loopback_layout_is_the_guides() {
        let guide = "create loopback interface
            set interface state loop0 up
            create loopback interface
            set interface state loop1 up
            create loopback interface
            set interface state loop2 up
            ip table add 1
            set interface ip table loop0 1
            ip table add 2
            set interface ip table loop1 2
            ip table add 3
            set interface ip table loop2 3
            set interface ip address loop0 172.16.1.1/24
            set interface ip address loop1 172.16.2.1/24
            set interface ip address loop2 172.16.3.1/24
            app ns add id server secret 1234 if loop0
            app ns add id proxy secret 1234 if loop1
            app ns add id client secret 1234 if loop2
            ip route add 172.16.1.1/32 table 2 via lookup in table 1
            ip route add 172.16.3.1/32 table 2 via lookup in table 3
            ip route add 172.16.2.1/32 table 1 via lookup in table 2
            ip route add 172.16.2.1/32 table 3 via lookup in table 2";
        let guide: Vec<&str> = guide.lines().map(str::trim).collect();
        assert_eq!(words(&Layout::Loopback), guide);
        assert_eq!(Layout::Loopback.namespaces(), ["server", "proxy", "client"]);
    }

    #[test]
    fn the_ethernet_layout_is_the_guides() {
        let layout = ethernet_of("0000:01:00.0", "01:00.1");
        let guide = [
            "set interface state eth0 up",
            "set interface ip address eth0 172.16.2.1/24",
            "set interface state eth1 up",
            "set interface ip address eth1 172.16.1.2/24",
        ];
        assert_eq!(words(&layout), guide);
        assert_eq!(layout.pci_addresses(), ["0000:01:00.0", "01:00.1"]);
        assert_eq!(layout.to_string(), "ethernet: 0000:01:00.0 172.16.2.1/24 01:00.1 172.16.1.2/24");
    }

    #[test]
    fn a_device_of_the_kernels_is_made_first() {
        let lines = ethernet_of("veth0", "01:00.1").lines();
        let words = "create host-interface v2 name veth0 hw-addr 02:fe:ac:10:02:01";
        assert_eq!(lines[0], Line::naming(words, "host-veth0"));
        assert_eq!(lines[1].words, "set interface state host-veth0 up");
        assert_eq!(lines[3].words, "set interface state eth1 up");
    }

    #[test]
    fn any_other_answer_is_a_failure() {
        let [make, up] = &Layout::Loopback.lines()[..2] else { panic!("two lines") };
        assert!(make.is_done("loop0\r\n") && up.is_done("\n"));
        assert!(!make.is_done("loop1\n") && !make.is_done(""));
        assert!(!up.is_done("set interface state: unknown interface `loop0'"));
    }
}
