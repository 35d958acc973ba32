//! The words behind a program that `run` and `connect` start.

use std::ffi::OsString;
use std::path::Path;

use super::UsageError;

/// Options that no usual program has: behind the program they would go to it, and truepeer would use its
/// defaults.
const OURS: &str = "--allow --allow-claims --deny-clients --header-timeout --header-wait \
    --header-max --require-tlv --sender --via --send-proxy";

/// Options that stand beside them, but that programs have, too.
const OFTEN: [&str; 3] = ["--header", "--port", "--listen"];

/// Refuses options of truepeer behind the program, unless `--` stands before it or the option also stands
/// there; and a whole command line in one word.
pub(crate) fn behind_the_program(argv: &[OsString], program: &[OsString]) -> Result<(), UsageError> {
    let before = &argv[..argv.len().saturating_sub(program.len())];
    if let Some(text) = line_in_one_word(program) {
        let before = shown(before.strip_suffix(&["--".into()]).unwrap_or(before));
        return Err(UsageError::Options(format!(
            "{text:?}: one word, so the name of one program; type without quotes: {before} -- {text}"
        )));
    }
    if let Some(said) = no_program(before, program) {
        return Err(UsageError::Options(said));
    }
    let is_behind = before.last().is_some_and(|word| word == "--");
    if is_behind && !program.first().is_some_and(is_ours) {
        return Ok(());
    }
    let given: Vec<&str> = before.iter().filter_map(name_of).collect();
    let misplaced = |word| name_of(word).filter(|name| is_ours(word) && !given.contains(name));
    let Some((place, option)) =
        program.iter().enumerate().find_map(|(place, word)| Some((place, misplaced(word)?)))
    else {
        return Ok(());
    };
    // And the options right behind it.
    let mut end = place;
    while let Some(word) = program.get(end)
        && (misplaced(word).is_some() || name_of(word).is_some_and(|name| OFTEN.contains(&name)))
    {
        end += if word.to_string_lossy().contains('=') { 1 } else { 2 };
    }
    let end = end.min(program.len());
    let own = program[end..].strip_prefix(&["--".into()]).unwrap_or(&program[end..]);
    let rest = [&program[..place], own].concat();
    let (before, options) =
        (shown(before.strip_suffix(&["--".into()]).unwrap_or(before)), shown(&program[place..end]));
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

fn name_of(word: &OsString) -> Option<&str> {
    word.to_str()?.split('=').next()
}

fn is_ours(word: &OsString) -> bool {
    name_of(word).is_some_and(|name| OURS.split(' ').any(|own| own == name))
}

/// Words that a shell carries out itself.
const OF_SHELLS: [&str; 9] = ["cd", "source", ".", "export", "ulimit", "exec", "eval", "umask", "alias"];
/// Programs that ask another one, which truepeer has not started, to start the server.
const MANAGERS: [&str; 5] = ["systemctl", "service", "docker", "docker-compose", "podman"];

/// What to type where the first word is no program that would be covered.
fn no_program(before: &[OsString], program: &[OsString]) -> Option<String> {
    let line = shown(before.strip_suffix(&["--".into()]).unwrap_or(before));
    let (first, rest) = program.strip_prefix(&["sudo".into()]).unwrap_or(program).split_first()?;
    let first = first.to_str()?;
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if first.split_once('=').is_some_and(|(name, _)| is_name(name)) {
        let rest = shown(rest);
        return Some(format!("{first}: a variable, and no program; type: {first} {line} -- {rest}"));
    }
    let start: Vec<&OsString> = rest.iter().take_while(|word| *word != "&&" && *word != ";").collect();
    if OF_SHELLS.contains(&first) {
        let (word, server) = match rest.get(start.len() + 1..) {
            Some(server) => (shown(&rest[..start.len()]), shown(server)),
            None => (shown(rest), "PROGRAM".to_owned()),
        };
        return Some(format!(
            "{first}: a word of the shell, and no program; type: {first} {word} && {line} -- {server}"
        ));
    }
    if !MANAGERS.contains(&first) || before.get(1).is_none_or(|way| way != "run") {
        return None;
    }
    let told = |word: &str| rest.iter().position(|one| one == word).and_then(|place| rest.get(place + 1));
    let allow = told_behind(before, "--allow").map_or_else(|| "PREFIX".to_owned(), quoted);
    let name = ["start", "restart", "reload"].iter().find_map(|word| told(word));
    let name = name.or(rest.first().filter(|_| first == "service"));
    let name = name.and_then(|name| name.to_str()).map(|name| quoted(name.trim_end_matches(".service")));
    let named = if ["systemctl", "service"].contains(&first) { "--unit" } else { "--container" };
    Some(format!(
        "{first}: has another process start the server, which truepeer can't cover so; type, once it runs: \
         truepeer attach {named} {} --port 443 --allow {allow}",
        name.unwrap_or_else(|| "NAME".to_owned())
    ))
}

pub(super) fn told_behind<'a>(words: &'a [OsString], option: &str) -> Option<&'a str> {
    words.get(words.iter().position(|word| word == option)? + 1)?.to_str()
}

fn shown(words: &[OsString]) -> String {
    words.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A whole command line in quotes.
fn line_in_one_word(program: &[OsString]) -> Option<&str> {
    let [line] = program else { return None };
    line.to_str().filter(|text| text.contains(' ') && !Path::new(line).exists())
}

/// The words of a line in which [`quoted`] has quoted.
pub(super) fn unquoted(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_inside) = (Vec::new(), None::<String>, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => is_inside = !is_inside,
            ' ' if !is_inside => words.extend(word.take()),
            '\\' if !is_inside => word.get_or_insert_default().extend(chars.next()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
