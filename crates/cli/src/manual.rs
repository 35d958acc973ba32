//! Manual pages: one for each command, from what `--help` is made of.

use std::io;
use std::path::Path;

use clap::{Args as _, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::texts::ManArgs;
use crate::file;
use truepeer_config::date;

/// For those who make packages.
pub(super) fn command() -> Command {
    ManArgs::augment_args(Command::new("man")).hide(true)
}

/// Writes every page into the directory.
pub fn write(dir: &Path) -> io::Result<()> {
    for (name, page) in pages() {
        std::fs::write(dir.join(name), page)?;
    }
    Ok(())
}

/// Names of files, and pages.
pub(super) fn pages() -> Vec<(String, String)> {
    let mut all = super::command();
    all.build();
    let mut pages = vec![("truepeer.1".to_owned(), page(&all, "truepeer"))];
    for command in all.get_subcommands().filter(|command| is_page(command)) {
        let name = format!("truepeer-{}", command.get_name());
        pages.push((format!("{name}.1"), page(command, &name)));
        for below in command.get_subcommands().filter(|below| is_page(below)) {
            let name = format!("{name}-{}", below.get_name());
            pages.push((format!("{name}.1"), page(below, &name)));
        }
    }
    pages.push(("truepeer.toml.5".to_owned(), file::manual()));
    pages
}

fn is_page(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

fn page(command: &Command, name: &str) -> String {
    // The page has all options, also those that `-h` leaves out.
    let whole = command.clone().mut_args(|arg| arg.hide_short_help(false));
    let man = Man::new(whole);
    let mut page = date::title(name, 1).into_bytes();
    // Writing to memory can't fail.
    let _ = named(command, name).to_writer(&mut page);
    let _ = man.render_synopsis_section(&mut page);
    let _ = man.render_description_section(&mut page);
    let _ = examples(command).to_writer(&mut page);
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        let _ = man.render_options_section(&mut page);
    }
    let _ = commands(command, name).to_writer(&mut page);
    let _ = notes(command).to_writer(&mut page);
    let _ = see_also(name).to_writer(&mut page);
    String::from_utf8_lossy(&page).into_owned()
}

fn named(command: &Command, name: &str) -> Roff {
    let mut roff = Roff::new();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let first = about.split(['.', ':', ',', ';']).next().unwrap_or_default();
    roff.control("SH", ["NAME"]).text([roman(format!("{name} - {first}"))]);
    roff
}

fn examples(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let examples = command.get_before_long_help().map(ToString::to_string).unwrap_or_default();
    if examples.is_empty() {
        return roff;
    }
    roff.control("SH", ["EXAMPLES"]);
    for (number, line) in examples.lines().skip(1).enumerate() {
        match line.strip_prefix("    ") {
            Some(typed) => roff.control("nf", []).text([bold(typed)]).control("fi", []),
            // A heading begins a paragraph by itself.
            None if number == 0 => roff.text([roman(line.trim())]),
            None => roff.control("PP", []).text([roman(line.trim())]),
        };
    }
    roff
}

fn commands(command: &Command, name: &str) -> Roff {
    let mut roff = Roff::new();
    let below: Vec<_> = command.get_subcommands().filter(|below| is_page(below)).collect();
    if !below.is_empty() {
        roff.control("SH", ["COMMANDS"]);
    }
    for below in below {
        let about = below.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []).text([bold(format!("{name}-{}(1)", below.get_name()))]).text([roman(about)]);
    }
    roff
}

/// The paragraphs behind the options. A line that is indented by two begins with a name.
fn notes(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let notes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    if notes.trim().is_empty() {
        return roff;
    }
    roff.control("SH", ["NOTES"]);
    for line in notes.lines() {
        match (line.trim(), line.strip_prefix("  ")) {
            ("", _) => roff.control("PP", []),
            (_, Some(item)) if !item.starts_with(' ') => {
                let (name, text) = item.split_once("   ").unwrap_or((item, ""));
                roff.control("TP", []).text([bold(name)]);
                if text.trim().is_empty() { &mut roff } else { roff.text([roman(text.trim())]) }
            }
            (text, _) => roff.text([roman(text)]),
        };
    }
    roff
}

fn see_also(name: &str) -> Roff {
    let mut roff = Roff::new();
    let others = if name == "truepeer" { "truepeer.toml(5)" } else { "truepeer(1), truepeer.toml(5)" };
    roff.control("SH", ["SEE ALSO"]).text([roman(others)]);
    roff
}
