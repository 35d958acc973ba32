//! truepeer between real senders and real backends, in private networks. Each test is named by the behaviour
//! that it shows. `cargo test -p truepeer --test suite -- WORD` runs the tests whose name contains the word.

mod backends;
mod bans;
mod chains;
mod confined;
mod crowds;
mod crowdsec;
mod datagram_faults;
mod delivery;
mod destinations;
mod faults;
mod faulty_backends;
mod full_logs;
mod handover;
mod inside;
mod kernel;
mod kills;
mod launch;
mod ledger;
mod limits;
mod line;
mod manager;
mod metrics;
mod needs;
mod operation;
mod peers;
mod probes;
mod proofs;
mod refusals;
mod seeds;
mod senders;
mod serve;
mod spliced;
mod stand;
mod stored;
mod terminal;
mod top;
mod upgrade;
mod whois;
mod wrong_reloads;

use std::process::ExitCode;

fn main() -> ExitCode {
    let all = [
        seeds::tests(),
        senders::tests(),
        backends::tests(),
        refusals::tests(),
        delivery::tests(),
        destinations::tests(),
        chains::tests(),
        launch::tests(),
        operation::tests(),
        bans::tests(),
        crowdsec::tests(),
        confined::tests(),
        inside::tests(),
        needs::tests(),
        serve::tests(),
        upgrade::tests(),
        manager::tests(),
        stored::tests(),
        top::tests(),
        metrics::tests(),
        faults::tests(),
        ledger::tests(),
        faulty_backends::tests(),
        full_logs::tests(),
        wrong_reloads::tests(),
        datagram_faults::tests(),
        crowds::tests(),
        kernel::tests(),
        handover::tests(),
        limits::tests(),
        spliced::tests(),
        probes::tests(),
        proofs::tests(),
        whois::tests(),
    ];
    truepeer_testbed::main(all.into_iter().flatten().collect())
}
