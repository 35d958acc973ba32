//! `truepeer proxy` with TLS: real clients, senders and backends on both sides of it, in private networks.
//! `cargo test -p truepeer --test tls -- WORD` runs the tests whose name contains the word.

mod authority;
mod chain;
mod clients;
mod handshakes;
mod optional;
mod origins;
mod stand;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [clients::tests(), handshakes::tests(), chain::tests(), optional::tests(), origins::tests()];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
