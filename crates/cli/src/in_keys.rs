//! Messages about options in the words of the file: `--allow PREFIX` becomes `allow = "PREFIX"`.

use std::fmt::Write as _;

/// `a, b or c`.
pub(crate) fn any_of(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [some @ .., last] => format!("{} or {last}", some.join(", ")),
    }
}

/// A string as it is written in the file.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// `key = value`, or a list of several.
pub(crate) fn assigned(key: &str, values: &[String]) -> String {
    match values {
        [one] => format!("{key} = {one}"),
        some => format!("{key} = [{}]", some.join(", ")),
    }
}

/// A message about options, in keys: `--allow PREFIX` becomes `allow = "PREFIX"`, `-4` becomes `ipv4`.
pub(crate) fn in_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, name, after)) = next_option(rest) {
        out.push_str(before);
        match value_after(after) {
            Some((value, behind)) => {
                let _ = write!(out, "{name} = {}", quoted(value));
                rest = behind;
            }
            None => {
                out.push_str(name);
                rest = after;
            }
        }
    }
    out + rest
}

/// The text before an option, its long name, and the text behind it.
fn next_option(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find('-')?;
        let is_start = text[..at].chars().next_back().is_none_or(|c| " (`;:,[".contains(c));
        let behind = &text[at..];
        if is_start {
            for (short, long) in [("-4", "ipv4"), ("-6", "ipv6")] {
                if let Some(after) = behind.strip_prefix(short)
                    && !after.starts_with(|c: char| c.is_ascii_alphanumeric())
                {
                    return Some((&text[..at], long, after));
                }
            }
            if let Some(name) = behind.strip_prefix("--")
                && name.starts_with(|c: char| c.is_ascii_lowercase())
            {
                let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(name.len());
                return Some((&text[..at], &name[..end], &name[end..]));
            }
        }
        from = at + 1;
    }
}

/// The value that follows an option: a placeholder, an address, a path, or a word in brackets `<…>`.
fn value_after(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix([' ', '='])?;
    if let Some(inner) = rest.strip_prefix('<') {
        return inner.split_once('>');
    }
    let word = rest.split(' ').next()?.trim_end_matches([',', ';', ':', ')', '`', '?']);
    let is_value = word
        .starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "[/.:".contains(c))
        || word.contains(['.', ':', '/', '='])
        || VALUES.split(' ').any(|value| value == word);
    is_value.then(|| (word, &rest[word.len()..]))
}

/// Words that are values where they follow an option.
const VALUES: &str = "any auto aws-nlb dnsdist edgeone ephemeral every first forbid frp haproxy loopback \
    manual nginx none optional playit private proxy refuse require self spectrum spp standalone tcp udp v1 \
    v2";
