//! Runs a program with the preloaded library: writes the library to a file and configures it by environment
//! variables.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use truepeer_handover::{ConnectSettings, RunSettings};
use truepeer_sys::process::keep_ignored_pipe_in;

use super::library;
use super::notify::beside::Beside;
use super::program::{NotStarted, Program};

/// The longest value of an environment variable (MAX_ARG_STRLEN, execve(2)), minus the name.
const MOST_BYTES: usize = 128 * 1024 - 64;

/// Becomes a program that accepts connections.
pub(super) fn run(settings: &RunSettings, program: &Program, beside: Option<Beside>) -> Result<ExitCode> {
    become_program(program, ("TRUEPEER_RUN", settings.to_string()), beside)
}

/// Becomes a program that makes connections.
pub(super) fn connect(
    sending: &ConnectSettings,
    program: &Program,
    beside: Option<Beside>,
) -> Result<ExitCode> {
    become_program(program, ("TRUEPEER_CONNECT", sending.to_string()), beside)
}

fn become_program(
    program: &Program,
    (variable, text): (&str, String),
    beside: Option<Beside>,
) -> Result<ExitCode> {
    ensure!(
        text.len() < MOST_BYTES,
        "the lists of senders and clients have {} bytes, more than an environment variable holds: use --via \
        notify",
        text.len()
    );
    let library = library::unpacked()?;
    let (name, arguments) = program.words.split_first().context("no command")?;
    let mut command = Command::new(&program.file);
    command
        .arg0(name)
        .args(arguments)
        .env("LD_PRELOAD", before_others(&library))
        .env(variable, text)
        .env_remove("TRUEPEER_FAMILY")
        // Without a supervisor of its own, that of an outer truepeer remains, whose filter is inherited.
        .envs(beside.iter().flat_map(Beside::variables));
    let error = keep_ignored_pipe_in(&mut command).exec();
    Err(error).with_context(|| NotStarted::NotExecutable(program.file.display().to_string()))
}

/// Keeps what LD_PRELOAD already contains.
fn before_others(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

/// Writes the library into a directory, under its own name and under those of libproxyproto.
pub(super) fn install(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let file = dir.join("libtruepeer.so");
    library::write(&file)?;
    for name in ["libproxyproto.so", "libproxyproto_connect.so"] {
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link).with_context(|| link.display().to_string())?;
        }
        std::os::unix::fs::symlink("libtruepeer.so", &link).with_context(|| link.display().to_string())?;
    }
    Ok(())
}
