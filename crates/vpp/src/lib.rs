//! VPP's stack: starts and configures VPP as the guide does (`vpp up`, `down`, `status`), and runs programs
//! on it (`vpp run`, `--stack vpp`).
//!
//! ```text
//! layout, startup, vcl   pure: VPP's configuration and command lines
//! find, place, process   VPP on this machine, and the one that truepeer started
//! control, up, down, …   the actions; each line is printed
//! environment, stack     a program on VPP's stack; truepeer itself on it
//! ```
#![forbid(unsafe_code)]

mod control;
mod demo;
mod down;
mod environment;
mod find;
mod layout;
mod place;
mod process;
pub mod stack;
mod startup;
mod status;
mod up;
mod vcl;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

use truepeer_config::spec::VppAction;

/// Runs the action of `truepeer vpp`.
pub fn carry_out(action: &VppAction, out: &mut dyn Write) -> Result<ExitCode> {
    match action {
        VppAction::Up(args) => up::up(args, out)?,
        VppAction::Down(place) => down::down(place, out)?,
        VppAction::Status(place) => status::status(place, out)?,
        VppAction::Demo(args) => demo::demo(args)?,
        VppAction::Run(args) => return environment::run(args),
    }
    Ok(ExitCode::SUCCESS)
}
