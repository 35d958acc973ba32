//! The words of other programs, each with what to type instead: `words.txt`.

use std::iter::from_fn;

use truepeer_policy::PrefixSet;

use super::behind::quoted;

/// Words behind some commands.
pub(super) struct Other<'a> {
    commands: &'a str,
    typed: &'a str,
    instead: &'a str,
}

/// The rows of `words.txt`.
pub(super) fn others() -> impl Iterator<Item = Other<'static>> {
    let lines: Vec<&str> = include_str!("words.txt").lines().filter(|line| !line.starts_with('#')).collect();
    let mut place = 0;
    from_fn(move || {
        let (commands, typed) = loop {
            let line = lines.get(place)?;
            place += 1;
            if let Some((commands, typed)) = line.split_once(": ").filter(|_| !line.starts_with(' ')) {
                break (commands, typed);
            }
        };
        let instead = lines[place..].iter().find_map(|line| line.strip_prefix("  "))?;
        Some(Other { commands, typed, instead })
    })
}

/// The first word of another program behind the command, and what to type instead.
pub(super) fn find<'a>(command: &str, rest: &[&'a str]) -> Option<(&'a str, String)> {
    others().filter(|other| has(other.commands, command)).find_map(|other| other.find(rest))
}

/// The same by a part of one word: `--lb-address` is answered as `--lb`.
pub(super) fn find_by_part(command: &str, typed: &str, next: Option<&str>) -> Option<String> {
    let (name, value) = typed.split_once('=').map_or((typed, next), |(name, value)| (name, Some(value)));
    let value = value.unwrap_or("-");
    parts(name).find_map(|part| Some(find(command, &[part.as_str(), value])?.1))
}

/// The words that an option consists of, as options.
fn parts(typed: &str) -> impl Iterator<Item = String> {
    let parts = typed.trim_start_matches('-').split(['-', '_']).filter(|part| part.len() > 1);
    parts.map(|part| format!("--{}", part.to_lowercase()))
}

/// The help for a key that other programs have. `table` has the name of the command with the same options.
pub(crate) fn key(table: &str, key: &str, value: Option<&str>) -> Option<String> {
    let typed = format!("--{}", kebab(key.trim_start_matches('-')));
    // Lists have the name of what they list.
    let one = typed.strip_suffix('s').unwrap_or(&typed).to_owned();
    let names = [typed.clone(), one].into_iter().chain(parts(&typed));
    let row = |name: &str| others().find(|other| has(other.commands, table) && has(other.typed, name));
    let other = names.collect::<Vec<_>>().iter().find_map(|name| row(name))?;
    let is_line =
        ["truepeer ", "systemctl ", "kubectl "].iter().any(|start| other.instead.starts_with(start));
    if other.instead.contains("LINE") || other.instead.contains("=OPTIONS") {
        return Some("leave it out: a unit of systemd has it".to_owned());
    }
    let instead = other.with(value, !is_line).replace(" --allow PREFIX", "");
    Some(match instead.strip_prefix("nothing: ") {
        Some(why) => why.to_owned(),
        None if is_line => format!("type {instead}"),
        None => format!("type {}", crate::in_keys::in_keys(&instead)),
    })
}

/// `localPort`, `local_port` as `local-port`.
pub(crate) fn kebab(name: &str) -> String {
    let (mut out, mut was_lower) = (String::new(), false);
    for c in name.chars() {
        if was_lower && c.is_uppercase() {
            out.push('-');
        }
        was_lower = c.is_lowercase();
        out.extend(c.to_lowercase());
    }
    out.replace('_', "-")
}

/// A message: the word that was typed, what is wrong with it, and what to type.
pub(super) fn saying(typed: &str, expected: &str, instead: &str) -> String {
    match instead.strip_prefix("nothing: ") {
        Some(why) => format!("{typed}: {expected}: {why}"),
        None => format!("{typed}: {expected}; type: {instead}"),
    }
}

fn has(list: &str, word: &str) -> bool {
    list.split(' ').any(|one| one == word)
}

impl Other<'_> {
    fn find<'a>(&self, rest: &[&'a str]) -> Option<(&'a str, String)> {
        for (place, &word) in rest.iter().enumerate().take_while(|(_, word)| **word != "--") {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if has(self.typed, &name.replace('_', "-")) && (name.starts_with('-') || place == 0) {
                let next = rest.get(place + 1).filter(|next| !next.starts_with('-')).copied();
                return Some((word, self.with(value.or(next), false)));
            }
        }
        None
    }

    /// `in_brackets`: the value as `<VALUE>`, for [`in_keys`](crate::in_keys::in_keys).
    fn with(&self, value: Option<&str>, in_brackets: bool) -> String {
        let Some((before, rest)) = self.instead.split_once('{') else { return self.instead.to_owned() };
        let (usual, after) = rest.split_once('}').unwrap_or((rest, ""));
        // `-l :443` names the port, and `--port 8443` a listener.
        let bare = value.map(|value| value.strip_prefix(':').unwrap_or(value));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = match (usual.strip_prefix(':'), bare) {
            (Some(_), Some(port)) if is_number(port) => format!(":{port}"),
            (Some(_), _) => value.unwrap_or(usual).to_owned(),
            // `kill 42`: no client.
            (None, Some(bare)) if is_prefix(usual) && !bare.contains(['.', ':']) => usual.to_owned(),
            // `config show`: no file.
            (None, Some(bare)) if usual.starts_with('/') && !bare.contains(['/', '.']) => usual.to_owned(),
            // `--until tomorrow`: no time.
            (None, Some(bare))
                if super::is_time(usual) && !bare.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                usual.to_owned()
            }
            (None, _) => bare.unwrap_or(usual).to_owned(),
        };
        let before = if value.starts_with('[') && before == "-4 " { "-6 " } else { before };
        let (before, value) = match before.strip_suffix("http://") {
            Some(before) if value.contains("://") => (before, value),
            Some(before) => (before, format!("http://{value}")),
            None => (before, value),
        };
        let value = if in_brackets && before.ends_with(' ') { format!("<{value}>") } else { quoted(&value) };
        format!("{before}{value}{after}")
    }
}

fn is_prefix(text: &str) -> bool {
    text.parse::<PrefixSet>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::others;

    #[test]
    fn no_word_of_another_program_is_an_option_of_the_command() {
        let all = crate::command();
        let mut words = 0;
        for other in others() {
            for command in other.commands.split(' ').filter_map(|name| all.find_subcommand(name)) {
                for typed in other.typed.split(' ') {
                    let has = crate::guess::named::has(command, typed);
                    assert!(
                        !has && command.find_subcommand(typed).is_none(),
                        "{}: {typed}",
                        command.get_name()
                    );
                    words += 1;
                }
            }
        }
        assert!(words > 300, "{words}");
    }

    /// Also behind the commands of a command (`attach detach --now`).
    #[test]
    fn no_option_of_any_command_is_taken_for_a_word_of_another_program() {
        fn all_of(command: &clap::Command, path: &[String], lines: &mut Vec<Vec<String>>) {
            for arg in command.get_arguments() {
                let names = [
                    arg.get_long().map(|name| format!("--{name}")),
                    arg.get_short().map(|n| format!("-{n}")),
                ];
                lines.extend(names.into_iter().flatten().map(|name| [path, &[name]].concat()));
            }
            for inner in command.get_subcommands() {
                all_of(inner, &[path, &[inner.get_name().to_owned()]].concat(), lines);
            }
        }
        let mut lines = Vec::new();
        all_of(&crate::command(), &["truepeer".to_owned()], &mut lines);
        for line in &lines {
            let argv: Vec<std::ffi::OsString> = line.iter().map(Into::into).collect();
            let refused = crate::guess::refuse(&argv, false).err().map(|error| error.to_string());
            let is_taken = refused.as_ref().is_some_and(|text| text.contains("not a word of"));
            assert!(!is_taken, "{line:?}: {refused:?}");
        }
        assert!(lines.len() > 200, "{}", lines.len());
    }
}
