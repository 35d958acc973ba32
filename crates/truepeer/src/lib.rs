//! truepeer: your backend sees the true peer. `src/main.rs` only calls [`main`].
//!
//! The command line becomes a `cli::Invocation`, and this file calls the module that carries it out.
//!
//! Exit status: 0 on success, 1 on failure, 2 if the command line or the configuration is invalid. `run`,
//! `connect` and `vpp run` return the status of the program that they start: as in a shell, 127 if it is not
//! found and 126 if it can't be executed.

mod crowdsec;
mod docker_proxy;
mod probe;
mod server;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use truepeer_cli::file::{self, ConfigSource, LoadedConfig};
use truepeer_cli::{self as cli, Compat, Invocation, UsageError};
use truepeer_config::plan::{self, EntryConfig, ProcessConfig};
use truepeer_config::spec::{
    self, DoctorArgs, FileSpec, OciHookArgs, ReloadArgs, RoutesAction, RoutesArgs, StackArgs, UpgradeArgs,
};
use truepeer_ops::admin::{Client, StatusDoc};
use truepeer_ops::{doctor, log};
use truepeer_routes::show::RemoveOptions;
use truepeer_sys::output;

/// The program: reads the command line and carries it out. Errors are on standard error.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(status) = docker_proxy::answer(std::env::args_os()) {
        return status;
    }
    // Before the command line is read: it may name them.
    plan::passed::names();
    cli::warn_of_variables();
    let checked = cli::parse(std::env::args_os()).and_then(check);
    let task = match checked {
        Ok(task) => task,
        Err(error) => {
            if let Some(lines) = error.for_machines() {
                lines.iter().for_each(|line| log::fatal_in_json(line));
                return ExitCode::from(2);
            }
            return ExitCode::from(error.report());
        }
    };
    match carry_out(task) {
        Ok(status) => status,
        Err(error) => {
            log::fatal(&format!("{error:#}"));
            error
                .downcast_ref()
                .map_or(ExitCode::FAILURE, |error: &truepeer_run::NotStarted| error.status().into())
        }
    }
}

/// The work to do. A plan has already read every file it names, so configuration errors are reported before
/// anything is set up.
enum Task {
    Serve {
        source: ConfigSource,
        loaded: Box<LoadedConfig>,
        compat: Option<Compat>,
        stack: Option<StackArgs>,
        is_upgrade: bool,
    },
    Other(Invocation),
}

fn check(invocation: Invocation) -> Result<Task, UsageError> {
    let command = |entry| ConfigSource::Command(Box::new(ProcessConfig::of_command(entry)));
    let is_upgrade = matches!(&invocation, Invocation::Serve(args) if args.take_over);
    let (source, compat, stack) = match invocation {
        Invocation::Proxy(config, compat) => (command(EntryConfig::Proxy(config)), compat, None),
        Invocation::Https(config, stack) => (command(EntryConfig::Https(config)), None, Some(stack)),
        Invocation::Serve(args) => (ConfigSource::File(args.file.path().to_owned()), None, None),
        other => return Ok(Task::Other(other)),
    };
    let loaded = Box::new(source.load()?);
    Ok(Task::Serve { source, loaded, compat, stack, is_upgrade })
}

fn carry_out(task: Task) -> anyhow::Result<ExitCode> {
    let done = match task {
        Task::Serve { source, loaded, compat, stack, is_upgrade } => {
            // This must come first: on VPP's stack the process executes itself again.
            let workers = loaded.process.workers.map_or(1, std::num::NonZeroUsize::get);
            let entered = stack.map_or(Ok(()), |stack| enter_stack(&stack, workers));
            entered.and_then(|()| serve(&source, *loaded, compat, is_upgrade))
        }
        Task::Other(Invocation::Check(args)) => {
            return Ok(file::check(args.file.path(), args.show, args.as_service, &mut output::stdout())?);
        }
        Task::Other(Invocation::Completion(args)) => {
            cli::completion::write(args.shell, &mut output::stdout()).map_err(Into::into)
        }
        Task::Other(Invocation::Man(args)) => cli::manual::write(&args.dir).map_err(Into::into),
        Task::Other(Invocation::Print(text)) => {
            let mut out = output::stdout();
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Into::into)
        }
        Task::Other(Invocation::Run(args)) => {
            return truepeer_run::run(&args, cli::hints::of_run, |config| log::init(config, false));
        }
        Task::Other(Invocation::Connect(args)) => {
            return truepeer_run::connect(&args, |config| log::init(config, false));
        }
        Task::Other(Invocation::Vpp(args)) => return vpp(&args.action),
        Task::Other(Invocation::Probe(args)) => return Ok(probe::probe(&args)),
        Task::Other(Invocation::Reload(args)) => reload(&args),
        Task::Other(Invocation::Upgrade(args)) => upgrade(&args),
        Task::Other(Invocation::Attach(args)) => truepeer_attach::run(&args, &mut output::stdout()),
        Task::Other(Invocation::OciHook(args)) => oci_hook(&args),
        Task::Other(Invocation::Routes(args)) => routes(&args),
        Task::Other(Invocation::Doctor(args)) => examine(&args),
        Task::Other(Invocation::Status(args)) => truepeer_ops::status(&args, &mut output::stdout()),
        Task::Other(Invocation::Sessions(args)) => truepeer_ops::sessions(&args, &mut output::stdout()),
        Task::Other(Invocation::Whois(args)) => truepeer_ops::whois(&args, &mut output::stdout()),
        Task::Other(Invocation::Ban(args)) => truepeer_ops::ban(&args, &mut output::stdout()),
        Task::Other(Invocation::Unban(args)) => truepeer_ops::unban(&args, &mut output::stdout()),
        Task::Other(Invocation::Bans(args)) => truepeer_ops::bans(&args, &mut output::stdout()),
        Task::Other(Invocation::Crowdsec(args)) => crowdsec::crowdsec(&args),
        Task::Other(Invocation::Top(args)) if cfg!(feature = "top") => truepeer_ops::top(&args),
        Task::Other(Invocation::Top(_)) => Err(anyhow::anyhow!(
            "this truepeer was built without top (the feature `top`); type truepeer status"
        )),
        // It became Task::Serve above.
        Task::Other(Invocation::Proxy(..) | Invocation::Https(..) | Invocation::Serve(_)) => Ok(()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

#[cfg(feature = "vpp")]
fn vpp(action: &spec::VppAction) -> anyhow::Result<ExitCode> {
    truepeer_vpp::carry_out(action, &mut output::stdout())
}

#[cfg(not(feature = "vpp"))]
fn vpp(_: &spec::VppAction) -> anyhow::Result<ExitCode> {
    anyhow::bail!("{WITHOUT_VPP}")
}

#[cfg(feature = "vpp")]
fn enter_stack(stack: &StackArgs, workers: usize) -> anyhow::Result<()> {
    truepeer_vpp::stack::enter(stack, workers)
}

#[cfg(not(feature = "vpp"))]
fn enter_stack(stack: &StackArgs, _: usize) -> anyhow::Result<()> {
    anyhow::ensure!(stack.stack.unwrap_or_default() != spec::Stack::Vpp, "--stack vpp: {WITHOUT_VPP}");
    Ok(())
}

#[cfg(not(feature = "vpp"))]
const WITHOUT_VPP: &str = "this truepeer was built without VPP (the feature `vpp`)";

fn oci_hook(args: &OciHookArgs) -> anyhow::Result<()> {
    // The annotations are read as options are.
    let parse = |line| match cli::parse(line) {
        Ok(Invocation::Attach(args)) => Ok(*args),
        Ok(_) => anyhow::bail!("they are no options of truepeer attach"),
        Err(error) => anyhow::bail!("{}", error.to_string().trim()),
    };
    truepeer_attach::run_as_hook(args.pins.as_deref(), std::io::stdin().lock(), parse, &mut output::stdout())
}

fn routes(args: &RoutesArgs) -> anyhow::Result<()> {
    let out = &mut output::stdout();
    match args.action {
        RoutesAction::Show if !args.print => {
            let options = plan::setup_options(&args.routing)?;
            let complete = truepeer_routes::show::show(&options, out)?;
            anyhow::ensure!(
                complete,
                "something is missing: {}",
                truepeer_routes::print::apply_command(&options.setup()?)
            );
            Ok(())
        }
        RoutesAction::Show => truepeer_routes::show::apply(&plan::setup_options(&args.routing)?, true, out),
        RoutesAction::Apply => {
            truepeer_routes::show::apply(&plan::setup_options(&args.routing)?, args.print, out)
        }
        RoutesAction::Remove => {
            // Without --table, all tables.
            let options = RemoveOptions { table: args.routing.table, force: args.force, print: args.print };
            truepeer_routes::show::remove(&options, out)
        }
    }
}

fn examine(args: &DoctorArgs) -> anyhow::Result<()> {
    let timeout = args.timeout.unwrap_or(spec::defaults::PROBE_TIMEOUT);
    let out = &mut output::stdout();
    let holds = if args.port.is_none() && plan::names_routing(&args.routing) {
        let options = doctor::DoctorOptions {
            routing: plan::setup_options(&args.routing)?,
            named: plan::names_backends(&args.routing),
            with_routes: args.with_routes,
            timeout,
            running: args.admin.clone(),
            json: args.json,
        };
        doctor::examine(&options, out)?
    } else {
        let options = doctor::SceneOptions {
            file: args.file.path().to_owned(),
            is_named: args.file.is_named(),
            read: read_file(args.file.path()),
            running: args.admin.clone(),
            with_routes: args.with_routes,
            timeout,
            json: args.json,
        };
        doctor::look(&options, args.port.map(at_port), out)?
    };
    anyhow::ensure!(holds, "a required check failed");
    Ok(())
}

/// `None`: there is no such file.
fn read_file(path: &Path) -> Option<Result<doctor::ReadFile, String>> {
    let source = ConfigSource::File(path.to_owned());
    path.exists().then(|| match source.load() {
        Ok(loaded) => {
            let warnings = loaded.warnings(&source);
            Ok(doctor::ReadFile { process: loaded.process, checked: loaded.checked, warnings })
        }
        Err(rejected) => Err(rejected.to_string()),
    })
}

fn at_port(port: spec::Port) -> doctor::AtPort {
    match port {
        spec::Port::Tcp(port) => doctor::AtPort { port, is_udp: false },
        spec::Port::Udp { from, .. } => doctor::AtPort { port: from, is_udp: true },
    }
}

/// The socket by which to reach the process of a file.
fn admin_socket(file: &FileSpec) -> anyhow::Result<PathBuf> {
    let path = file.path();
    anyhow::ensure!(
        path.exists(),
        "{}: no such file; name the running truepeer's with -c FILE",
        path.display()
    );
    let loaded = ConfigSource::File(file.path().to_owned()).load()?;
    let socket = loaded.process.admin.socket().map(Path::to_owned);
    socket.with_context(|| {
        format!("{}: expected the path of a socket in [admin] listen", file.path().display())
    })
}

fn reload(args: &ReloadArgs) -> anyhow::Result<()> {
    let socket = args.admin.clone().map_or_else(|| admin_socket(&args.file), Ok)?;
    let changes = Client::at(&socket).ask("POST", "/reload").context("not reloaded")?;
    writeln!(output::stdout(), "{}", changes.trim_end())?;
    Ok(())
}

fn upgrade(args: &UpgradeArgs) -> anyhow::Result<()> {
    let file = &args.file;
    let status = Client::at(&admin_socket(file)?).ask("GET", "/status").context("not upgraded")?;
    let status: StatusDoc =
        serde_json::from_str(&status).context("not upgraded: this is no answer of truepeer")?;
    if args.if_replaced && !status.is_replaced {
        return Ok(());
    }
    server::start::refuse_outside_of_unit(status.pid)?;
    let said = server::start::upgrade(file.path(), &status.passed)?;
    writeln!(output::stdout(), "{said}")?;
    Ok(())
}

fn serve(
    source: &ConfigSource,
    loaded: LoadedConfig,
    compat: Option<Compat>,
    is_upgrade: bool,
) -> anyhow::Result<()> {
    log::init(loaded.process.log, is_upgrade && plan::passed::is_of_upgrade_command());
    if let Some(compat) = compat {
        tracing::info!("running as {compat}, with its options and defaults");
    }
    for warning in loaded.warnings(source) {
        tracing::warn!("{warning}");
    }
    for note in loaded.process.entries.iter().flat_map(EntryConfig::notes_of_senders) {
        tracing::info!("{}", source.in_its_words(&note));
    }
    for own in loaded.process.entries.iter().flat_map(EntryConfig::own_certificates) {
        tracing::info!("{own}");
    }
    let is_https = |entry: &EntryConfig| matches!(entry, EntryConfig::Https(_));
    let is_https = loaded.process.entries.iter().all(is_https);
    let advise = match source {
        ConfigSource::File(_) => cli::hints::of_file,
        ConfigSource::Command(_) if is_https => cli::hints::of_https,
        ConfigSource::Command(_) => cli::hints::of_proxy,
    };
    server::run(source, loaded, advise, is_upgrade)
}
