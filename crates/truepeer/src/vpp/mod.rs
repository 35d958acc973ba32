//! VPP's stack: started and laid out as the guide does (`vpp up`, `down`, `status`), and programs put onto it (`vpp run`,
//! `--stack vpp`).
//!
//! ```text
//! layout, startup, vcl   pure: what VPP is told, and in which words
//! find, place, process   what is on this machine, and which of it is ours
//! control, up, down, …   what is done, each line printed
//! environment, stack     a program on VPP's stack; truepeer itself on it
//! ```

mod control;
mod demo;
mod down;
mod environment;
mod find;
mod layout;
mod place;
mod process;
pub(crate) mod stack;
mod startup;
mod status;
mod up;
mod vcl;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;

use crate::spec::VppAction;
pub(crate) use layout::{Device, ETHERNET_ADDRESSES, Layout, Port};

/// Does what `truepeer vpp` was asked to.
pub(crate) fn carry_out(action: &VppAction, out: &mut dyn Write) -> Result<ExitCode> {
    match action {
        VppAction::Up(args) => up::up(args, out)?,
        VppAction::Down(place) => down::down(place, out)?,
        VppAction::Status(place) => status::status(place, out)?,
        VppAction::Demo(args) => demo::demo(args)?,
        VppAction::Run(args) => return environment::run(args),
    }
    Ok(ExitCode::SUCCESS)
}
