//! The commands in `truepeer --help`, by what they are for.

use clap::Command;

use super::dress::{width, wrapped};

const GROUPS: [(&str, &[&str]); 5] = [
    ("Ways to your server", &["attach", "run", "proxy", "https", "connect"]),
    ("The service", &["serve", "check", "reload", "upgrade"]),
    ("Looking", &["doctor", "status", "sessions", "whois", "top", "probe"]),
    ("Bans", &["ban", "unban", "bans", "crowdsec"]),
    ("More", &["routes", "vpp", "oci-hook", "completion"]),
];

const TEMPLATE: &str = "\
{about-with-newline}
{usage-heading} {usage}

{before-help}Options:
{options}{after-help}";

/// Lists the commands by group.
pub(super) fn group(command: Command) -> Command {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{title}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<10}   {about}\n"));
        }
        text.push('\n');
    }
    command.help_template(TEMPLATE).before_help(wrapped(text.trim_end(), width()))
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_command_stands_in_one_group() {
        let command = crate::command();
        let mut all: Vec<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name).collect();
        let mut grouped = super::GROUPS.map(|(_, names)| names).concat();
        assert_eq!(grouped.first(), Some(&"attach"));
        all.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(all, grouped);
        let help = command.clone().render_help().to_string();
        assert!(help.contains("\nThe service:\n  serve "), "{help}");
    }
}
