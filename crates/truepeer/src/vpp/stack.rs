//! truepeer itself on VPP's stack: it starts itself again under VPP's library, and ends when VPP does.
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
use crate::run::Program;
use crate::spec::{Stack, StackArgs, VppPlaceArgs};

/// Says to the second start that it is one, and where VPP is asked.
const SIGN: &str = "TRUEPEER_ON_VPP";

/// What is to be done at this start.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Start again, under the library.
    Become,
    /// Go on, for as long as VPP lives.
    Watch(PathBuf),
}

/// Goes on on the chosen stack, with so many threads that use sockets. On VPP's the process becomes itself once more: call it first of all, with one thread.
///
/// # Errors
/// What keeps this binary off VPP's stack: no VPP, no library, file capabilities.
pub(crate) fn enter(args: &StackArgs, workers: usize) -> Result<()> {
    if args.stack.unwrap_or_default() == Stack::Kernel {
        return Ok(());
    }
    match next_step(env::var_os(SIGN), is_loaded()?)? {
        Step::Become => become_itself(args, workers).context("--stack vpp"),
        Step::Watch(socket) => watch(&socket).context("--stack vpp"),
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
    // The library would end the process before main, with less to say.
    let socket = app_socket(place.dir(), &namespace);
    ask(&socket)?;
    // Each of our workers opens and uses its sockets by itself. One alone needs none of what VPP's library does for several.
    let vcl = place.vcl(&namespace, if workers > 1 { Workers::Threads } else { Workers::Processes });
    let error = Command::new(&exe)
        .args(words)
        .envs(variables(&library, &vcl, env::var_os("LD_PRELOAD")))
        .env(SIGN, &socket)
        .exec();
    Err(error).with_context(|| exe.display().to_string())
}

/// When VPP dies, its descriptors are ready for ever and say nothing: every worker would spin. So the process ends.
fn watch(socket: &Path) -> Result<()> {
    let vpp = ask(socket)?;
    let wait = move || {
        let why =
            wait_for_end(&vpp).map_or_else(|error| format!("{error:#}"), |()| "it has ended".to_owned());
        tracing::error!("VPP is gone ({why}), and every connection with it: start it again, then truepeer");
        // Not by exit(): the library would say good-bye to VPP, and wait for its answer.
        truepeer_sys::process::end_now(1);
    };
    thread::Builder::new().name("vpp".to_owned()).spawn(wait).context("a thread")?;
    Ok(())
}

/// A connection to VPP, which lasts as long as VPP: the kernel closes it, whatever VPP dies of. rustix's calls are the
/// system's own, past the library.
fn ask(path: &Path) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .context("socket")?;
    let address = SocketAddrUnix::new(path).with_context(|| path.display().to_string())?;
    connect(&socket, &address).with_context(|| format!("{}: VPP takes no programs there", path.display()))?;
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
        assert!(format!("{:#}", ask(&path).unwrap_err()).contains("takes no programs"));
        let door =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&door, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&door, 8).unwrap();
        let ours = ask(&path).unwrap();
        let vpps = accept(&door).unwrap();
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
