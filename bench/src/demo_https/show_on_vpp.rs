//! On VPP's stack: the loopback layout, and each program in one of VPP's namespaces.

use std::path::Path;

use super::ground::{Ground, Role};
use super::parties::{Parties, announce, end};
use super::stop::Stop;
use super::vpp::{AT, Vpp};

pub(super) fn show(parties: &Parties<'_>, installation: &Path, stop: &Stop) -> anyhow::Result<()> {
    println!("\nOn VPP's stack: three loop interfaces, a table and a namespace for each");
    announce(["truepeer", "vpp", "up", "--loopback"]);
    let vpp = Vpp::up(parties.bed, &parties.truepeer, installation, &[])?;
    print!("{}", vpp.said);
    let ground = Ground::Vpp(vpp);
    let done = show_on(&ground, parties, stop);
    let Ground::Vpp(vpp) = &ground else { return done };
    print!("{}", vpp.down()?);
    done
}

fn show_on(ground: &Ground<'_>, parties: &Parties<'_>, stop: &Stop) -> anyhow::Result<()> {
    stop.heed()?;
    announce(["truepeer", "vpp", "run", "--namespace", "server", "--", "nginx", "-c", "nginx.conf"]);
    let origin = ground.put(Role::Server, parties.origin(&AT)?);
    let origin = ground.start(parties.bed, &origin, AT.origin(), stop)?;

    let words = parties.proxy_words(&AT);
    announce(["truepeer".to_owned()].iter().chain(&words).map(String::as_str).chain(["--stack=vpp"]));
    let truepeer = ground.put_truepeer(parties.proxy(&AT));
    let truepeer = ground.start(parties.bed, &truepeer, AT.entrance(), stop)?;

    announce(["truepeer", "vpp", "run", "--namespace", "client", "--", "the load"]);
    let measured = parties.measure(&ground.put(Role::Client, parties.load(&AT)?), stop);
    end("truepeer", truepeer);
    end("nginx", origin);
    measured
}
