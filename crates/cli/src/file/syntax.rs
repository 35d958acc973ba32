//! Text that is not TOML: what to type instead of such a line.

use toml::de::Error;

use super::document::TABLES;
use super::entry::{ENTRIES, grammar};
use super::finding::{Finding, Findings};
use super::keys::{self, assigned, quoted};
use super::table::elements;
use crate::guess;
use truepeer_config::spec::ProcessTable;

const IS_TOML: &str =
    "the file is TOML: [[proxy]] in a line of its own, and below it KEY = VALUE, such as listen = \":8443\"";
const ONE_A_LINE: &str = "write each key in a line of its own";

/// Adds the errors, one for each line. Returns whether the rest of the text can be read nevertheless.
pub(super) fn add(errors: &[Error], findings: &mut Findings) -> bool {
    let mut errors: Vec<_> = errors
        .iter()
        .map(|error| (error.span().unwrap_or_default(), error.message().replace('\n', "; ")))
        .collect();
    errors.sort_by_key(|(span, _)| span.start);
    let (mut last, mut is_readable, mut second) = (None, true, None);
    for (span, message) in errors {
        let line = findings.line(&span);
        let line =
            [" #", " ;", " //"].iter().fold(line, |line, start| line.split(start).next().unwrap_or(line));
        let line = line.trim().to_owned();
        let before = findings.before_in_line(&span);
        let is_open = message.contains("between array elements") && before.trim().is_empty();
        let help = match message.as_str() {
            "duplicate key" if TABLES.contains(&findings.typed(&span).as_str()) => {
                let name = second.insert(findings.typed(&span));
                Some(format!("leave this line out, and write the keys of [{name}] below the first one"))
            }
            "duplicate key" => Some(twice(&findings.typed(&span), findings.table_of(&span).into_iter())),
            // The ] is missing above.
            _ if is_open => findings.last_above(&span).and_then(|above| instead(&findings.typed(&above))),
            _ if line.starts_with("- ") && !line.contains(": ") => {
                Some("leave this line out: the list above has it".to_owned())
            }
            _ => of_yaml(&line, findings.below(&span)).or_else(|| instead(&line)),
        };
        let help = match &second {
            Some(name) if message == "duplicate key" && !line.starts_with('[') => {
                help.map(|help| format!("leave this line out, and below the first [{name}] {help}"))
            }
            _ => help,
        };
        if help.is_some() && last == Some((line.clone(), help.clone())) {
            continue;
        }
        let span = if is_open { findings.last_above(&span).unwrap_or(span) } else { span };
        let finding = Finding::error(span, message);
        findings.add(match &help {
            Some(help) => finding.help(help),
            None => finding,
        });
        is_readable &= !line.starts_with('[');
        // The errors after this one follow from it: their lines may be right.
        if is_open || help.as_deref() == Some(IS_TOML) {
            return false;
        }
        last = Some((line, help));
    }
    is_readable
}

/// A key or a table that is there already. `table`: the lines of the key's table.
fn twice<'a>(name: &str, table: impl Iterator<Item = &'a str>) -> String {
    let is_list = |entry: &&&str| {
        let grammar = grammar(entry);
        grammar.key(name).is_some_and(|arg| matches!(arg.get_action(), clap::ArgAction::Append))
    };
    let of_line = |line: &'a str| {
        let (key, value) = line.split_once('=')?;
        let value = value.split(" #").next().unwrap_or(value);
        (key.trim() == name).then(|| repaired(value)).flatten()
    };
    let values: Vec<String> = table.filter_map(of_line).flat_map(|value| elements(&value)).collect();
    match ENTRIES.iter().find(is_list) {
        Some(_) => format!("type {}", assigned(name, &values)),
        None => format!("leave one `{name}` out; a further listener is a [[proxy]] of its own"),
    }
}

/// A line of YAML that has no value of its own.
fn of_yaml<'a>(line: &str, below: impl Iterator<Item = &'a str>) -> Option<String> {
    let name = line.strip_prefix("- ").unwrap_or(line).strip_suffix(':')?.trim();
    if let Some(entry) = ENTRIES.iter().find(|entry| **entry == name) {
        return Some(format!("type [[{entry}]]"));
    }
    if TABLES.contains(&name) {
        return Some(format!("type [{name}]"));
    }
    let items = below.map_while(|line| line.trim().strip_prefix("- ")).map(|item| word(item.trim()));
    let items: Vec<String> = items.collect();
    (is_key(name) && !items.is_empty()).then(|| format!("type {}", assigned(name, &items)))
}

fn instead(line: &str) -> Option<String> {
    if let Some(header) = line.strip_prefix('[') {
        let name = header.trim_start_matches('[').split([']', ' ']).next().unwrap_or_default();
        let header = if ENTRIES.contains(&name) { format!("[[{name}]]") } else { format!("[{name}]") };
        return Some(format!("type {header}, in a line of its own"));
    }
    if ["//", ";", "/*", "<!--", "'"].iter().any(|start| line.starts_with(start)) {
        return Some("a comment begins with #".to_owned());
    }
    let line = line.strip_prefix("- ").unwrap_or(line).trim_start_matches('-');
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_')).unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    let lower = key.to_lowercase();
    let key = if is_key(&lower) { &lower } else { key };
    let rest = rest.trim_start();
    let is_yaml = rest.starts_with(": ") || rest.starts_with(":\"");
    let value =
        if is_yaml || rest.starts_with('=') { rest[1..].trim_start_matches(['=', '>']).trim() } else { rest };
    if let Some(instead) = guess::key("top", key, None).filter(|_| !is_key(key)) {
        return Some(instead);
    }
    if key.is_empty() || !(is_key(key) || rest.starts_with('=')) {
        return Some(IS_TOML.to_owned());
    }
    if let Some(renamed) = guess::key("proxy", key, Some(value)).filter(|_| !is_key(key)) {
        return Some(renamed);
    }
    repaired(value).map(|value| if value == ONE_A_LINE { value } else { format!("type {key} = {value}") })
}

fn is_key(key: &str) -> bool {
    ENTRIES.iter().any(|entry| grammar(entry).key(key).is_some())
        || keys::of_table::<ProcessTable>().key(key).is_some()
        || ["level", "format"].contains(&key)
}

/// A value as TOML has it.
fn repaired(value: &str) -> Option<String> {
    let value = value.trim_end_matches([';', ',']).trim();
    if value.is_empty() || value.contains(['{', '}']) {
        return None;
    }
    let is_quoted = value.contains(['"', '\'', '“', '”']);
    let is_list = value.starts_with(['[', '(']) || value.contains(',') || (value.contains(' ') && !is_quoted);
    if !is_list {
        return Some(if value.matches('"').count() > 2 { ONE_A_LINE.to_owned() } else { word(value) });
    }
    let inner = value.trim_matches(['[', ']', '(', ')']);
    let words = inner.split([',', ' ']).map(str::trim).filter(|part| !part.is_empty()).map(word);
    Some(format!("[{}]", words.collect::<Vec<_>>().join(", ")))
}

fn word(text: &str) -> String {
    let bare = text.trim_matches(|c| "\"'`“”„‘’".contains(c));
    match bare.to_lowercase().as_str() {
        "true" | "yes" => "true".to_owned(),
        "false" | "no" => "false".to_owned(),
        _ if bare.parse::<u64>().is_ok() && bare == text => text.to_owned(),
        _ => quoted(bare),
    }
}

#[cfg(test)]
mod tests {
    use super::instead;

    #[test]
    fn lines_that_are_not_toml_are_written_anew() {
        for (line, expected) in [
            ("listen = :8443", "type listen = \":8443\""),
            ("listen = \":8443", "type listen = \":8443\""),
            ("listen = “:8443”", "type listen = \":8443\""),
            ("listen = \":8443\";", "type listen = \":8443\""),
            ("idle-timeout = 5m", "type idle-timeout = \"5m\""),
            ("splice = off", "type splice = \"off\""),
            ("pseudo-ipv4 = yes", "type pseudo-ipv4 = true"),
            ("allow = [10.0.0.7, 10.0.0.8]", "type allow = [\"10.0.0.7\", \"10.0.0.8\"]"),
            ("allow = \"10.0.0.7\", \"10.0.0.8\"", "type allow = [\"10.0.0.7\", \"10.0.0.8\"]"),
            ("allow = [\"10.0.0.7\"", "type allow = [\"10.0.0.7\"]"),
            ("port = [80 443]", "type port = [80, 443]"),
            ("listen: \":8443\"", "type listen = \":8443\""),
            ("- ipv4: 127.0.0.1:443", "type ipv4 = \"127.0.0.1:443\""),
            ("listen 127.0.0.1:8443;", "type listen = \"127.0.0.1:8443\""),
            ("--listen :8443", "type listen = \":8443\""),
            ("listen = \":1\" ipv4 = \"127.0.0.1:1\"", "write each key in a line of its own"),
            ("[[proxy]", "type [[proxy]], in a line of its own"),
            ("[log] level = \"info\"", "type [log], in a line of its own"),
            ("// the load balancer", "a comment begins with #"),
        ] {
            assert_eq!(instead(line).as_deref(), Some(expected), "{line}");
        }
        for line in
            ["proxy {", "proxy:", "{", "\"listen\": \":1\"", "frontend web", "<VirtualHost *:443>", "}"]
        {
            assert!(instead(line).is_some_and(|help| help.starts_with("the file is TOML")), "{line}");
        }
    }
}
