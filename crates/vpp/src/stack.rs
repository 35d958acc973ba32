//! truepeer itself on VPP's stack: it executes itself again under VPP's library, and ends when VPP does.
//!
//! ```text
//! --stack vpp ─▶ enter: no sign ─▶ VPP there? library loadable? ─▶ exec, with a sign (TRUEPEER_ON_VPP)
//!                 └──── sign ─▶ library loaded? ─▶ watch ─▶ the rest of the program
//! ```

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};

use super::environment::{namespace, refuse, variables};
use super::find;
use super::status::running;
use super::vcl::{Workers, app_socket};
use truepeer_config::spec::{Stack, StackArgs, VppPlaceArgs};
use truepeer_run::Program;

/// The environment variable that marks the second start. It contains the path of VPP's socket.
const SIGN: &str = "TRUEPEER_ON_VPP";

/// The action of this start.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Execute again, with the library.
    Become,
    /// Continue, for as long as VPP lives.
    Watch(PathBuf),
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
        Step::Watch(socket) => {
            // VPP's library runs in every worker from now on.
            truepeer_sys::process::tell_of_faults().context("--stack vpp")?;
            watch(&socket).context("--stack vpp")
        }
    }
}

fn next_step(sign: Option<OsString>, is_loaded: bool) -> Result<Step> {
    match sign {
        None => Ok(Step::Become),
        Some(socket) if is_loaded => Ok(Step::Watch(socket.into())),
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
    let (place, state) = running(&VppPlaceArgs { dir: args.vpp_dir.clone() })?;
    let namespace = namespace("--vpp-namespace", args.vpp_namespace.as_deref(), &state)?;
    let library = find::library("--vpp-library", args.vpp_library.as_deref(), &state.vpp)?;
    let exe = env::current_exe().context("/proc/self/exe")?;
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let mut command = vec![exe.clone().into_os_string()];
    command.extend(words.iter().cloned());
    refuse(&Program::find(&command)?)?;
    // Check here: without VPP the library would end the process before main, with a worse message.
    let socket = app_socket(place.dir(), &namespace);
    ask(&socket)?;
    // Each worker opens and uses its own sockets. A single worker needs no thread support from VPP's library.
    let vcl = place.vcl(&namespace, if workers > 1 { Workers::Threads } else { Workers::Processes });
    let error = Command::new(&exe)
        .args(words)
        .envs(variables(&library, &vcl, env::var_os("LD_PRELOAD")))
        .env(SIGN, &socket)
        .exec();
    Err(error).with_context(|| exe.display().to_string())
}

/// When VPP dies, its descriptors stay ready forever and every worker would spin. So the process must end.
fn watch(socket: &Path) -> Result<()> {
    let vpp = ask(socket)?;
    let wait = move || {
        let why =
            wait_for_end(&vpp).map_or_else(|error| format!("{error:#}"), |()| "it has ended".to_owned());
        tracing::error!("VPP has ended ({why}), and all connections with it; start VPP again, then truepeer");
        // Not exit(): the library's exit handler would send a message to VPP and wait for its answer.
        truepeer_sys::process::end_now(1);
    };
    thread::Builder::new().name("vpp".to_owned()).spawn(wait).context("a thread")?;
    Ok(())
}

/// A connection to VPP. The kernel closes it when VPP dies, whatever the cause. rustix makes its system calls
/// directly, so the library doesn't intercept them.
fn ask(path: &Path) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context("socket")?;
    let address = SocketAddrUnix::new(path).with_context(|| path.display().to_string())?;
    connect(&socket, &address)
        .with_context(|| format!("{}: VPP accepts no programs there", path.display()))?;
    Ok(socket)
}

fn wait_for_end(vpp: &OwnedFd) -> Result<()> {
    loop {
        match poll(&mut [PollFd::new(vpp, PollFlags::IN)], None) {
            Err(Errno::INTR) => continue,
            ready => ready.context("poll")?,
        };
        match recv(vpp, &mut [0_u8; 256][..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("recv"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{SendFlags, accept, bind, listen, send};

    use super::*;

    #[test]
    fn the_second_start_goes_on_under_the_library() {
        assert_eq!(next_step(None, false).unwrap(), Step::Become);
        assert_eq!(next_step(None, true).unwrap(), Step::Become);
        assert_eq!(next_step(Some("/s".into()), true).unwrap(), Step::Watch("/s".into()));
        assert!(next_step(Some("/s".into()), false).unwrap_err().to_string().contains("file capabilities"));
        assert!(!is_loaded().unwrap());
    }

    #[test]
    fn vpps_end_is_noticed() {
        let path = env::temp_dir().join(format!("truepeer-vpp-app-{}", std::process::id()));
        assert!(format!("{:#}", ask(&path).unwrap_err()).contains("accepts no programs"));
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        let ours = ask(&path).unwrap();
        let vpps = accept(&listener).unwrap();
        fs::remove_file(&path).unwrap();
        let waiting = thread::spawn(move || wait_for_end(&ours));
        send(&vpps, b"a word that is not for us", SendFlags::empty()).unwrap();
        drop(vpps);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn on_the_kernels_stack_nothing_is_done() {
        let args =
            StackArgs { stack: Some(Stack::Kernel), vpp_namespace: None, vpp_dir: None, vpp_library: None };
        enter(&args, 2).unwrap();
    }
}
