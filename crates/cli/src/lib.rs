//! The command line: from words to an [`Invocation`], with an error that names the option or a text to print.
//!
//! ```text
//! argv ─▶ compat::Role (name called by, --compat) ─▶ go_style (‑long ⇒ ‑‑long) ─▶ clap ─▶ spec ─▶ plan
//! ```
#![forbid(unsafe_code)]

mod attach;
mod bans;
mod compat;
pub mod completion;
mod dress;
pub mod file;
mod go_style;
mod groups;
mod guess;
pub mod hints;
mod https;
mod in_keys;
pub mod manual;
mod pages;
mod proxy;
mod table;
mod texts;

/// Functions that the targets in fuzz/ call.
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing {
    pub use crate::file::fuzzed::any_file;
}

use std::ffi::OsString;

use clap::{ArgMatches, Command, FromArgMatches as _};

pub use compat::Compat;

use file::Rejected;
use texts::CompletionArgs;
use texts::ManArgs;
use truepeer_config::plan::{Config, Defaults, Problems};
use truepeer_config::spec::{
    AttachArgs, BanArgs, BansArgs, CheckArgs, ConnectArgs, CrowdsecArgs, DoctorArgs, HttpsSpec, OciHookArgs,
    ProbeArgs, ProxySpec, ReloadArgs, RoutesArgs, RunArgs, ServeArgs, SessionsArgs, StackArgs, StatusArgs,
    TopArgs, UnbanArgs, UpgradeArgs, VppArgs, WhoisArgs,
};
use truepeer_sys::tell;

/// The command to carry out.
#[derive(Debug)]
pub enum Invocation {
    /// Relay, as configured; the program whose place we take, if any.
    Proxy(Box<Config>, Option<Compat>),
    /// Take HTTPS off, on one stack or the other.
    Https(Box<Config>, StackArgs),
    /// Print a shell's completions.
    Completion(CompletionArgs),
    /// Write manual pages.
    Man(ManArgs),
    /// Say what is wrong in a file.
    Check(CheckArgs),
    /// Print a text: the command line as a file.
    Print(String),
    /// Do what a file says.
    Serve(ServeArgs),
    /// Make a running truepeer load its file again.
    Reload(ReloadArgs),
    /// Start a new process in the place of a running one.
    Upgrade(UpgradeArgs),
    /// Show, set or remove rules and routes.
    Routes(RoutesArgs),
    /// Take headers off in the kernel.
    Attach(Box<AttachArgs>),
    /// Attach to a container that is being started.
    OciHook(OciHookArgs),
    /// Start a program that sees the client.
    Run(Box<RunArgs>),
    /// Start a program that sends headers.
    Connect(Box<ConnectArgs>),
    /// Find out what is missing.
    Doctor(DoctorArgs),
    /// Show what the running truepeer does.
    Status(StatusArgs),
    /// List its sessions, or end them.
    Sessions(SessionsArgs),
    /// Tell who is behind an address.
    Whois(WhoisArgs),
    /// Watch it on a terminal.
    Top(TopArgs),
    /// Judge a receiver or a sender.
    Probe(Box<ProbeArgs>),
    /// Refuse clients.
    Ban(BanArgs),
    /// Let them come again.
    Unban(UnbanArgs),
    /// List who is refused.
    Bans(BansArgs),
    /// Refuse whom CrowdSec refuses.
    Crowdsec(CrowdsecArgs),
    /// Start VPP, or put a program onto it.
    Vpp(Box<VppArgs>),
}

/// A command line that is wrong, or one that asks for a text.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// clap's error: it prints itself, in colour, to the right stream, including help and version.
    #[error(transparent)]
    Clap(#[from] clap::Error),
    /// A file that is wrong.
    #[error(transparent)]
    File(#[from] Rejected),
    /// Options that contradict each other, or a value that this machine refutes.
    #[error(transparent)]
    Problem(#[from] Problems),
    /// The same, found here. Starts with the option.
    #[error("{0}")]
    Options(String),
}

impl UsageError {
    /// The errors of a configuration that wants its log in JSON, a line each.
    pub fn for_machines(&self) -> Option<Vec<String>> {
        match self {
            Self::File(rejected) => rejected.for_machines(),
            _ => None,
        }
    }

    /// Prints the error (or the requested text) and returns the exit status: 2, or 0 for help and version.
    pub fn report(self) -> u8 {
        match self {
            Self::Clap(error) => {
                // If the terminal is gone, the error can't be reported.
                let _ = error.print();
                u8::from(error.use_stderr()) * 2
            }
            Self::File(rejected) => {
                rejected.report();
                2
            }
            Self::Problem(problems) => {
                problems.to_string().lines().for_each(|problem| tell!("error: {problem}"));
                2
            }
            Self::Options(problem) => {
                tell!("error: {problem}");
                2
            }
        }
    }
}

const ABOUT: &str = "Your backend sees the true peer: PROXY protocol in, the client's own address out";

const AFTER_HELP: &str = "\
Examples:
  truepeer proxy -l :8443 -4 127.0.0.1:443 -6 [::1]:443 --allow 10.0.0.0/8
  truepeer https -l :443 --tls-cert site.pem --tls-key site.key --origin http://127.0.0.1:8080
  truepeer attach --port 443 --allow 10.0.0.0/8
  truepeer run --allow 10.0.0.0/8 -- nginx -g 'daemon off;'
  truepeer doctor -4 127.0.0.1:443
  truepeer routes show

Called as go-mmproxy or mmproxy (a link is enough), or with
--compat go-mmproxy|mmproxy-rs|cloudflare, it has that program's options and defaults.";

/// Parses a command line; its first word is the name of the program.
pub fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    match compat::detect(argv.clone())? {
        compat::Role::Truepeer(argv) => parse_as_truepeer(&argv),
        compat::Role::Other(compat, words) => {
            if let Some(error) = guess::misspelt(&argv, &compat.command()) {
                return Err(error);
            }
            let argv = words;
            let spec = compat.parse(argv.clone())?;
            if spec.print.print_config {
                let directory = std::env::current_dir().unwrap_or_default();
                return Ok(Invocation::Print(compat.print(argv, &directory)?));
            }
            Ok(Invocation::Proxy(Box::new(Config::of_proxy(&spec, &compat.defaults())?), Some(compat)))
        }
    }
}

/// Warns of variables such as `TRUEPEER_ALLOW`: options are read from the command line and the file alone.
pub fn warn_of_variables() {
    let text = |word: OsString| word.into_string().ok();
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    let variables: Vec<_> = variables.filter(|(name, _)| name.starts_with(guess::PREFIX)).collect();
    // The grammar of all commands takes a while to build.
    if variables.is_empty() {
        return;
    }
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    for unread in guess::unread(&words, variables.into_iter()) {
        tell!("warning: {unread}");
    }
}

/// The words of a command line, if each is right by itself.
fn matched(argv: &[OsString]) -> Result<ArgMatches, UsageError> {
    if let Some((port, rest)) = bare_port(argv) {
        return Err(UsageError::Options(format!(
            "attach {port}: expected an option; type: truepeer attach --port {port} {rest}"
        )));
    }
    let command = command();
    if let Some(way) = argv.get(1).and_then(|word| command.find_subcommand(word))
        && !["run", "connect"].contains(&way.get_name())
        && let Some(error) = guess::misspelt(argv, way)
    {
        return Err(error);
    }
    let rewritten = match argv.get(1).and_then(|word| command.find_subcommand(word)) {
        Some(subcommand) => go_style::rewrite(argv.to_vec(), subcommand),
        None => argv.to_vec(),
    };
    let matches = command.try_get_matches_from(&rewritten);
    // Help and the version are no mistakes, either.
    let is_valid = matches.as_ref().err().is_none_or(|error| !error.use_stderr());
    guess::refuse(argv, is_valid)?;
    let matches = matches.map_err(|error| guess::explain(&rewritten, error))?;
    let program = match matches.subcommand() {
        Some(("run", matches)) => RunArgs::from_arg_matches(matches)?.how.command,
        Some(("connect", matches)) => ConnectArgs::from_arg_matches(matches)?.how.command,
        _ => return Ok(matches),
    };
    guess::behind_the_program(&rewritten, &program)?;
    Ok(matches)
}

fn parse_as_truepeer(argv: &[OsString]) -> Result<Invocation, UsageError> {
    let matches = matched(argv).map_err(|error| guess::in_a_whole_line(argv, error))?;
    match matches.subcommand() {
        Some((name @ ("proxy" | "https" | "attach"), matches)) if wants_file(matches) => print(name, matches),
        Some(("proxy", matches)) => {
            let spec = ProxySpec::from_arg_matches(matches)?;
            Ok(Invocation::Proxy(Box::new(Config::of_proxy(&spec, &Defaults::default())?), None))
        }
        Some(("https", matches)) => {
            let spec = HttpsSpec::from_arg_matches(matches)?;
            let config = Config::of_https(&spec)?;
            Ok(Invocation::Https(Box::new(config), spec.stack))
        }
        Some(("serve", matches)) => Ok(Invocation::Serve(ServeArgs::from_arg_matches(matches)?)),
        Some(("completion", matches)) => Ok(Invocation::Completion(CompletionArgs::from_arg_matches(matches)?)),
        Some(("man", matches)) => Ok(Invocation::Man(ManArgs::from_arg_matches(matches)?)),
        Some(("check", matches)) => Ok(Invocation::Check(CheckArgs::from_arg_matches(matches)?)),
        Some(("reload", matches)) => Ok(Invocation::Reload(ReloadArgs::from_arg_matches(matches)?)),
        Some(("upgrade", matches)) => Ok(Invocation::Upgrade(UpgradeArgs::from_arg_matches(matches)?)),
        Some(("attach", matches)) => Ok(Invocation::Attach(Box::new(AttachArgs::from_arg_matches(matches)?))),
        Some(("oci-hook", matches)) => Ok(Invocation::OciHook(OciHookArgs::from_arg_matches(matches)?)),
        Some(("run", matches)) => Ok(Invocation::Run(Box::new(RunArgs::from_arg_matches(matches)?))),
        Some(("connect", matches)) => {
            Ok(Invocation::Connect(Box::new(ConnectArgs::from_arg_matches(matches)?)))
        }
        Some(("routes", matches)) => Ok(Invocation::Routes(RoutesArgs::from_arg_matches(matches)?)),
        Some(("doctor", matches)) => Ok(Invocation::Doctor(DoctorArgs::from_arg_matches(matches)?)),
        Some(("status", matches)) => Ok(Invocation::Status(StatusArgs::from_arg_matches(matches)?)),
        Some(("sessions", matches)) => Ok(Invocation::Sessions(SessionsArgs::from_arg_matches(matches)?)),
        Some(("whois", matches)) => Ok(Invocation::Whois(WhoisArgs::from_arg_matches(matches)?)),
        Some(("top", matches)) => Ok(Invocation::Top(TopArgs::from_arg_matches(matches)?)),
        Some(("ban", matches)) => Ok(Invocation::Ban(BanArgs::from_arg_matches(matches)?)),
        Some(("unban", matches)) => Ok(Invocation::Unban(UnbanArgs::from_arg_matches(matches)?)),
        Some(("bans", matches)) => Ok(Invocation::Bans(BansArgs::from_arg_matches(matches)?)),
        Some(("crowdsec", matches)) => Ok(Invocation::Crowdsec(CrowdsecArgs::from_arg_matches(matches)?)),
        Some(("probe", matches)) => Ok(Invocation::Probe(Box::new(ProbeArgs::from_arg_matches(matches)?))),
        Some(("vpp", matches)) => Ok(Invocation::Vpp(Box::new(VppArgs::from_arg_matches(matches)?))),
        _ => Err(UsageError::Options(
            "expected a command: serve, check, reload, upgrade, proxy, https, attach, oci-hook, run, connect, routes, doctor, status, sessions, whois, top, ban, unban, bans, crowdsec, probe or vpp; see truepeer --help"
                .to_owned(),
        )),
    }
}

/// `--print-config`.
fn wants_file(matches: &ArgMatches) -> bool {
    matches.get_flag("print_config")
}

/// The command line as a file.
fn print(name: &str, matches: &ArgMatches) -> Result<Invocation, UsageError> {
    let directory = std::env::current_dir().unwrap_or_default();
    Ok(Invocation::Print(file::of_command(name, matches, &directory)?))
}

/// `attach 8080`: the port, and the other options.
fn bare_port(argv: &[OsString]) -> Option<(&str, String)> {
    let [_, command, word, rest @ ..] = argv else { return None };
    let word = word.to_str().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let rest: Vec<_> = rest.iter().map(|word| word.to_string_lossy()).collect();
    let is_sender =
        |word: &str| word.starts_with(|c: char| c.is_ascii_hexdigit()) && word.contains(['.', ':']);
    let allow = match rest.first() {
        Some(sender) if is_sender(sender) => "--allow",
        _ if rest.iter().any(|word| word.starts_with("--allow")) => "",
        _ => "--allow PREFIX",
    };
    let rest = format!("{allow} {}", rest.join(" "));
    (command == "attach").then(|| (word, rest.trim().to_owned()))
}

fn command() -> Command {
    groups::group(with_commands())
}

fn with_commands() -> Command {
    Command::new("truepeer")
        .about(ABOUT)
        .version(env!("CARGO_PKG_VERSION"))
        .after_help(AFTER_HELP)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(pages::serve())
        .subcommand(pages::check())
        .subcommand(pages::reload())
        .subcommand(pages::upgrade())
        .subcommand(proxy::command("proxy"))
        .subcommand(https::command())
        .subcommand(attach::command())
        .subcommand(attach::oci_hook())
        .subcommand(pages::run())
        .subcommand(pages::connect())
        .subcommand(pages::routes())
        .subcommand(pages::doctor())
        .subcommand(pages::status())
        .subcommand(pages::sessions())
        .subcommand(pages::whois())
        .subcommand(pages::top())
        .subcommand(pages::probe())
        .subcommand(bans::ban())
        .subcommand(bans::unban())
        .subcommand(bans::bans())
        .subcommand(bans::crowdsec())
        .subcommand(pages::vpp())
        .subcommand(completion::command())
        .subcommand(manual::command())
}

#[cfg(test)]
mod messages;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
