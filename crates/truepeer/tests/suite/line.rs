//! Three hosts: a client, a load balancer that sends headers, and the host of truepeer with its backend on
//! loopback.
//!
//! ```text
//! client ── lb: HAProxy, NGINX ── host: truepeer :8443 ──as the client──▶ 127.0.0.1, [::1]: the backend
//! ```

use std::net::SocketAddr;

use truepeer_testbed::{Bed, Host, Program, Running, Topology};

use crate::stand::bare_proxy;

const PORT: u16 = 8443;

/// The three hosts, without programs yet.
pub(crate) struct Line(Topology);

impl Line {
    pub(crate) fn lay() -> anyhow::Result<Line> {
        Ok(Line(Topology::line(&["client", "lb", "host"])?))
    }

    pub(crate) fn client(&self) -> &Host {
        self.0.host("client")
    }

    pub(crate) fn lb(&self) -> &Host {
        self.0.host("lb")
    }

    pub(crate) fn host(&self) -> &Host {
        self.0.host("host")
    }

    /// truepeer on the host, for backends on this port of its loopback addresses.
    pub(crate) fn start_truepeer(&self, bed: &Bed, backend_port: u16) -> anyhow::Result<Running> {
        self.start_truepeer_with(bed, backend_port, &[])
    }

    /// The same, with additional options.
    pub(crate) fn start_truepeer_with(
        &self,
        bed: &Bed,
        backend_port: u16,
        options: &[&str],
    ) -> anyhow::Result<Running> {
        let truepeer = bare_proxy()
            .listen(self.listener(false))
            .listen(self.listener(true))
            .ipv4(format!("127.0.0.1:{backend_port}"))
            .ipv6(format!("[::1]:{backend_port}"))
            .allow("10.77.0.0/16")
            .allow("fd77::/16")
            .args(options);
        truepeer.with(|program| program.in_netns(&self.host().netns)).start(bed)
    }

    /// truepeer's listening address.
    pub(crate) fn listener(&self, v6: bool) -> SocketAddr {
        self.host().at(v6, PORT)
    }

    /// Runs a program on the client's host to its end and returns its output.
    pub(crate) fn run_as_client(&self, bed: &Bed, program: Program) -> anyhow::Result<String> {
        program.in_netns(&self.client().netns).run(bed)
    }
}
