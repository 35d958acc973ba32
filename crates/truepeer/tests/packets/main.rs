//! `truepeer attach` attacked with hand-made packets: it must not believe what a kernel's own socket would
//! not believe.

mod again;
mod bad_link;
mod beside_plain;
mod damage;
mod datagrams;
mod handshake;
mod holds;
mod kit;
mod late;
mod paths;
mod stage;
mod sweeps;
mod udp_beside_plain;
mod udp_parties;
mod udp_words;
mod unjudged;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [
        damage::tests(),
        handshake::tests(),
        again::tests(),
        paths::tests(),
        unjudged::tests(),
        holds::tests(),
        late::tests(),
        datagrams::tests(),
        beside_plain::tests(),
        udp_beside_plain::tests(),
        sweeps::tests(),
        bad_link::tests(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
