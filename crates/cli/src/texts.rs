//! `truepeer completion` and `man` as they are written.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Print a shell's completions of commands and options
#[derive(Debug, Clone, Args)]
pub struct CompletionArgs {
    #[arg(value_parser = shell)]
    pub shell: Shell,
}

/// Write the manual pages: one for each command, and truepeer.toml(5)
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

fn shell(text: &str) -> Result<Shell, &'static str> {
    match text {
        "bash" => Ok(Shell::Bash),
        "zsh" => Ok(Shell::Zsh),
        "fish" => Ok(Shell::Fish),
        _ => Err("expected bash, zsh or fish"),
    }
}
