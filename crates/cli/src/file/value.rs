//! A value of the file as the words that its option takes.

use std::any::TypeId;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::{Arg, ArgAction, Command};
use toml::Spanned;
use toml::de::{DeInteger, DeValue};

use super::finding::{Finding, Span};
use super::keys::{self, assigned, text_of};
use crate::guess::{any_value, meant, takes};
use truepeer_config::spec::{AdminAddr, Deny, PrefixesOrFile, RequiredTlv, SecretTlv};

/// A word and its place; `None`: a switch that is on.
pub(super) type Word = (Span, Option<String>);

/// The words of `key = value`.
///
/// # Errors
/// The option takes values of another type.
pub(super) fn words(arg: &Arg, value: &Spanned<DeValue<'_>>, dir: &Path) -> Result<Vec<Word>, Finding> {
    let span = value.span();
    if !arg.get_action().takes_values() {
        return match value.get_ref() {
            DeValue::Boolean(is_on) => Ok(is_on.then_some((span, None)).into_iter().collect()),
            other => {
                let text = format!("`{}`: expected true or false", key(arg));
                let word = text_of(other).unwrap_or_default().to_lowercase();
                let is_on = !["false", "no", "off", "none", "never", "0"].contains(&word.as_str());
                Err(Finding::error(span, text).help(format!("type {} = {is_on}", key(arg))))
            }
        };
    }
    match (value.get_ref(), arg.get_action()) {
        (DeValue::Array(values), ArgAction::Append) => {
            values.iter().map(|value| word(arg, value, dir)).collect()
        }
        (DeValue::Array(values), _) => {
            let text = format!("`{}`: expected one value, without brackets", key(arg));
            let texts: Vec<&str> = values.iter().filter_map(|value| text_of(value.get_ref())).collect();
            let one = one_of(arg, &texts.join(",")).or_else(|| texts.first().map(|&first| first.to_owned()));
            let finding = Finding::error(span, text);
            Err(match one {
                Some(one) => finding.help(format!("type {} = {}", key(arg), written(arg, &one))),
                None => finding,
            })
        }
        // `{ "10.0.0.7" = "optional" }`
        (DeValue::Table(table), ArgAction::Append) if arg.get_value_names().is_some_and(takes_pairs) => {
            let pairs = table.iter().filter_map(|(key, value)| {
                let pair = format!("{}={}", key.get_ref(), text_of(value.get_ref())?);
                let other = || one_of(arg, &pair);
                Some(keys::quoted(&is_taken(arg, &pair).then(|| pair.clone()).or_else(other).unwrap_or(pair)))
            });
            let list = pairs.collect::<Vec<_>>().join(", ");
            let text = format!("`{}`: {}; got a table", key(arg), expected(arg));
            Err(Finding::error(span, text).help(format!("type {} = [{list}]", key(arg))))
        }
        _ => Ok(vec![word(arg, value, dir)?]),
    }
}

fn word(arg: &Arg, value: &Spanned<DeValue<'_>>, dir: &Path) -> Result<Word, Finding> {
    let span = value.span();
    let wrong = |expected: &str| Finding::error(span.clone(), format!("`{}`: {expected}", key(arg)));
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if !takes_names(arg) => {
            decimal(number).ok_or_else(|| wrong("expected a smaller number"))?
        }
        DeValue::Integer(number) => {
            return Err(or_else(wrong("expected a string, in quotes; got a number"), arg, number.as_str()));
        }
        DeValue::Float(number) if number.as_str().is_empty() => {
            return Err(wrong("expected a string, in quotes"));
        }
        DeValue::Float(number) => {
            let number = number.as_str();
            return Err(wrong(&format!("expected a string or a whole number; type: \"{number}\"")));
        }
        DeValue::Boolean(is_on) => {
            let finding = wrong(&format!("{}; got true or false", expected(arg)));
            let typed = if *is_on { "true" } else { "false" };
            let meant = one_of(arg, typed).filter(|_| !takes_names(arg));
            return Err(match meant.or_else(|| any_value(&alone(arg), key(arg)).filter(|_| *is_on)) {
                Some(usual) => finding.help(format!("type {} = {}", key(arg), written(arg, &usual))),
                None if *is_on => finding,
                None => finding.help("leave it out"),
            });
        }
        DeValue::Datetime(_) => return Err(wrong("expected a string, in quotes; got a date")),
        DeValue::Array(_) => return Err(wrong("expected a list of strings; got a list in a list")),
        // `{ lb1 = "10.0.0.7", lb2 = "10.0.0.8" }`
        DeValue::Table(table)
            if matches!(arg.get_action(), ArgAction::Append)
                && table
                    .values()
                    .all(|value| text_of(value.get_ref()).is_some_and(|text| is_taken(arg, text))) =>
        {
            let texts = table.values().filter_map(|value| text_of(value.get_ref()).map(keys::quoted));
            let list = assigned(key(arg), &texts.collect::<Vec<_>>());
            return Err(wrong(&format!("{}; got a table", expected(arg))).help(format!("type {list}")));
        }
        DeValue::Table(table) => {
            let finding = wrong(&format!("{}; got a table", expected(arg)));
            // `{ host = "127.0.0.1", port = 443 }`
            let texts: Vec<_> = table.values().filter_map(|value| text_of(value.get_ref())).collect();
            return Err(match texts.is_empty() {
                true => finding,
                false => {
                    let joined = texts.join(":");
                    let word = one_of(arg, &joined).filter(|_| !is_taken(arg, &joined)).unwrap_or(joined);
                    finding.help(format!("type {} = {}", key(arg), written(arg, &word)))
                }
            });
        }
    };
    if text.contains('\0') {
        return Err(wrong("expected no NUL character"));
    }
    Ok((span, Some(absolute(arg, text, dir))))
}

/// A command of this option alone, without those that it excludes or needs: clap asserts that these exist.
fn alone(arg: &Arg) -> Command {
    Command::new("entry").arg(arg.clone().conflicts_with(Resettable::Reset).requires(Resettable::Reset))
}

/// A value in another notation, as the option takes it.
fn one_of(arg: &Arg, typed: &str) -> Option<String> {
    meant(&alone(arg), key(arg), typed)?.into_iter().next()
}

fn is_taken(arg: &Arg, typed: &str) -> bool {
    takes(&alone(arg), key(arg), typed)
}

/// With `type listen = "127.0.0.1:9144"`, if the value has another notation.
fn or_else(finding: Finding, arg: &Arg, typed: &str) -> Finding {
    match one_of(arg, typed) {
        Some(word) => finding.help(format!("type {} = {}", key(arg), written(arg, &word))),
        None => finding,
    }
}

/// `[PREFIX=]RULE`
fn takes_pairs(names: &[clap::builder::Str]) -> bool {
    names.iter().any(|name| name.contains("=]"))
}

/// A word whose path, if it is one, does not depend on the working directory.
pub(super) fn absolute(arg: &Arg, text: String, dir: &Path) -> String {
    if is_path(arg, &text) {
        return below(dir, text);
    }
    let is_admin = arg.get_value_parser().type_id() == TypeId::of::<AdminAddr>();
    if let Some(path) = text.strip_prefix("whois:").filter(|_| is_admin) {
        return format!("whois:{}", below(dir, path.to_owned()));
    }
    match text.split_once('@').filter(|_| has_file(arg)) {
        Some((head, file)) => format!("{head}@{}", below(dir, file.to_owned())),
        None => text,
    }
}

/// A word as it is written in the file.
pub(super) fn written(arg: &Arg, word: &str) -> String {
    let is_number = word.parse().is_ok_and(|number: i64| number.to_string() == word);
    if is_number && !takes_names(arg) { word.to_owned() } else { keys::quoted(word) }
}

/// `expected send-proxy = "v1|v2|spp"`.
fn expected(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.first().map_or("VALUE", |name| name.as_str());
    format!("expected {} = \"{value}\"", key(arg))
}

fn key(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_default()
}

/// Resolves a relative path from the file's directory: `./list` becomes `/etc/truepeer/list`. If the result is
/// not UTF-8, it can't be a word, and the path stays as it is.
fn below(dir: &Path, text: String) -> String {
    let path: PathBuf = dir.join(&text).components().collect();
    path.into_os_string().into_string().unwrap_or(text)
}

/// Names and paths, for which a number is surely a mistake.
fn takes_names(arg: &Arg) -> bool {
    let types = [
        TypeId::of::<String>(),
        TypeId::of::<PathBuf>(),
        TypeId::of::<PrefixesOrFile>(),
        TypeId::of::<Deny>(),
        TypeId::of::<AdminAddr>(),
    ];
    types.iter().any(|id| arg.get_value_parser().type_id() == *id)
}

/// `TYPE=@FILE`.
fn has_file(arg: &Arg) -> bool {
    let id = arg.get_value_parser().type_id();
    id == TypeId::of::<RequiredTlv>() || id == TypeId::of::<SecretTlv>()
}

/// Whether the option would take `text` for a path.
fn is_path(arg: &Arg, text: &str) -> bool {
    let id = arg.get_value_parser().type_id();
    if id == TypeId::of::<PathBuf>() {
        if arg.get_long() == Some("tls-cert") && text == "self" {
            return false;
        }
        // A name without a slash is a network namespace's, as in ip-netns(8), not a path.
        return arg.get_long() != Some("netns") || text.contains('/');
    }
    let is_file = |parsed: PrefixesOrFile| matches!(parsed, PrefixesOrFile::File(_));
    if id == TypeId::of::<PrefixesOrFile>() {
        return text.parse().is_ok_and(is_file);
    }
    if id == TypeId::of::<Deny>() {
        return text.parse().is_ok_and(|deny: Deny| is_file(deny.0));
    }
    id == TypeId::of::<AdminAddr>() && matches!(text.parse(), Ok(AdminAddr::Unix(_)))
}

fn decimal(number: &DeInteger<'_>) -> Option<String> {
    i128::from_str_radix(number.as_str(), number.radix()).ok().map(|number| number.to_string())
}
