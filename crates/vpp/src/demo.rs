//! `truepeer vpp demo`: executes the demonstration, a separate program that is built and installed beside
//! this one. It creates certificates, network namespaces and load, which truepeer itself never needs.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use truepeer_config::spec::VppDemoArgs;

const PROGRAM: &str = "demo-https";

/// Returns only if the program can't be started.
pub(super) fn demo(args: &VppDemoArgs) -> Result<()> {
    let own = env::current_exe().context("/proc/self/exe")?;
    let program = own.with_file_name(PROGRAM);
    ensure!(
        program.is_file(),
        "{}: no such program; in truepeer's source tree, `make demo-https` builds and runs the demonstration",
        program.display()
    );
    let error = Command::new(&program).arg(&own).args(&args.options).exec();
    Err(error).with_context(|| program.display().to_string())
}
