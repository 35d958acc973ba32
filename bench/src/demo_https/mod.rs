//! The program behind `make demo-https` and `truepeer vpp demo`: the guide's case from start to end.
//!
//! ```text
//! client: the load ──TLS──▶ proxy: truepeer https ──TLS──▶ server: NGINX, a file of 1 KiB
//! ```
//! On the kernel's stack it uses three network namespaces and veth pairs. On VPP's it uses both layouts of
//! `truepeer vpp up`: loopback, with a VPP namespace for each party, and ethernet, where the proxy alone is on
//! VPP. Certificates are created for the run and
//! verified at both hops. Each command is printed before it runs, and the result as wrk2 prints it. Whatever
//! happens, everything is stopped at the end.

mod args;
mod ground;
mod load;
mod parties;
mod report;
mod show_on_kernel;
mod show_on_vpp;
mod stop;
mod tally;
mod vpp;
mod words;

use std::process::ExitCode;

use clap::Parser as _;
use truepeer_testbed::{Bed, run_privately};

pub(crate) use self::args::LoadArgs;
use self::args::{DemoArgs, DemoStack};
pub(crate) use self::ground::{Ground, Role};
pub(crate) use self::load::run_if_asked;
pub(crate) use self::parties::Parties;
pub(crate) use self::report::Figures;
pub(crate) use self::stop::Stop;
pub(crate) use self::vpp::{ABSENT, LOOPBACK, Vpp, installation};
use crate::credentials::KeyKind;

/// The program `demo-https`.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = run_if_asked() {
        return code;
    }
    // Before the private namespaces are created: --help needs none.
    let args = DemoArgs::parse();
    if let Err(error) = Stop::outlast_the_keyboard() {
        eprintln!("demo-https: {error:#}");
        return ExitCode::FAILURE;
    }
    run_privately("demo-https", |bed| show(bed, &args, &Stop::on_signals()?))
}

fn show(bed: &Bed, args: &DemoArgs, stop: &Stop) -> anyhow::Result<ExitCode> {
    let parties = Parties::new(bed, &args.truepeer, args.load.clone(), KeyKind::Rsa2048)?;
    if args.stack != DemoStack::Vpp {
        show_on_kernel::show(&parties, stop)?;
    }
    match installation(args.vpp.as_deref()) {
        _ if args.stack == DemoStack::Kernel => {}
        Some(vpp) => show_on_vpp::show(&parties, &vpp, stop)?,
        None if args.stack == DemoStack::Vpp => anyhow::bail!(ABSENT),
        None => println!("\nOn VPP's stack: not shown. {}", ABSENT),
    }
    Ok(ExitCode::SUCCESS)
}
