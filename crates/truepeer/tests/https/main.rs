//! `truepeer https` between real clients and real origins.
//! `cargo test -p truepeer --test https -- WORD` runs the tests whose name contains the word.

mod acme;
mod alerts;
#[path = "../tls/authority.rs"]
mod authority;
mod bad_link;
mod clients;
mod endings;
mod ends;
mod floods;
mod handshakes;
mod health;
mod hostile;
mod http2;
mod kit;
mod learns;
mod listen_http;
mod origin_http2;
mod origins;
mod restarts;
mod scarcity;
mod several_origins;
mod sites;
mod slow;
mod smuggling;
mod traffic;
mod upgrades;
mod volume;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [
        learns::tests(),
        listen_http::tests(),
        origins::tests(),
        origin_http2::tests(),
        handshakes::tests(),
        clients::tests(),
        traffic::tests(),
        http2::tests(),
        floods::tests(),
        volume::tests(),
        hostile::tests(),
        smuggling::tests(),
        ends::tests(),
        restarts::tests(),
        scarcity::tests(),
        several_origins::tests(),
        sites::tests(),
        health::tests(),
        slow::tests(),
        upgrades::tests(),
        alerts::tests(),
        acme::tests(),
        endings::tests(),
        bad_link::tests(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
