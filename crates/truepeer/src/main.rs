//! truepeer: your backend sees the true peer.
//!
//! The command line becomes an [`args::Invocation`]; this file hands it to who carries it out. Ends with status 0 when
//! all went well, 1 when something failed, 2 when the command line or the configuration can't be followed; `run` and
//! `connect` with that of the program that they start.

mod args;
mod attach;
mod config;
mod doctor;
mod log;
mod routes;
mod run;
mod serve;

use std::process::ExitCode;

use args::{Compat, DoctorArgs, Invocation, RoutesAction, RoutesArgs, UsageError};
use config::Config;

fn main() -> ExitCode {
    let checked = args::parse(std::env::args_os()).and_then(check);
    let invocation = match checked {
        Ok(invocation) => invocation,
        Err(error) => return ExitCode::from(error.report()),
    };
    match carry_out(invocation) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What is wrong with a configuration is the user's to mend, and said before anything is set up.
fn check(invocation: Invocation) -> Result<Invocation, UsageError> {
    if let Invocation::Proxy(config, _) = &invocation {
        config.check()?;
    }
    Ok(invocation)
}

fn carry_out(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let done = match invocation {
        Invocation::Run(args) => return run::run(&args),
        Invocation::Connect(args) => return run::connect(&args),
        Invocation::Proxy(config, compat) => proxy(&config, compat),
        Invocation::Attach(args) => attach::run(&args, &mut std::io::stdout()),
        Invocation::Routes(args) => routes(&args),
        Invocation::Doctor(args) => doctor(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn routes(args: &RoutesArgs) -> anyhow::Result<()> {
    let out = &mut std::io::stdout();
    match args.action {
        RoutesAction::Show if !args.print => {
            let options = args.routing.options()?;
            let complete = routes::show::show(&options, out)?;
            anyhow::ensure!(
                complete,
                "something is missing: {}",
                routes::show::apply_command(&options.setup()?)
            );
            Ok(())
        }
        RoutesAction::Show => routes::show::apply(&args.routing.options()?, true, out),
        RoutesAction::Apply => routes::show::apply(&args.routing.options()?, args.print, out),
        RoutesAction::Remove => routes::show::remove(&args.removal(), out),
    }
}

fn doctor(args: &DoctorArgs) -> anyhow::Result<()> {
    let options = doctor::DoctorOptions {
        routing: args.routing.options()?,
        named: args.routing.names_backends(),
        with_routes: args.with_routes,
        timeout: args.timeout,
        json: args.json,
    };
    let holds = doctor::examine(&options, &mut std::io::stdout())?;
    anyhow::ensure!(holds, "not everything that is needed holds");
    Ok(())
}

fn proxy(config: &Config, compat: Option<Compat>) -> anyhow::Result<()> {
    log::init(config.log);
    if let Some(compat) = compat {
        tracing::info!("taking the place of {compat}: its options and defaults hold");
    }
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    serve::run(config)
}
