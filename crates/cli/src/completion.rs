//! `truepeer completion`.

use std::io::{self, Write};

use clap::{Args as _, Command};
use clap_complete::{Shell, generate};

use super::dress::{Page, dress, example};
use super::texts::CompletionArgs;
use crate::table;

const PAGE: Page = Page {
    which: table::COMPLETION,
    examples: &[
        example("For bash", "truepeer completion bash > /usr/share/bash-completion/completions/truepeer"),
        example("For zsh", "truepeer completion zsh > /usr/share/zsh/vendor-completions/_truepeer"),
        example("For fish", "truepeer completion fish > /usr/share/fish/vendor_completions.d/truepeer.fish"),
    ],
    notes: "",
};

pub(super) fn command() -> Command {
    dress(CompletionArgs::augment_args(Command::new("completion")), &PAGE)
}

/// Writes the completions of all commands.
pub fn write(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    let mut text = Vec::new();
    generate(shell, &mut super::command(), "truepeer", &mut text);
    out.write_all(&text)?;
    out.flush()
}
