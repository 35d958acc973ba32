//! Charts of samples: one value over time each. The colours are readable on light and on dark pages.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::samples::Sample;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 160.0;
const RIGHT: f64 = 700.0;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#57606a}.title{font-weight:600;font-size:14px}\
.line{stroke:#2da44e;fill:none;stroke-width:1.5}.axis{stroke:#57606a;fill:none}.new{stroke:#9a9a9a;stroke-dasharray:3 3}\
@media(prefers-color-scheme:dark){text{fill:#c9d1d9}.axis{stroke:#c9d1d9}}";

/// Writes one chart for each value: `soak-memory.svg` and so on.
pub(crate) fn write(samples: &[Sample], directory: &Path) -> anyhow::Result<()> {
    let mut samples = samples.to_vec();
    samples.sort_by_key(|sample| sample.at);
    let rates: Vec<f64> = rates(&samples);
    let values = |of: fn(&Sample) -> u64| samples.iter().map(|sample| of(sample) as f64).collect::<Vec<_>>();
    for (name, title, values) in [
        ("memory", "Resident memory of the serving process, KiB", values(|sample| sample.resident_kib)),
        ("descriptors", "Open descriptors of the serving process", values(|sample| sample.descriptors)),
        ("pipes", "Descriptors of pipes", values(|sample| sample.pipes)),
        ("open", "Open sessions and connections", values(|sample| sample.open)),
        ("flows", "UDP flows", values(|sample| sample.flows)),
        ("sockets", "TCP sockets of truepeer's host", values(|sample| sample.sockets)),
        (
            "kernel",
            "Memory of the TCP sockets of truepeer's host, KiB",
            values(|sample| sample.kernel.tcp_kib),
        ),
        ("spliced", "Sessions in the tables of the BPF programs", values(|sample| sample.kernel.spliced)),
        (
            "objects",
            "Routing rules, routes, pinned BPF maps and links",
            values(|sample| sample.kernel.rules + sample.kernel.routes + sample.kernel.pins),
        ),
        ("rate", "Sessions and requests that clients have ended, each second", rates),
    ] {
        let svg = draw(title, &samples, &values);
        fs::write(directory.join(format!("soak-{name}.svg")), svg)?;
    }
    Ok(())
}

fn rates(samples: &[Sample]) -> Vec<f64> {
    let rate = |pair: &[Sample]| {
        let seconds = (pair[1].at - pair[0].at).as_secs_f64();
        if seconds > 0.0 { (pair[1].done - pair[0].done) as f64 / seconds } else { 0.0 }
    };
    std::iter::once(0.0).chain(samples.windows(2).map(rate)).collect()
}

fn draw(title: &str, samples: &[Sample], values: &[f64]) -> String {
    let end = samples.last().map_or(1.0, |sample| sample.at.as_secs_f64()).max(1.0);
    let most = values.iter().copied().fold(1.0, f64::max);
    let x = |sample: &Sample| LEFT + (RIGHT - LEFT) * sample.at.as_secs_f64() / end;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n<text class=\"title\" x=\"12\" y=\"24\">{title}</text>\n\
         <path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>\n\
         <text x=\"{label}\" y=\"{high}\" text-anchor=\"end\">{most:.0}</text>\n\
         <text x=\"{label}\" y=\"{BOTTOM}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{RIGHT}\" y=\"{below}\" text-anchor=\"end\">{minutes:.1} min</text>\n",
        label = LEFT - 8.0,
        high = TOP + 8.0,
        below = BOTTOM + 18.0,
        minutes = end / 60.0,
    );
    // Where a new process has taken the place of another one.
    for pair in samples.windows(2).filter(|pair| pair[0].pid != pair[1].pid) {
        let _ = writeln!(svg, "<path class=\"new\" d=\"M{:.1} {TOP}V{BOTTOM}\"/>", x(&pair[1]));
    }
    let points = samples.iter().zip(values).enumerate().map(|(number, (sample, value))| {
        let letter = if number == 0 { 'M' } else { 'L' };
        format!("{letter}{:.1} {:.1}", x(sample), BOTTOM - (BOTTOM - TOP) * value / most)
    });
    let _ = writeln!(svg, "<path class=\"line\" d=\"{}\"/>\n</svg>", points.collect::<Vec<_>>().join(""));
    svg
}
