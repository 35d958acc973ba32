//! What `make demo-https` and `truepeer vpp demo` show: the guide's case from its beginning to its end.
//!
//! ```text
//! client: the load ──TLS──▶ proxy: truepeer https ──TLS──▶ server: NGINX, a file of 1 KiB
//! ```
//! Three network namespaces and veth pairs on the kernel's stack; the loopback layout of `truepeer vpp up`, with a
//! namespace of VPP's for each of them, on VPP's. Certificates are made on the spot, and verified at both hops. Each
//! command is printed before it is run, the measurement as wrk2 prints it; and whatever happens, everything is stopped
//! at the end.

mod args;
mod kernel;
mod load;
mod parties;
mod report;
mod stop;
mod vpp;

use std::process::ExitCode;

use clap::Parser as _;
use truepeer_testbed::{Bed, run_privately};

use self::args::{Args, Stack};
use self::stop::Stop;

/// The program `demo-https`.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = load::run_if_asked() {
        return code;
    }
    // Before the private ground is entered: a question about options is no reason to make namespaces.
    let args = Args::parse();
    if let Err(error) = Stop::outlast_the_keyboard() {
        eprintln!("demo-https: {error:#}");
        return ExitCode::FAILURE;
    }
    run_privately("demo-https", |bed| show(bed, &args, &Stop::on_signals()?))
}

fn show(bed: &Bed, args: &Args, stop: &Stop) -> anyhow::Result<ExitCode> {
    let parties = parties::Parties::new(bed, args)?;
    if args.stack != Stack::Vpp {
        kernel::show(&parties, stop)?;
    }
    match vpp::installation(args) {
        _ if args.stack == Stack::Kernel => {}
        Some(vpp) => vpp::show(&parties, &vpp, stop)?,
        None if args.stack == Stack::Vpp => anyhow::bail!(vpp::ABSENT),
        None => println!("\nOn VPP's stack: not shown. {}", vpp::ABSENT),
    }
    Ok(ExitCode::SUCCESS)
}
