//! Help texts of commands: clap knows the options by their types, and the table in [`crate::table`] has
//! their help.

use std::io::IsTerminal as _;

use clap::{Arg, Command};

use crate::table::{self, Commands};

/// A command's help besides its options.
pub(super) struct Page {
    pub(super) which: Commands,
    /// `-h` shows the first one, too.
    pub(super) examples: &'static [Example],
    /// Further notes, in paragraphs.
    pub(super) notes: &'static str,
}

/// A purpose, and the command line for it.
pub(super) struct Example {
    pub(super) want: &'static str,
    pub(super) lines: &'static str,
}

pub(super) const fn example(want: &'static str, lines: &'static str) -> Example {
    Example { want, lines }
}

/// Usage and examples come before the options.
const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}{all-args}{after-help}";

/// Adds the help texts to a command: `-h` shows the first example and the common options, `--help`
/// everything.
pub(super) fn dress(command: Command, page: &Page) -> Command {
    let name = command.get_name().to_owned();
    let few = examples(page.examples.get(..1).unwrap_or_default());
    let all = examples(page.examples);
    let more =
        format!("These are the common options. For all options and more examples: truepeer {name} --help");
    words(command, page.which)
        .help_template(TEMPLATE)
        .before_help(few)
        .before_long_help(all)
        .after_help(more)
        .after_long_help(wrapped(page.notes, width()))
}

/// Adds the table's texts to a command and its subcommands.
fn words(command: Command, which: Commands) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    let command = in_order(command, which).mut_args(|arg| {
        let Some((place, row)) = table::find(which, &name_of(&arg)) else { return arg };
        let is_switch = !arg.get_action().takes_values();
        let arg = arg
            .help(row.text())
            .help_heading(row.heading())
            .display_order(place)
            .hide_short_help(!row.is_common);
        if is_switch { arg } else { arg.value_name(row.value).hide_possible_values(true) }
    });
    below.iter().fold(command, |command, name| command.mut_subcommand(name, |below| words(below, which)))
}

/// Its name in the table.
fn name_of(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().to_string(), str::to_owned)
}

/// clap's headings have the order of their first options.
fn in_order(command: Command, which: Commands) -> Command {
    let place = |arg: &Arg| table::find(which, &name_of(arg)).map(|(place, _)| place);
    let mut options: Vec<_> =
        command.get_arguments().filter_map(|arg| Some((place(arg)?, arg.get_id().clone()))).collect();
    options.sort_unstable_by_key(|(place, _)| *place);
    // An option that is changed becomes the last one.
    options.into_iter().fold(command, |command, (_, id)| command.mut_arg(id, |arg| arg))
}

fn examples(examples: &[Example]) -> String {
    let mut text = String::from(if examples.len() == 1 { "Example:\n" } else { "Examples:\n" });
    for Example { want, lines } in examples {
        text.push_str(&format!("  {want}:\n"));
        lines.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    text
}

/// The command lines of a dressed command's examples, each in one line.
pub(super) fn example_lines(command: &Command) -> Vec<String> {
    let text = command.get_before_long_help().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let joined = lines.join("\n").replace("\\\n", "");
    joined.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// clap wraps options at the terminal's width or at 100 columns. Do the same.
pub(super) fn width() -> usize {
    let columns = std::io::stdout()
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok())
        .flatten()
        .map_or(100, |size| usize::from(size.ws_col));
    columns.clamp(40, 100)
}

/// Breaks lines at blanks. The rest of a line that is indented by two is aligned with its second column.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        // For `  name   text`, the column of the text.
        let hanging = if indent == 0 {
            0
        } else {
            line.trim_start().find("   ").map_or(indent, |at| {
                let rest = &line[indent + at..];
                indent + at + rest.len() - rest.trim_start().len()
            })
        };
        let mut rest = line;
        let mut prefix = String::new();
        loop {
            let room = width.saturating_sub(prefix.len()).max(20);
            if rest.chars().count() <= room {
                out.push_str(&prefix);
                out.push_str(rest);
                break;
            }
            let limit = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
            let at = rest[..limit].rfind(' ').filter(|at| !rest[..*at].trim().is_empty()).unwrap_or(limit);
            out.push_str(&prefix);
            out.push_str(rest[..at].trim_end());
            out.push('\n');
            rest = rest[at..].trim_start();
            prefix = " ".repeat(hanging);
        }
        out.push('\n');
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_follow_the_width_and_keep_their_columns() {
        let text = "  name   some words that are too long for a line\nshort";
        assert_eq!(wrapped(text, 30), "  name   some words that are\n         too long for a line\nshort");
        assert_eq!(wrapped("a b", 80), "a b");
        assert_eq!(wrapped("", 80), "");
    }
}
