//! Variables of the environment that look like options. truepeer reads none.

use super::named::{has, is_called};
use super::words::find;

/// How such a variable begins.
pub(crate) const PREFIX: &str = "TRUEPEER_";

/// A message for each variable, such as `TRUEPEER_ALLOW`, whose option the command line doesn't have. It says
/// what to type.
pub(crate) fn unread(words: &[String], variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let all = crate::command();
    let name = words.get(1).map(String::as_str).unwrap_or_default();
    let Some(command) = all.find_subcommand(name) else { return Vec::new() };
    let instead = |(variable, value): (String, String)| {
        let option = variable.strip_prefix(PREFIX)?.to_lowercase().replace('_', "-");
        let typed = format!("--{option}");
        let instead = match option.as_str() {
            "log" | "log-level" => find(name, &["--log-level"]).map(|(_, instead)| instead),
            _ => has(command, &typed).then(|| format!("{typed} {value}")),
        };
        let arg = command.get_arguments().find(|arg| is_called(arg, &typed));
        let is_given = |word: &String| {
            arg.is_some_and(|arg| word.split('=').next().is_some_and(|word| is_called(arg, word)))
        };
        let instead = instead.filter(|_| !words.iter().any(is_given))?;
        Some(format!("{variable}: truepeer reads no option from the environment; type: {instead}"))
    };
    variables.filter_map(instead).collect()
}

#[cfg(test)]
mod tests {
    use super::unread;

    fn said(line: &str, variable: &str, value: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        unread(&words, [(variable.to_owned(), value.to_owned())].into_iter()).join("\n")
    }

    #[test]
    fn a_variable_that_looks_like_an_option_is_answered_with_the_option() {
        let text = said("truepeer attach --port 443", "TRUEPEER_ALLOW", "10.0.0.7");
        assert!(text.ends_with("type: --allow 10.0.0.7"), "{text}");
        let text = said("truepeer serve", "TRUEPEER_CONFIG", "./a.toml");
        assert!(text.ends_with("type: --config ./a.toml"), "{text}");
        let text = said("truepeer proxy", "TRUEPEER_LOG", "debug");
        assert!(text.ends_with("type: -v 2"), "{text}");
    }

    #[test]
    fn other_variables_and_options_that_are_given_are_fine() {
        for (line, variable) in [
            ("truepeer attach --port 443", "TRUEPEER_RUN"),
            ("truepeer attach --port 443 --allow 10.0.0.7", "TRUEPEER_ALLOW"),
            ("truepeer attach --port 443 --allow=10.0.0.7", "TRUEPEER_ALLOW"),
            ("truepeer attach --port 443", "ALLOW"),
            ("truepeer check -c a.toml", "TRUEPEER_CONFIG"),
            ("truepeer", "TRUEPEER_ALLOW"),
        ] {
            assert_eq!(said(line, variable, "10.0.0.8"), "", "{line} {variable}");
        }
    }
}
