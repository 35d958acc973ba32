//! `truepeer vpp demo`: becomes the demonstration, a program of its own that is built and installed beside this one. It
//! makes certificates, network namespaces and load, none of which truepeer itself has a use for.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::spec::VppDemoArgs;

const PROGRAM: &str = "demo-https";

/// Returns only if it can't be started.
pub(super) fn demo(args: &VppDemoArgs) -> Result<()> {
    let own = env::current_exe().context("/proc/self/exe")?;
    let program = own.with_file_name(PROGRAM);
    ensure!(
        program.is_file(),
        "{}: no such program; in truepeer's source tree `make demo-https` builds it and shows the same",
        program.display()
    );
    let error = Command::new(&program).arg(&own).args(&args.options).exec();
    Err(error).with_context(|| program.display().to_string())
}
