//! Bar charts: one for each load, a bar for each contestant. Text and axis use the reader's colour scheme;
//! the bars' colours are readable on both.

use std::fmt::Write;

use super::page::heading;
use crate::args::Plan;
use crate::contestant::{TRUEPEER, is_baseline};
use crate::metric::Metric;
use crate::rounds::{Results, Spread};
use crate::suites::Load;

const WIDTH: f64 = 720.0;
/// The start of the bars, and the longest bar.
const LEFT: f64 = 230.0;
const LENGTH: f64 = 340.0;
const TOP: f64 = 64.0;
const ROW: f64 = 30.0;
const BAR: f64 = 18.0;

struct Bar<'a> {
    label: &'a str,
    spread: Spread,
    text: String,
    class: &'static str,
}

/// The chart of a load, if it was measured.
pub(super) fn draw(plan: &Plan, results: &Results, load: Load) -> Option<String> {
    let metric = load.headline();
    let bars: Vec<Bar<'_>> =
        (0..plan.contestants.len()).filter_map(|who| bar(plan, results, load, metric, who)).collect();
    let longest = bars.iter().map(|bar| bar.spread.high).fold(0.0, f64::max);
    (longest > 0.0).then(|| svg(&title(load, metric), &bars, longest))
}

fn title(load: Load, metric: Metric) -> String {
    let better = if metric.is_better_low() { "less" } else { "more" };
    if metric == Metric::Resident {
        let what = if load == Load::Idle { "session" } else { "HTTPS connection" };
        return format!("Resident memory of one idle {what}, KiB ({better} is better)");
    }
    format!("{}: {} ({better} is better)", heading(load), metric.title())
}

fn bar<'a>(plan: &'a Plan, results: &Results, load: Load, metric: Metric, who: usize) -> Option<Bar<'a>> {
    let contestant = &plan.contestants[who];
    if metric.is_contestants_own() && !contestant.is_between() {
        return None;
    }
    let spread = results.spread(load, who, metric)?;
    let ratio = results
        .ratio_to_no_proxy(plan, load, who)
        .filter(|_| !is_baseline(&contestant.name) && !metric.is_contestants_own());
    let ratio = ratio.map_or(String::new(), |ratio| format!(" · {:.2}", ratio.median));
    let mark = if results.complaints(plan, load, who).is_empty() { "" } else { " ✗" };
    let class = match contestant.name.as_str() {
        name if is_baseline(name) => "none",
        name if name.starts_with(TRUEPEER) => "ours",
        _ => "other",
    };
    Some(Bar {
        label: &contestant.label,
        spread,
        text: format!("{}{ratio}{mark}", grouped(&metric.write(spread.median))),
        class,
    })
}

fn svg(title: &str, bars: &[Bar<'_>], longest: f64) -> String {
    let height = TOP + ROW * bars.len() as f64 + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n<text class=\"title\" x=\"12\" y=\"26\">{title}</text>\n\
         <text class=\"small\" x=\"12\" y=\"44\">{LEGEND}</text>\n",
        title = escape(title),
    );
    for (number, bar) in bars.iter().enumerate() {
        let top = TOP + ROW * number as f64;
        svg += &draw_bar(bar, top, LENGTH / longest);
    }
    let bottom = TOP + ROW * bars.len() as f64;
    let _ = writeln!(svg, "<path class=\"line\" d=\"M{LEFT} {}V{bottom}\"/>\n</svg>", TOP - 6.0);
    svg
}

/// A bar to the median, a whisker from the lowest to the highest round.
fn draw_bar(bar: &Bar<'_>, top: f64, scale: f64) -> String {
    let middle = top + BAR / 2.0;
    let (low, high) = (LEFT + bar.spread.low.max(0.0) * scale, LEFT + bar.spread.high.max(0.0) * scale);
    format!(
        "<text class=\"{class}-name\" x=\"{name_x}\" y=\"{text_y:.0}\" text-anchor=\"end\">{label}</text>\n\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>\n\
         <path class=\"line\" d=\"M{low:.1} {middle}H{high:.1}M{low:.1} {a}v6M{high:.1} {a}v6\"/>\n\
         <text x=\"{value_x:.1}\" y=\"{text_y:.0}\">{text}</text>\n",
        class = bar.class,
        name_x = LEFT - 10.0,
        text_y = middle + 4.5,
        label = escape(bar.label),
        width = bar.spread.median.max(0.0) * scale,
        a = middle - 3.0,
        value_x = high + 8.0,
        text = escape(&bar.text),
    )
}

const LEGEND: &str =
    "bar: median of the rounds · whisker: lowest to highest · after the value: ratio to no proxy · ✗: flawed";

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#57606a}.title{font-weight:600;font-size:14px}.small{font-size:11px}\
.ours-name{font-weight:600}.line{stroke:#57606a;fill:none}.ours{fill:#2da44e}.other{fill:#6e8fc7}.none{fill:#9a9a9a}\
@media(prefers-color-scheme:dark){text{fill:#c9d1d9}.line{stroke:#c9d1d9}}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// Digits in groups of three.
fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place) % 3 == 0 {
            text.push('\u{202F}'); // a narrow space that doesn't break
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!(grouped("1234567.8"), "1\u{202F}234\u{202F}567.8");
        assert_eq!(grouped("123"), "123");
    }
}
