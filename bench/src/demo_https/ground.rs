//! The places of the parties: three network namespaces of the kernel, or one of the layouts of `truepeer vpp
//! up`.

use std::net::SocketAddr;
use std::path::Path;

use truepeer_testbed::{Bed, Host, Program, Running, Topology};

use super::parties::{Addresses, Parties};
use super::stop::Stop;
use super::vpp::Vpp;

/// A party; namespaces are named after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Proxy,
    Server,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Proxy => "proxy",
            Self::Server => "server",
        }
    }
}

/// A network stack with places for all parties. Dropping it removes what was set up for it.
pub(crate) enum Ground<'a> {
    Kernel(Topology),
    /// The loopback layout: a namespace of VPP's for each party.
    Vpp(Vpp<'a>),
    /// The ethernet layout: VPP has both devices of the proxy's network namespace, and no other party.
    Ethernet(Vpp<'a>, Topology),
}

impl<'a> Ground<'a> {
    /// Three network namespaces in a line.
    pub(crate) fn kernel() -> anyhow::Result<Self> {
        Ok(Self::Kernel(line()?))
    }

    /// The same, with `installation` between the proxy's devices, which are named after its neighbours.
    pub(super) fn ethernet(parties: &Parties<'a>, installation: &Path) -> anyhow::Result<Self> {
        let line = line()?;
        let proxy = host(&line, Role::Proxy);
        // They are VPP's from now on; the kernel would answer, too.
        proxy.ip(&["addr flush dev client", "addr flush dev server"])?;
        let vpp = Vpp::up(parties.bed, &parties.truepeer, installation, &ETHERNET, Some(&proxy.netns))?;
        Ok(Self::Ethernet(vpp, line))
    }

    /// The parties' addresses.
    pub(crate) fn addresses(&self) -> Addresses {
        match self {
            Self::Kernel(line) | Self::Ethernet(_, line) => Addresses {
                server: line.host(Role::Server.name()).v4,
                proxy: line.host(Role::Proxy.name()).v4,
            },
            Self::Vpp(_) => super::vpp::AT,
        }
    }

    /// An unmodified program, in its place.
    pub(crate) fn put(&self, role: Role, program: Program) -> Program {
        match self {
            Self::Kernel(line) | Self::Ethernet(_, line) => program.in_netns(&host(line, role).netns),
            Self::Vpp(vpp) => vpp.put_on(role.name(), program),
        }
    }

    /// `truepeer https` in the proxy's place; it puts itself onto VPP.
    pub(crate) fn put_truepeer(&self, program: Program) -> Program {
        match self {
            Self::Kernel(_) => self.put(Role::Proxy, program),
            Self::Vpp(vpp) | Self::Ethernet(vpp, _) => {
                program.args(["--stack=vpp", "--vpp-dir"]).arg(vpp.dir())
            }
        }
    }

    /// Starts a program in its place, and waits until it listens.
    pub(crate) fn start(
        &self,
        bed: &Bed,
        program: &Program,
        at: SocketAddr,
        stop: &Stop,
    ) -> anyhow::Result<Running> {
        let running = program.start(bed)?;
        match self {
            Self::Vpp(vpp) => vpp.wait_listening(&running, at, stop)?,
            Self::Ethernet(vpp, _) if at == self.addresses().entrance() => {
                vpp.wait_listening(&running, at, stop)?;
            }
            Self::Kernel(_) | Self::Ethernet(..) => running.wait_listening(at)?,
        }
        stop.heed()?;
        Ok(running)
    }
}

/// The arguments of `vpp up` for the proxy's place in the line, between its two neighbours.
pub(super) const ETHERNET: [&str; 4] =
    ["--ethernet", "client,server", "--address", "10.77.0.2/24,10.77.1.1/24"];

fn line() -> anyhow::Result<Topology> {
    Topology::line(&[Role::Client, Role::Proxy, Role::Server].map(Role::name))
}

fn host(line: &Topology, role: Role) -> &Host {
    line.host(role.name())
}
