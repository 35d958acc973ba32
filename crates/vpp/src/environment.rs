//! Runs a program on VPP's stack: by a preloaded library and its environment variables.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use super::find;
use super::process::State;
use super::status::running;
use super::vcl::Workers;
use truepeer_config::spec::VppRunArgs;
use truepeer_run::{Kind, Program};

/// VPP's descriptors start at 2¹². The default, 2³², exceeds every descriptor, so programs would take VPP's
/// descriptors for the kernel's. A value set by the user is kept: wrk, for example, uses few descriptors and
/// needs 5.
const SID_BIT: (&str, &str) = ("LDP_SID_BIT", "12");

/// Becomes a program on VPP's stack (exec).
pub(super) fn run(args: &VppRunArgs) -> Result<ExitCode> {
    let (place, state, _) = running(&args.place)?;
    let namespace = namespace("--namespace", args.namespace.as_deref(), &state)?;
    let VppRunArgs { library: named, .. } = args;
    let library = find::library("--library", named.as_deref(), &state.vpp)?;
    let program = Program::find(&args.command)?;
    refuse(&program)?;
    if let Some(core) = args.core {
        stay_on(core)?;
    }
    let (name, arguments) = program.words.split_first().context("no command")?;
    let error = Command::new(&program.file)
        .arg0(name)
        .args(arguments)
        .envs(variables(&library, &place.vcl(&namespace, Workers::Processes), env::var_os("LD_PRELOAD")))
        .exec();
    Err(error).with_context(|| program.file.display().to_string())
}

/// The namespace given by `option`, or the proxy's.
pub(super) fn namespace(option: &str, named: Option<&str>, state: &State) -> Result<String> {
    let namespace = named.unwrap_or(&state.proxy);
    ensure!(
        state.namespaces.iter().any(|known| known == namespace),
        "{option} {namespace}: this VPP has {}",
        state.namespaces.join(", ")
    );
    Ok(namespace.to_owned())
}

/// The variables that put a program onto VPP. What LD_PRELOAD already contains stays, behind VPP's library.
pub(super) fn variables(
    library: &Path,
    vcl: &Path,
    others: Option<OsString>,
) -> [(&'static str, OsString); 3] {
    let mut preload = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        preload.push(OsStr::new(":"));
        preload.push(others);
    }
    let (name, usual) = SID_BIT;
    let sid_bit = env::var_os(name).unwrap_or_else(|| usual.into());
    [("LD_PRELOAD", preload), ("VCL_CONFIG", vcl.into()), (name, sid_bit)]
}

/// Refuses a program that doesn't load the library: it would silently use the kernel's stack.
pub(super) fn refuse(program: &Program) -> Result<()> {
    let name = program.file.display();
    match program.kind {
        Kind::Dynamic => Ok(()),
        Kind::SetUserId => bail!(
            "{name} changes its user or has file capabilities: the linker then ignores LD_PRELOAD; as root, run a copy without them"
        ),
        kind => bail!("{name} is {kind}: it loads no library, so it can't use VPP's stack"),
    }
}

fn stay_on(core: u16) -> Result<()> {
    let mut cores = rustix::thread::CpuSet::new();
    ensure!(usize::from(core) < rustix::thread::CpuSet::MAX_CPU, "--core {core}: no such core");
    cores.set(usize::from(core));
    rustix::thread::sched_setaffinity(None, &cores).with_context(|| format!("--core {core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vpps_library_stands_before_others() {
        let (library, vcl) = (Path::new("/lib/vcl.so"), Path::new("/run/x/vcl-proxy.conf"));
        let [preload, config, bit] = variables(library, vcl, Some("/lib/other.so".into()));
        assert_eq!(preload, ("LD_PRELOAD", "/lib/vcl.so:/lib/other.so".into()));
        assert_eq!(config, ("VCL_CONFIG", "/run/x/vcl-proxy.conf".into()));
        assert_eq!(bit, ("LDP_SID_BIT", "12".into()));
        for none in [None, Some(OsString::new())] {
            assert_eq!(variables(library, vcl, none)[0].1, "/lib/vcl.so");
        }
    }

    #[test]
    fn a_program_that_loads_no_library_is_refused() {
        let refused = |kind| refuse(&Program { file: "/bin/x".into(), words: vec!["x".into()], kind });
        assert!(refused(Kind::Dynamic).is_ok());
        assert!(refused(Kind::SetUserId).unwrap_err().to_string().contains("file capabilities"));
        for kind in [Kind::Static, Kind::Go, Kind::OtherLibc, Kind::OtherMachine] {
            assert!(refused(kind).unwrap_err().to_string().contains("loads no library"), "{kind}");
        }
    }
}
