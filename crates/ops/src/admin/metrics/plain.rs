//! The text format 0.0.4, which is older than OpenMetrics: for curl, promtool and collectors that don't ask
//! for OpenMetrics.
//!
//! It differs in a few lines: the name of a counter's family ends in `_total` as its samples do, there is no
//! type `info`, and no `# EOF`.

use std::fmt::Write as _;

/// The same metrics in the older format.
pub(super) fn of_openmetrics(text: &str) -> String {
    let mut plain = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        match line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            Some((name, help)) => {
                // The line of its type follows.
                let kind = lines.peek().and_then(|next| next.strip_prefix("# TYPE ")?.split_once(' '));
                let kind = kind.map_or("", |(_, kind)| kind);
                // Writing to a String can't fail.
                let _ = writeln!(plain, "# HELP {name}{} {help}", suffix(kind));
            }
            None => match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                Some((name, kind)) => {
                    let written = if kind == "info" { "gauge" } else { kind };
                    let _ = writeln!(plain, "# TYPE {name}{} {written}", suffix(kind));
                }
                None if line.starts_with('#') => {}
                None => {
                    let _ = writeln!(plain, "{line}");
                }
            },
        }
    }
    plain
}

/// What the names of a family's samples have behind the family's name.
fn suffix(kind: &str) -> &'static str {
    match kind {
        "counter" => "_total",
        "info" => "_info",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::of_openmetrics;

    #[test]
    fn families_have_the_names_of_their_samples() {
        let text = "\
# HELP truepeer_build The running program.
# TYPE truepeer_build info
truepeer_build_info{version=\"0.1.0\"} 1
# HELP truepeer_bytes Bytes.
# TYPE truepeer_bytes counter
truepeer_bytes_total{direction=\"up\"} 5
# HELP truepeer_wait_seconds Time.
# TYPE truepeer_wait_seconds histogram
truepeer_wait_seconds_sum 0.5
# EOF
";
        let plain = "\
# HELP truepeer_build_info The running program.
# TYPE truepeer_build_info gauge
truepeer_build_info{version=\"0.1.0\"} 1
# HELP truepeer_bytes_total Bytes.
# TYPE truepeer_bytes_total counter
truepeer_bytes_total{direction=\"up\"} 5
# HELP truepeer_wait_seconds Time.
# TYPE truepeer_wait_seconds histogram
truepeer_wait_seconds_sum 0.5
";
        assert_eq!(of_openmetrics(text), plain);
    }
}
