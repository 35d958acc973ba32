//! The results, in wrk2's form.

use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::tally::LoadTally;
use crate::measure::latency;

const QUANTILES: [f64; 8] = [0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0];

/// The lines at the start; `took` is how long the threads took to start.
pub(super) fn begin(url: &str, threads: usize, connections: usize, duration: Duration, took: Duration) {
    println!("Initialised {threads} threads in {} ms.", took.as_millis());
    println!("Running {}s test @ {url}", duration.as_secs_f64());
    println!("  {threads} threads and {connections} connections");
    // Flush: standard output may be a file that somebody watches.
    let _ = std::io::stdout().flush();
}

/// All threads' tallies.
#[derive(Debug)]
pub(super) struct DemoReport {
    latencies: Histogram<u64>,
    rates: Vec<f64>,
    requests: u64,
    bytes: u64,
    elapsed: Duration,
    refused: u64,
    cut: u64,
    first_cut: Option<String>,
    seen: String,
}

impl DemoReport {
    pub(super) fn of(tallies: Vec<LoadTally>) -> anyhow::Result<Self> {
        let mut report = Self {
            latencies: latency::histogram()?,
            rates: Vec::new(),
            requests: 0,
            bytes: 0,
            elapsed: Duration::ZERO,
            refused: 0,
            cut: 0,
            first_cut: None,
            seen: String::new(),
        };
        for tally in tallies {
            report.latencies.add(&tally.latencies)?;
            report.rates.extend(tally.rates);
            report.requests += tally.requests;
            report.bytes += tally.bytes;
            report.elapsed = report.elapsed.max(tally.elapsed);
            report.refused += tally.refused;
            report.cut += tally.cut;
            report.first_cut = report.first_cut.or(tally.first_cut);
            if report.seen.is_empty() {
                report.seen = tally.seen;
            }
        }
        Ok(report)
    }

    /// The values for `bench`'s tables.
    pub(super) fn figures(&self) -> Figures {
        let micros = |quantile| self.latencies.value_at_quantile(quantile) as f64 / 1e3;
        Figures {
            requests_per_second: self.requests as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE),
            p50_micros: micros(0.5),
            p99_micros: micros(0.99),
            p999_micros: micros(0.999),
        }
    }

    /// Whether requests were answered and nothing failed.
    pub(super) fn is_clean(&self) -> bool {
        self.requests > 0 && self.refused == 0 && self.cut == 0
    }

    /// The share of latencies within one standard deviation of their mean.
    fn latencies_near_the_mean(&self) -> f64 {
        let (mean, deviation) = (self.latencies.mean(), self.latencies.stdev());
        let near = self
            .latencies
            .iter_recorded()
            .filter(|value| (value.value_iterated_to() as f64 - mean).abs() <= deviation);
        let near: u64 = near.map(|value| value.count_at_value()).sum();
        near as f64 / self.latencies.len().max(1) as f64
    }
}

/// The results as numbers, on a separate line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) requests_per_second: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    pub(crate) p999_micros: f64,
}

const FIGURES: &str = "figures:";

impl Figures {
    /// Finds them in a load's output.
    pub(crate) fn find(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix(FIGURES))?;
        let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [requests_per_second, p50_micros, p99_micros, p999_micros] = numbers[..] else { return None };
        Some(Self { requests_per_second, p50_micros, p99_micros, p999_micros })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests_per_second, p50_micros, p99_micros, p999_micros } = self;
        write!(f, "{FIGURES} {requests_per_second} {p50_micros} {p99_micros} {p999_micros}")
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latency = |nanoseconds: f64| time(nanoseconds / 1e9);
        let latencies = &self.latencies;
        writeln!(f, "  Thread Stats   Avg      Stdev     Max   +/- Stdev")?;
        row(
            f,
            "Latency",
            [latency(latencies.mean()), latency(latencies.stdev()), latency(latencies.max() as f64)],
            self.latencies_near_the_mean(),
        )?;
        let (mean, deviation) = mean_and_deviation(&self.rates);
        let most = self.rates.iter().copied().fold(0.0, f64::max);
        let near = self.rates.iter().filter(|rate| (*rate - mean).abs() <= deviation).count();
        row(
            f,
            "Req/Sec",
            [number(mean), number(deviation), number(most)],
            near as f64 / self.rates.len().max(1) as f64,
        )?;
        writeln!(f, "  Latency Distribution (HdrHistogram)")?;
        for quantile in QUANTILES {
            let value = latency(latencies.value_at_quantile(quantile) as f64);
            writeln!(f, "  {:>7.3}%  {value:>9}", quantile * 100.0)?;
        }
        let seconds = self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        writeln!(f, "  {} requests in {seconds:.2}s, {}B read", self.requests, bytes(self.bytes as f64))?;
        if self.cut > 0 {
            let first = self.first_cut.as_deref().unwrap_or_default();
            writeln!(f, "  Connections cut off: {} (the first: {first})", self.cut)?;
        }
        if self.refused > 0 {
            writeln!(f, "  Answers other than 200: {}", self.refused)?;
        }
        writeln!(f, "Requests/sec: {:>9.2}", self.requests as f64 / seconds)?;
        writeln!(f, "Transfer/sec: {:>10}B", bytes(self.bytes as f64 / seconds))?;
        if self.seen.is_empty() { Ok(()) } else { writeln!(f, "({})", self.seen.trim()) }
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, cells: [String; 3], near: f64) -> fmt::Result {
    let [average, deviation, most] = cells;
    writeln!(f, "    {name:<9}{average:>8} {deviation:>9} {most:>8} {:>8.2}%", near * 100.0)
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Seconds in a suitable unit.
fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-3 => format!("{:.2}us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.2}ms", seconds * 1e3),
        _ => format!("{seconds:.2}s"),
    }
}

fn number(value: f64) -> String {
    if value < 1e3 { format!("{value:.2}") } else { format!("{:.2}k", value / 1e3) }
}

/// Bytes with wrk2's prefixes, which are powers of 1024.
fn bytes(value: f64) -> String {
    const PREFIXES: [(f64, &str); 3] = [(1073741824.0, "G"), (1048576.0, "M"), (1024.0, "K")];
    let fitting = PREFIXES.iter().find(|(unit, _)| value >= *unit);
    fitting.map_or_else(|| format!("{value:.0}"), |(unit, prefix)| format!("{:.2}{prefix}", value / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_worded_as_wrk2_words_it() {
        let mut latencies = latency::histogram().unwrap();
        for micros in [100, 200, 300, 400] {
            latency::record(&mut latencies, Duration::from_micros(micros));
        }
        let tally = LoadTally {
            latencies,
            requests: 750_658,
            bytes: 960_000_000,
            rates: vec![74_000.0, 76_000.0],
            elapsed: Duration::from_secs(10),
            refused: 0,
            cut: 0,
            first_cut: None,
            seen: "the origin sees 10.77.0.1".to_owned(),
        };
        let report = DemoReport::of(vec![tally]).unwrap();
        assert!(report.is_clean());
        let text = report.to_string();
        for part in [
            "  Thread Stats   Avg      Stdev     Max   +/- Stdev\n",
            "    Req/Sec    75.00k     1.00k   76.00k   100.00%\n",
            "  Latency Distribution (HdrHistogram)\n   50.000%   200.",
            "  750658 requests in 10.00s, 915.53MB read\n",
            "Requests/sec:  75065.80\n",
            "Transfer/sec:     91.55MB\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn figures_are_found_again() {
        let figures =
            Figures { requests_per_second: 17_000.5, p50_micros: 12.0, p99_micros: 13.5, p999_micros: 1e6 };
        assert_eq!(Figures::find(&format!("Requests/sec: 1\n{figures}\n(x)\n")), Some(figures));
        assert_eq!(Figures::find("figures: 1 2"), None);
    }

    #[test]
    fn units_suit_their_values() {
        assert_eq!([time(5e-5), time(0.0042), time(5.0)], ["50.00us", "4.20ms", "5.00s"]);
        assert_eq!([bytes(12.0), bytes(2048.0), bytes(91.49 * 1048576.0)], ["12", "2.00K", "91.49M"]);
        assert_eq!(mean_and_deviation(&[]), (0.0, 0.0));
    }
}
