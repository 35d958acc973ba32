//! truepeer itself on VPP's stack: it executes itself again under VPP's library, and ends when VPP does.
//!
//! ```text
//! --stack vpp ─▶ enter: no sign ─▶ VPP there? library loadable? ─▶ exec, with a sign (TRUEPEER_ON_VPP)
//!                 └──── sign ─▶ library loaded? ─▶ watch ─▶ the rest of the program
//! ```

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::fs::{Access, access};

use super::environment::{namespace, refuse, variables};
use super::find;
use super::status::running;
use super::vcl::{Workers, app_socket};
use truepeer_config::spec::{Stack, StackArgs, VppPlaceArgs};
use truepeer_run::Program;

/// The environment variable that marks the second start.
const SIGN: &str = "TRUEPEER_ON_VPP";

/// The action of this start.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Execute again, with the library.
    Become,
    /// Continue, for as long as VPP lives.
    Watch,
}

/// Continues on the chosen stack, with this many threads that use sockets. For VPP's stack it executes the
/// process again, so call it first, with one thread.
///
/// # Errors
/// The reason why this binary can't use VPP's stack: no VPP, no library, file capabilities.
pub fn enter(args: &StackArgs, workers: usize) -> Result<()> {
    if args.stack.unwrap_or_default() == Stack::Kernel {
        return Ok(());
    }
    match next_step(env::var_os(SIGN), is_loaded()?)? {
        Step::Become => become_itself(args, workers).context("--stack vpp"),
        Step::Watch => {
            // VPP's library runs in every worker from now on.
            truepeer_sys::process::tell_of_faults().context("--stack vpp")?;
            watch(args).context("--stack vpp")
        }
    }
}

fn next_step(sign: Option<OsString>, is_loaded: bool) -> Result<Step> {
    match sign {
        None => Ok(Step::Become),
        Some(_) if is_loaded => Ok(Step::Watch),
        Some(_) => bail!(
            "--stack vpp: the linker did not load VPP's library: file capabilities, or a security module that cleans the environment"
        ),
    }
}

fn is_loaded() -> Result<bool> {
    let maps = fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
    Ok(maps.contains("libvcl_ldpreload"))
}

fn become_itself(args: &StackArgs, workers: usize) -> Result<()> {
    let (place, state, _) = running(&place_of(args))?;
    let namespace = namespace("--vpp-namespace", args.vpp_namespace.as_deref(), &state)?;
    let library = find::library("--vpp-library", args.vpp_library.as_deref(), &state.vpp)?;
    let exe = env::current_exe().context("/proc/self/exe")?;
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let mut command = vec![exe.clone().into_os_string()];
    command.extend(words.iter().cloned());
    refuse(&Program::find(&command)?)?;
    // Check here: without VPP the library would end the process before main, with a worse message. But
    // don't connect: VPP keeps the socket of a program that leaves without a word, and with 16 of them
    // its main loop no longer ends (vlib/file.c, "maximum epoll events received").
    let socket = app_socket(place.dir(), &namespace);
    access(&socket, Access::WRITE_OK)
        .with_context(|| format!("{}: VPP accepts no programs there", socket.display()))?;
    // Each worker opens and uses its own sockets. A single worker needs no thread support from VPP's library.
    let vcl = place.vcl(&namespace, if workers > 1 { Workers::Threads } else { Workers::Processes });
    let error = Command::new(&exe)
        .args(words)
        .envs(variables(&library, &vcl, env::var_os("LD_PRELOAD")))
        .env(SIGN, "1")
        .exec();
    Err(error).with_context(|| exe.display().to_string())
}

/// When VPP dies, its descriptors stay ready forever and every worker would spin. So the process must end.
fn watch(args: &StackArgs) -> Result<()> {
    let (.., vpp) = running(&place_of(args))?;
    let wait = move || {
        let why =
            vpp.wait_for_end().map_or_else(|error| format!("{error:#}"), |()| "it has ended".to_owned());
        tracing::error!("VPP has ended ({why}), and all connections with it; start VPP again, then truepeer");
        // Not exit(): the library's exit handler would send a message to VPP and wait for its answer.
        truepeer_sys::process::end_now(1);
    };
    thread::Builder::new().name("vpp".to_owned()).spawn(wait).context("a thread")?;
    Ok(())
}

fn place_of(args: &StackArgs) -> VppPlaceArgs {
    VppPlaceArgs { dir: args.vpp_dir.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_start_goes_on_under_the_library() {
        assert_eq!(next_step(None, false).unwrap(), Step::Become);
        assert_eq!(next_step(None, true).unwrap(), Step::Become);
        assert_eq!(next_step(Some("1".into()), true).unwrap(), Step::Watch);
        assert!(next_step(Some("1".into()), false).unwrap_err().to_string().contains("file capabilities"));
        assert!(!is_loaded().unwrap());
    }

    #[test]
    fn on_the_kernels_stack_nothing_is_done() {
        let args =
            StackArgs { stack: Some(Stack::Kernel), vpp_namespace: None, vpp_dir: None, vpp_library: None };
        enter(&args, 2).unwrap();
    }
}
