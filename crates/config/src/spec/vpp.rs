//! `truepeer vpp` as it is written.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use ipnet::Ipv4Net;

use super::device::VppDevice;
use super::values;

/// Start and configure VPP's network stack, and run programs on it.
#[derive(Debug, Clone, Args)]
pub struct VppArgs {
    #[command(subcommand)]
    pub action: VppAction,
}

/// The action.
#[derive(Debug, Clone, Subcommand)]
pub enum VppAction {
    /// Start VPP and configure a layout; every command line is printed
    Up(UpArgs),
    /// Stop what up started
    Down(VppPlaceArgs),
    /// Show version, layout, interfaces, namespaces and sessions
    Status(VppPlaceArgs),
    /// Run a program on VPP's stack
    Run(VppRunArgs),
    /// Demonstrate and measure truepeer https between a client and NGINX, on the kernel's stack and on VPP's
    /// if it is installed
    Demo(VppDemoArgs),
}

/// The demonstration.
#[derive(Debug, Clone, Args)]
pub struct VppDemoArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<OsString>,
}

/// Identifies the VPP.
#[derive(Debug, Clone, Args)]
pub struct VppPlaceArgs {
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// How to start it.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("layout").required(true))]
pub struct UpArgs {
    #[arg(long, group = "layout")]
    pub(crate) loopback: bool,
    #[arg(long, group = "layout", value_parser = two::<VppDevice>)]
    pub ethernet: Option<[VppDevice; 2]>,
    #[arg(long, conflicts_with = "loopback", value_parser = addresses)]
    pub address: Option<[Ipv4Net; 2]>,
    #[arg(long, value_parser = values::count_or_none::<u16>)]
    pub core: Option<u16>,
    #[arg(long)]
    pub vpp: Option<PathBuf>,
    #[arg(long)]
    pub print: bool,
    #[command(flatten)]
    pub place: VppPlaceArgs,
}

/// A program to run on VPP.
#[derive(Debug, Clone, Args)]
pub struct VppRunArgs {
    #[arg(long)]
    pub namespace: Option<String>,
    #[arg(long, value_parser = values::count_or_none::<u16>)]
    pub core: Option<u16>,
    #[arg(long)]
    pub library: Option<PathBuf>,
    #[command(flatten)]
    pub place: VppPlaceArgs,
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// The network stack of a command.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct StackArgs {
    #[arg(long)]
    pub stack: Option<Stack>,
    #[arg(long)]
    pub vpp_namespace: Option<String>,
    #[arg(long)]
    pub vpp_dir: Option<PathBuf>,
    #[arg(long)]
    pub vpp_library: Option<PathBuf>,
}

/// A network stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Stack {
    /// The kernel's.
    #[default]
    Kernel,
    /// VPP's, by a preloaded library.
    Vpp,
}

fn addresses(text: &str) -> Result<[Ipv4Net; 2], String> {
    two(text).map_err(|_| "expected two addresses, such as 172.16.2.1/24,172.16.1.2/24".to_owned())
}

fn two<T>(text: &str) -> Result<[T; 2], String>
where
    T: std::str::FromStr + PartialEq,
    T::Err: std::fmt::Display,
{
    let (first, second) = text.split_once(',').ok_or("expected two, with a comma between them")?;
    let parse = |part: &str| part.parse::<T>().map_err(|error| error.to_string());
    let (first, second) = (parse(first)?, parse(second)?);
    if first == second { Err("the same twice".to_owned()) } else { Ok([first, second]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_in_pairs() {
        assert!(two::<VppDevice>("veth0,veth1").is_ok());
        assert!(two::<VppDevice>("0000:01:00.0,veth1").is_ok());
        for text in ["veth0", "veth0,", "veth0,veth0", "a,b,c"] {
            assert!(two::<VppDevice>(text).is_err(), "{text}");
        }
        assert!(addresses("10.0.0.1/24,10.0.1.1/24").is_ok());
        assert!(addresses("10.0.0.1/24").unwrap_err().contains("172.16"));
    }
}
