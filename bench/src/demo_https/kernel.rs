//! On the kernel's stack: three network namespaces in a line.

use truepeer_testbed::{Program, Topology};

use super::parties::{Addresses, Parties, announce, end};
use super::stop::Stop;

pub(super) fn show(parties: &Parties<'_>, stop: &Stop) -> anyhow::Result<()> {
    let line = Topology::line(&["client", "proxy", "server"])?;
    let (client, proxy, server) = (line.host("client"), line.host("proxy"), line.host("server"));
    let at = Addresses { server: server.v4, proxy: proxy.v4 };
    println!("On the kernel's stack: three network namespaces, joined by veth pairs");
    println!("  client {} ── proxy {} ── server {}", client.v4, proxy.v4, server.v4);

    announce(["nginx", "-c", "nginx.conf", "# in the namespace server"]);
    let origin = parties.origin(&at)?.in_netns(&server.netns).start(parties.bed)?;
    origin.wait_listening(at.origin())?;

    let words = parties.proxy_words(&at);
    announce(["truepeer".to_owned()].iter().chain(&words));
    let truepeer = Program::new(&parties.truepeer).args(&words).in_netns(&proxy.netns).start(parties.bed)?;
    truepeer.wait_listening(at.entrance())?;
    stop.heed()?;

    let measured = parties.measure(&parties.load(&at)?.in_netns(&client.netns), stop);
    end("truepeer", truepeer);
    end("nginx", origin);
    measured
}
