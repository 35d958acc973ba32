//! docs/options.md, generated from the commands' `--help`, and tests that compare both with the table.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command};

use clap_complete::Shell;

use super::{Invocation, command, completion, manual, parse};
use crate::table::{self, Commands, Default, OPTIONS};
use truepeer_config::plan::{Config, attach_rules, run_settings};

const COMMANDS: &[(&str, Commands)] = &[
    ("serve", table::SERVE),
    ("check", table::CHECK),
    ("reload", table::RELOAD),
    ("upgrade", table::UPGRADE),
    ("proxy", table::PROXY),
    ("https", table::HTTPS),
    ("attach", table::ATTACH),
    ("oci-hook", table::OCI_HOOK),
    ("run", table::RUN),
    ("connect", table::CONNECT),
    ("routes", table::ROUTES),
    ("doctor", table::DOCTOR),
    ("status", table::STATUS),
    ("sessions", table::SESSIONS),
    ("whois", table::WHOIS),
    ("top", table::TOP),
    ("probe", table::PROBE),
    ("ban", table::BAN),
    ("unban", table::UNBAN),
    ("bans", table::BANS),
    ("crowdsec", table::CROWDSEC),
    ("completion", table::COMPLETION),
    ("vpp", table::VPP),
];

const HEAD: &str = "\
# Options

Each option with its default in parentheses. This page is generated from the table that `--help` is made of (`TRUEPEER_WRITE=1 cargo test --workspace --lib reference`).

TIME is seconds (`5`), or has a unit (`500ms`, `5s`, `2m`, `1h`). SIZE is bytes (`4096`), or has a unit (`16KiB`, `100MiB`).
PREFIX is an address, a prefix (`10.0.0.0/8`, `2001:db8::/32`), or the word `loopback`, `private` or `any`.
In `truepeer.toml` a key is the name of a long option: [the configuration file](config.md).
`--compat PROGRAM` and the names of other programs: [drop-in](drop-in.md).
";

/// A row that an earlier command has is named only.
fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut explained: BTreeMap<[String; 3], &str> = BTreeMap::new();
    let mut all = command();
    all.build();
    for &(name, _) in COMMANDS {
        let command = all.find_subcommand(name).expect(name);
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n## truepeer {name}\n\n{about}.\n");
        let mut args: Vec<&Arg> = options(command);
        args.sort_by_key(|arg| table::find(which(name), &key(arg)).map(|(place, _)| place));
        // As `--help` does: a heading stands once, where its first option has it.
        let mut groups: Vec<(&str, String)> = Vec::new();
        let mut same: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for arg in args {
            let (_, row) =
                table::find(which(name), &key(arg)).unwrap_or_else(|| panic!("{name} {arg}: no row"));
            let default = row.default_text().map_or_else(String::new, |default| match row.default {
                Default::Value(_) => format!(" (`{default}`)"),
                _ => format!(" ({default})"),
            });
            let cells = [spelling(arg, row.value), default, row.help.to_owned()];
            if let Some(earlier) = explained.get(&cells) {
                same.entry(earlier).or_default().push(cells[0].clone());
                continue;
            }
            let place =
                groups.iter().position(|(heading, _)| *heading == row.heading()).unwrap_or_else(|| {
                    groups.push((row.heading(), String::new()));
                    groups.len() - 1
                });
            let _ = writeln!(groups[place].1, "- {}{}: {}", cells[0], cells[1], cells[2]);
            explained.insert(cells, name);
        }
        for (heading, options) in groups {
            let _ = write!(page, "\n### {heading}\n\n{options}");
        }
        for (earlier, options) in same {
            let _ = writeln!(page, "\nAs for [{earlier}](#truepeer-{earlier}): {}.", options.join(", "));
        }
    }
    page
}

fn which(name: &str) -> Commands {
    COMMANDS.iter().find(|(command, _)| *command == name).expect(name).1
}

/// The options of a command and its subcommands, without duplicates.
fn options(command: &Command) -> Vec<&Arg> {
    let mut args: Vec<&Arg> = command.get_arguments().collect();
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        args.extend(below.get_arguments());
    }
    args.retain(|arg| !matches!(arg.get_id().as_str(), "help" | "version"));
    args.sort_by_key(|arg| key(arg));
    args.dedup_by_key(|arg| key(arg));
    args
}

fn actions(name: &str) -> Vec<String> {
    let mut all = command();
    all.build();
    let below = all.find_subcommand(name).expect(name).get_subcommands();
    below.map(|action| action.get_name().to_owned()).filter(|action| action != "help").collect()
}

fn key(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().to_string(), str::to_owned)
}

fn spelling(arg: &Arg, value: &str) -> String {
    let dashes =
        [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let names: Vec<String> = dashes.into_iter().flatten().collect();
    match (names.is_empty(), value.is_empty() || !arg.get_action().takes_values()) {
        (true, _) => format!("`{value}`"),
        (false, true) => format!("`{}`", names.join("`, `")),
        (false, false) => format!("`{} {value}`", names.join("`, `")),
    }
}

#[test]
fn the_reference_is_what_help_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let page = page();
    if std::env::var_os("TRUEPEER_WRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written == page, "docs/options.md is old: TRUEPEER_WRITE=1 cargo test -p truepeer --lib cli");
}

#[test]
fn every_command_is_compared() {
    let visible = command();
    let visible = visible.get_subcommands().filter(|command| !command.is_hide_set());
    for name in visible.map(Command::get_name) {
        assert!(COMMANDS.iter().any(|(known, _)| *known == name), "{name} is not in COMMANDS");
    }
}

#[test]
fn each_option_has_its_row_and_each_row_its_option() {
    let mut all = command();
    all.build();
    for &(name, which) in COMMANDS {
        let options: Vec<String> =
            options(all.find_subcommand(name).expect(name)).iter().map(|arg| key(arg)).collect();
        for option in &options {
            assert!(table::find(which, option).is_some(), "{name} --{option} has no row");
            let rows = OPTIONS.iter().filter(|row| row.name == option && row.commands.include(which));
            assert_eq!(rows.count(), 1, "{name} --{option}");
        }
        for row in OPTIONS.iter().filter(|row| row.commands.include(which)) {
            assert!(options.iter().any(|option| option == row.name), "{name} has no --{}", row.name);
        }
    }
}

#[test]
fn help_shows_each_rows_words() {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for &(name, which) in COMMANDS {
        let help = squeeze(&error(&format!("truepeer {name} --help")));
        let below: String = actions(name)
            .iter()
            .map(|action| squeeze(&error(&format!("truepeer {name} {action} --help"))))
            .collect();
        for row in OPTIONS.iter().filter(|row| row.commands.include(which)) {
            let text = squeeze(&row.text());
            assert!(help.contains(&text) || below.contains(&text), "{name} --{}: {text}\n{help}", row.name);
        }
    }
}

#[test]
fn short_help_is_a_screenful() {
    for &(name, _) in COMMANDS {
        let help = error(&format!("truepeer {name} -h"));
        assert!(
            help.lines().count() <= 45 && help.contains("--help"),
            "{name}: {} lines",
            help.lines().count()
        );
        let long = error(&format!("truepeer {name} --help"));
        let options = long.find("\n      --").or_else(|| long.find("\n  -")).unwrap();
        let examples = long.find("Example").unwrap();
        assert!(examples < options, "{name}: examples come first");
    }
}

/// The headings of a command's `--help`, with their options.
fn headings(name: &str) -> Vec<(String, Vec<String>)> {
    let mut headings: Vec<(String, Vec<String>)> = Vec::new();
    for line in error(&format!("truepeer {name} --help")).lines() {
        let option = line.split("--").nth(1).map(|text| text.split([' ', '=']).next().unwrap_or_default());
        match (line.starts_with(|c: char| c.is_ascii_uppercase()), option) {
            (true, _) => headings.push((line.to_owned(), Vec::new())),
            (false, Some(option)) if line.trim_start().starts_with('-') => {
                headings.last_mut().unwrap().1.push(option.to_owned());
            }
            _ => {}
        }
    }
    headings
        .retain(|(heading, options)| heading != "Examples:" && !options.is_empty() && options != &["help"]);
    headings
}

#[test]
fn rare_options_are_at_the_end_of_the_help() {
    for name in ["proxy", "https", "attach", "run"] {
        let headings = headings(name);
        let (last, options) = headings.last().unwrap();
        assert_eq!(last, "Rarely needed:", "{name}: {headings:?}");
        assert!(options.iter().any(|option| option == "header-max"), "{name}: {options:?}");
        let others = headings.iter().filter(|(heading, _)| heading == last).count();
        assert_eq!(others, 1, "{name}: {headings:?}");
    }
    let proxy = headings("proxy");
    assert_eq!(proxy[0].0, "Listening:");
    let rare = proxy.last().unwrap().1.len();
    let all: usize = proxy.iter().map(|(_, options)| options.len()).sum();
    assert!(rare * 5 > all * 2 && rare * 5 < all * 3, "{rare} of {all} options are rare");
    assert!(OPTIONS.iter().all(|row| !(row.is_common && row.heading() == "Rarely needed")));
}

/// Writing a row's default has the same effect as leaving the option out.
#[test]
fn writing_a_default_changes_nothing() {
    for (name, which, usual) in [
        ("proxy", table::PROXY, ""),
        ("https", table::HTTPS, "--tls-cert c.pem --client-ca a.pem --origin http://127.0.0.1:1"),
        ("attach", table::ATTACH, "--port 1 --port 2/udp"),
        ("run", table::RUN, ""),
    ] {
        for row in OPTIONS.iter().filter(|row| row.commands.include(which)) {
            let Default::Value(default) = row.default else { continue };
            let needs = match row.name {
                "udp-dialect" if name == "proxy" => "-p udp",
                "tls-min" | "tls-timeout" | "drain-timeout" if name == "proxy" => "--tls-cert c.pem",
                "client-cert" if name == "proxy" => "--tls-cert c.pem --client-ca a.pem",
                _ => "",
            };
            let dashes = if row.name.len() == 1 { "-" } else { "--" };
            let end = if name == "run" { "-- true" } else { "" };
            let without = format!("truepeer {name} {usual} {needs} {end}");
            let with = format!("truepeer {name} {usual} {needs} {dashes}{} {} {end}", row.name, default());
            assert_eq!(meaning(&with), meaning(&without), "{with}");
        }
    }
}

fn meaning(line: &str) -> String {
    match invoke(line).unwrap_or_else(|error| panic!("{line}: {error}")) {
        Invocation::Proxy(config, _) => debug(&config),
        Invocation::Https(config, stack) => {
            debug(&config) + &format!("{:?}", stack.stack.unwrap_or_default())
        }
        Invocation::Attach(args) => {
            let place = (
                args.spec.place.pins.unwrap_or_else(|| truepeer_config::spec::defaults::pins().to_owned()),
                args.spec.dev,
            );
            let dev = if place.1.is_empty() { vec!["all".to_owned()] } else { place.1.clone() };
            format!("{:?}{:?}{dev:?}", attach_rules(&attach(line)).unwrap(), place.0)
        }
        Invocation::Run(args) => {
            format!("{:?}{:?}", run_settings(&args).unwrap(), args.how.via.unwrap_or_default())
        }
        other => panic!("{line}: {other:?}"),
    }
}

fn debug(config: &Config) -> String {
    format!("{config:?}")
}

fn attach(line: &str) -> truepeer_config::spec::AttachSpec {
    match invoke(line) {
        Ok(Invocation::Attach(args)) => args.spec,
        other => panic!("{line}: {other:?}"),
    }
}

fn invoke(line: &str) -> Result<Invocation, super::UsageError> {
    parse(line.split_whitespace().map(OsString::from))
}

fn error(line: &str) -> String {
    invoke(line).expect_err(line).to_string()
}

/// Each option is in the manual page and in the completions of every shell; a key is in truepeer.toml(5).
#[test]
fn every_option_is_in_the_manual_and_in_the_completions() {
    let pages = manual::pages();
    let find =
        |name: &str| &pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("{name}")).1;
    let shells = [Shell::Bash, Shell::Zsh, Shell::Fish].map(|shell| {
        let mut text = Vec::new();
        completion::write(shell, &mut text).unwrap();
        (shell, String::from_utf8(text).unwrap())
    });
    for &(name, which) in COMMANDS {
        // Actions have pages of their own.
        let of_command: String = pages
            .iter()
            .filter(|(file, _)| {
                *file == format!("truepeer-{name}.1") || file.starts_with(&format!("truepeer-{name}-"))
            })
            .map(|(_, page)| page.as_str())
            .collect();
        for row in OPTIONS.iter().filter(|row| row.commands.include(which)) {
            let is_word = is_positional(name, row.name);
            let in_roff = if is_word { row.value } else { row.name }.replace('-', "\\-");
            assert!(of_command.contains(&in_roff), "truepeer-{name}(1): {}", row.name);
            let mut words = row.help.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 3);
            assert!(
                is_word || words.all(|word| of_command.contains(word)),
                "truepeer-{name}(1): {}",
                row.help
            );
            if is_word || row.name.len() == 1 {
                continue;
            }
            for (shell, text) in &shells {
                let option = if *shell == Shell::Fish {
                    format!("-l {}", row.name)
                } else {
                    format!("--{}", row.name)
                };
                assert!(text.contains(&option), "{shell}: {name} {option}");
            }
        }
    }
    let keys = find("truepeer.toml.5");
    for row in OPTIONS {
        let is_key = [table::LOG_TABLE, table::ADMIN_TABLE, table::ACME_TABLE]
            .iter()
            .any(|one| row.commands.include(*one));
        if is_key {
            let name = row.name.replace('-', "\\-");
            assert!(keys.contains(&format!("\\fB{name}\\fR = ")), "{name}\n{keys}");
        }
    }
    assert!(keys.contains("\\fBallow\\-claims\\fR = ") && !keys.contains("\\fBprint\\-config\\fR"), "{keys}");
}

/// Title, section, date and version are four words: without a date, the version must not take its place.
#[test]
fn manual_pages_begin_with_their_title_and_have_no_empty_paragraphs() {
    for (file, page) in manual::pages() {
        let (name, section) = file.rsplit_once('.').unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let begin = format!(".TH {name} {section} \"");
        let first = page.lines().next().unwrap_or_default();
        assert!(
            first.starts_with(&begin) && first.ends_with(&format!("\" \"truepeer {version}\"")),
            "{file}: {first}"
        );
        let lines: Vec<_> = page.lines().collect();
        let doubled = lines.windows(2).find(|two| two[0].starts_with(".SH ") && two[1] == ".PP");
        assert!(doubled.is_none(), "{file}: {doubled:?}");
    }
}

fn is_positional(command: &str, option: &str) -> bool {
    let mut all = command_of(command);
    all.build();
    options(&all).iter().any(|arg| key(arg) == option && arg.get_long().is_none())
}

fn command_of(name: &str) -> Command {
    let mut all = command();
    all.build();
    all.find_subcommand(name).expect(name).clone()
}
