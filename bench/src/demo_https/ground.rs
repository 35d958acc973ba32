//! The places of the parties: three network namespaces of the kernel, or the loopback layout of `truepeer vpp
//! up`.

use std::net::SocketAddr;

use truepeer_testbed::{Bed, Host, Program, Running, Topology};

use super::parties::Addresses;
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
    Vpp(Vpp<'a>),
}

impl Ground<'_> {
    /// Three network namespaces in a line.
    pub(crate) fn kernel() -> anyhow::Result<Self> {
        let names = [Role::Client, Role::Proxy, Role::Server].map(Role::name);
        Ok(Self::Kernel(Topology::line(&names)?))
    }

    /// The parties' addresses.
    pub(crate) fn addresses(&self) -> Addresses {
        match self {
            Self::Kernel(line) => Addresses {
                server: line.host(Role::Server.name()).v4,
                proxy: line.host(Role::Proxy.name()).v4,
            },
            Self::Vpp(_) => super::vpp::AT,
        }
    }

    /// An unmodified program, in its place.
    pub(crate) fn put(&self, role: Role, program: Program) -> Program {
        match self {
            Self::Kernel(line) => program.in_netns(&host(line, role).netns),
            Self::Vpp(vpp) => vpp.put_on(role.name(), program),
        }
    }

    /// `truepeer https` in the proxy's place; it puts itself onto VPP.
    pub(crate) fn put_truepeer(&self, program: Program) -> Program {
        match self {
            Self::Kernel(_) => self.put(Role::Proxy, program),
            Self::Vpp(vpp) => program.args(["--stack=vpp", "--vpp-dir"]).arg(vpp.dir()),
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
            Self::Kernel(_) => running.wait_listening(at)?,
            Self::Vpp(vpp) => vpp.wait_listening(&running, at, stop)?,
        }
        stop.heed()?;
        Ok(running)
    }
}

fn host(line: &Topology, role: Role) -> &Host {
    line.host(role.name())
}
