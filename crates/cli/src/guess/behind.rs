//! The words behind a program that `run` and `connect` start.

use std::ffi::OsString;
use std::path::Path;

use super::UsageError;

/// Options that no usual program has: behind the program they would go to it, and truepeer would use its
/// defaults.
const OURS: [&str; 10] = [
    "--allow",
    "--allow-claims",
    "--deny-clients",
    "--header-timeout",
    "--header-wait",
    "--header-max",
    "--require-tlv",
    "--sender",
    "--via",
    "--send-proxy",
];

/// Options that stand beside them, but that programs have, too.
const OFTEN: [&str; 3] = ["--header", "--port", "--listen"];

/// Refuses options of truepeer behind the program, unless `--` stands before it or the option also stands
/// there; and a whole command line in one word.
pub(crate) fn behind_the_program(argv: &[OsString], program: &[OsString]) -> Result<(), UsageError> {
    let before = &argv[..argv.len().saturating_sub(program.len())];
    let shown = |words: &[OsString]| {
        words.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
    };
    if let Some(text) = line_in_one_word(program) {
        let before = shown(before.strip_suffix(&["--".into()]).unwrap_or(before));
        return Err(UsageError::Options(format!(
            "{text:?}: one word, so the name of one program; type without quotes: {before} -- {text}"
        )));
    }
    if before.last().is_some_and(|word| word == "--") {
        let option = program.first().and_then(|word| word.to_str()).unwrap_or_default();
        return match OURS.contains(&option.split('=').next().unwrap_or_default()) {
            true => {
                let text = format!("{option}: expected a program behind --; options come before --");
                Err(UsageError::Options(text))
            }
            false => Ok(()),
        };
    }
    let name = |word: &OsString| word.to_str().map(|word| word.split('=').next().unwrap_or(word).to_owned());
    let given: Vec<String> = before.iter().filter_map(name).collect();
    let is_ours =
        |word: &OsString| name(word).filter(|name| OURS.contains(&name.as_str()) && !given.contains(name));
    let Some((place, option)) =
        program.iter().enumerate().find_map(|(place, word)| Some((place, is_ours(word)?)))
    else {
        return Ok(());
    };
    // And the options right behind it.
    let mut end = place;
    while let Some(word) = program.get(end).and_then(|word| word.to_str())
        && (is_ours(&program[end]).is_some() || OFTEN.contains(&word.split('=').next().unwrap_or(word)))
    {
        end += if word.contains('=') { 1 } else { 2 };
    }
    let end = end.min(program.len());
    let rest = [&program[..place], &program[end..]].concat();
    let (before, options) = (shown(before), shown(&program[place..end]));
    let instead = format!("{option}: expected before the program; type: {before} {options} --");
    Err(UsageError::Options(match line_in_one_word(&rest) {
        Some(line) => format!("{instead} {line} (without quotes)"),
        None => format!(
            "{instead} {} (if it is the program's own option: {before} -- {})",
            shown(&rest),
            shown(program)
        ),
    }))
}

/// A whole command line in quotes.
fn line_in_one_word(program: &[OsString]) -> Option<&str> {
    let [line] = program else { return None };
    line.to_str().filter(|text| text.contains(' ') && !Path::new(line).exists())
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
