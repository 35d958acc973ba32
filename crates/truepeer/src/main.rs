//! truepeer: your backend sees the true peer.
//!
//! The command line becomes an [`cli::Invocation`]; this file hands it to who carries it out. Ends with status 0 when
//! all went well, 1 when something failed, 2 when the command line or the configuration can't be followed; `run`, `connect`
//! and `vpp run` with that of the program that they start, or as shells do: 127 if there is none of that name, 126 if it can't be
//! executed.

mod attach;
mod cli;
mod doctor;
mod log;
mod output;
mod plan;
mod routes;
mod run;
mod server;
mod vpp;

use std::process::ExitCode;

use cli::{Compat, DoctorArgs, Invocation, RoutesAction, RoutesArgs, UsageError};
use plan::Config;

fn main() -> ExitCode {
    let checked = cli::parse(std::env::args_os()).and_then(check);
    let invocation = match checked {
        Ok(invocation) => invocation,
        Err(error) => return ExitCode::from(error.report()),
    };
    match carry_out(invocation) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            error.downcast_ref().map_or(ExitCode::FAILURE, |error: &run::NotStarted| error.status().into())
        }
    }
}

/// What is wrong with a configuration is the user's to mend, and said before anything is set up.
fn check(invocation: Invocation) -> Result<Invocation, UsageError> {
    if let Invocation::Proxy(config, _) | Invocation::Https(config, _) = &invocation {
        config.check()?;
    }
    Ok(invocation)
}

fn carry_out(invocation: Invocation) -> anyhow::Result<ExitCode> {
    let done = match invocation {
        Invocation::Run(args) => return run::run(&args),
        Invocation::Connect(args) => return run::connect(&args),
        Invocation::Vpp(args) => return vpp::carry_out(&args.action, &mut output::stdout()),
        Invocation::Proxy(config, compat) => proxy(&config, compat),
        // Before anything else: on VPP's stack the process begins once more.
        Invocation::Https(config, stack) => {
            let workers = config.workers.map_or(1, std::num::NonZeroUsize::get);
            vpp::stack::enter(&stack, workers).and_then(|()| proxy(&config, None))
        }
        Invocation::Attach(args) => attach::run(&args, &mut output::stdout()),
        Invocation::Routes(args) => routes(&args),
        Invocation::Doctor(args) => doctor(&args),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn routes(args: &RoutesArgs) -> anyhow::Result<()> {
    let out = &mut output::stdout();
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
    let holds = doctor::examine(&options, &mut output::stdout())?;
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
    server::run(config)
}
