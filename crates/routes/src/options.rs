//! From what the command line says to a [`Setup`]: the one place that looks at this machine's addresses.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use serde::{Deserialize, Serialize};

use super::item::{IpTransport, Switch};
use super::netlink::{Netlink, NetlinkError};
use super::plan::{DEFAULT_TABLE, DEFAULT_TPROXY_MARK, Setup, Tproxy};
use super::sysctl;

/// Whether truepeer sets up rules and routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutesMode {
    /// Set them up. If that is not permitted, log it and continue.
    #[default]
    AutoIfAllowed,
    /// Set them up. End if that fails.
    Auto,
    /// They have been set up elsewhere.
    Manual,
}

/// What `proxy`, `routes` and `doctor` know about routing from their options.
#[derive(Debug, Clone)]
pub struct SetupOptions {
    /// `-4` and `-6` of every listener.
    pub backends: Vec<(SocketAddr, IpTransport)>,
    /// `--dynamic-allow`.
    pub dynamic: Vec<(IpNet, RangeInclusive<u16>, IpTransport)>,
    /// `--mark`; 0 is none.
    pub mark: u32,
    /// `--table`.
    pub table: u32,
    /// The listening addresses with `--listen-transparent`.
    pub listen_transparent: Vec<SocketAddr>,
    /// The ports that the firewall redirects, if known.
    pub tproxy_ports: Option<RangeInclusive<u16>>,
    /// The mark that the firewall sets with the redirection.
    pub tproxy_mark: u32,
}

impl Default for SetupOptions {
    fn default() -> Self {
        Self {
            backends: Vec::new(),
            dynamic: Vec::new(),
            mark: 0,
            table: DEFAULT_TABLE,
            listen_transparent: Vec::new(),
            tproxy_ports: None,
            tproxy_mark: DEFAULT_TPROXY_MARK,
        }
    }
}

impl SetupOptions {
    /// Sorts the backends by where they are, seen from the network namespace of this thread.
    pub fn setup(&self) -> Result<Setup, NetlinkError> {
        let local = local_addresses(&mut Netlink::open()?)?;
        let mut setup = Setup::new(self.table, self.mark);
        for (address, transport) in &self.backends {
            setup.backend(*address, *transport, &local);
        }
        for (prefix, ports, transport) in &self.dynamic {
            setup.dynamic(*prefix, ports.clone(), *transport, &local);
        }
        let ports = &self.tproxy_ports;
        let redirected =
            |listen: &SocketAddr| Tproxy { mark: self.tproxy_mark, ports: ports.clone(), listen: *listen };
        setup.tproxy = self.listen_transparent.iter().map(redirected).collect();
        setup.fwmark_accept = sysctl::read(Switch::TcpFwmarkAccept) == Some(1);
        Ok(setup)
    }
}

/// Every address of this network namespace.
pub fn local_addresses(netlink: &mut Netlink) -> Result<Vec<IpAddr>, NetlinkError> {
    Ok(netlink.addresses()?.iter().filter_map(own_address).collect())
}

/// `IFA_LOCAL` where there is one (IPv4; on a point-to-point link `IFA_ADDRESS` is the other end).
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    find(|a| if let AddressAttribute::Local(ip) = a { Some(*ip) } else { None })
        .or_else(|| find(|a| if let AddressAttribute::Address(ip) = a { Some(*ip) } else { None }))
}
