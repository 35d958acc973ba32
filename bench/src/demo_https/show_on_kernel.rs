//! On the kernel's stack: three network namespaces in a line.

use super::ground::{Ground, Role};
use super::parties::{Parties, announce, end};
use super::stop::Stop;

pub(super) fn show(parties: &Parties<'_>, stop: &Stop) -> anyhow::Result<()> {
    let ground = Ground::kernel()?;
    let at = ground.addresses();
    println!("On the kernel's stack: three network namespaces, joined by veth pairs");
    println!("  client ── proxy {} ── server {}", at.proxy, at.server);

    announce(["nginx", "-c", "nginx.conf", "# in the namespace server"]);
    let origin = ground.put(Role::Server, parties.origin(&at)?);
    let origin = ground.start(parties.bed, &origin, at.origin(), stop)?;

    announce(["truepeer".to_owned()].iter().chain(&parties.proxy_words(&at)));
    let truepeer = ground.put_truepeer(parties.proxy(&at));
    let truepeer = ground.start(parties.bed, &truepeer, at.entrance(), stop)?;

    let measured = parties.measure(&ground.put(Role::Client, parties.load(&at)?), stop);
    end("truepeer", truepeer);
    end("nginx", origin);
    measured
}
