//! On VPP's stack: all parties in the loopback layout, then the proxy alone in the ethernet layout.

use std::path::Path;

use super::ground::{ETHERNET, Ground, Role};
use super::parties::{Parties, announce, end};
use super::stop::Stop;
use super::vpp::{LOOPBACK, Vpp};

pub(super) fn show(parties: &Parties<'_>, installation: &Path, stop: &Stop) -> anyhow::Result<()> {
    println!("\nOn VPP's stack, all: three loop interfaces, a table and a namespace for each");
    announce(["truepeer", "vpp", "up", LOOPBACK]);
    let vpp = Vpp::up(parties.bed, &parties.truepeer, installation, &[LOOPBACK], None)?;
    show_on(&Ground::Vpp(vpp), parties, stop)?;

    println!("\nOn VPP's stack, the proxy alone: VPP has its two devices, client and origin are kernels");
    announce(["truepeer", "vpp", "up"].iter().chain(&ETHERNET));
    show_on(&Ground::ethernet(parties, installation)?, parties, stop)
}

fn show_on(ground: &Ground<'_>, parties: &Parties<'_>, stop: &Stop) -> anyhow::Result<()> {
    let vpp = match ground {
        Ground::Vpp(vpp) | Ground::Ethernet(vpp, _) => vpp,
        Ground::Kernel(_) => return Ok(()),
    };
    print!("{}", vpp.said);
    let done = measure_on(ground, parties, stop);
    print!("{}", vpp.down()?);
    done
}

fn measure_on(ground: &Ground<'_>, parties: &Parties<'_>, stop: &Stop) -> anyhow::Result<()> {
    let at = ground.addresses();
    let on = |namespace| match ground {
        Ground::Vpp(_) => format!("truepeer vpp run --namespace {namespace} -- "),
        Ground::Kernel(_) | Ground::Ethernet(..) => String::new(),
    };
    stop.heed()?;
    announce([on("server") + "nginx -c nginx.conf"]);
    let origin = ground.put(Role::Server, parties.origin(&at)?);
    let origin = ground.start(parties.bed, &origin, at.origin(), stop)?;

    let words = parties.proxy_words(&at);
    announce(["truepeer".to_owned()].iter().chain(&words).map(String::as_str).chain(["--stack=vpp"]));
    let truepeer = ground.put_truepeer(parties.proxy(&at));
    let truepeer = ground.start(parties.bed, &truepeer, at.entrance(), stop)?;

    announce([on("client") + "the load"]);
    let measured = parties.measure(&ground.put(Role::Client, parties.load(&at)?), stop);
    end("truepeer", truepeer);
    end("nginx", origin);
    measured
}
