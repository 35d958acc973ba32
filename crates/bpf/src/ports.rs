//! Ranges of ports: a range is counted together, and shown as one.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The first port and the last one.
pub type PortRange = RangeInclusive<u16>;

/// Sorts ports into ranges: into the given range that contains it, or else into a range of its own.
pub(crate) fn ranges_over(ports: &BTreeSet<u16>, ranges: &[PortRange]) -> Vec<PortRange> {
    let given = |port: &u16| ranges.iter().find(|range| range.contains(port)).cloned();
    let mut all: Vec<PortRange> = ports.iter().map(|port| given(port).unwrap_or(*port..=*port)).collect();
    all.dedup();
    all
}

/// Joins ranges that overlap.
pub fn without_overlaps(mut ranges: Vec<PortRange>) -> Vec<PortRange> {
    ranges.sort_unstable_by_key(|range| (*range.start(), *range.end()));
    let mut joined: Vec<PortRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start() <= last.end() => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Writes ports for people: three or more consecutive ones as a range (`80, 443, 40000-41000`), each followed
/// by `suffix`, such as `/udp`.
pub fn port_list(ports: impl IntoIterator<Item = u16>, suffix: &str) -> Vec<String> {
    let mut runs: Vec<PortRange> = Vec::new();
    for port in ports.into_iter().collect::<BTreeSet<_>>() {
        match runs.last_mut() {
            Some(run) if run.end().checked_add(1) == Some(port) => *run = *run.start()..=port,
            _ => runs.push(port..=port),
        }
    }
    let text = |run: PortRange| match run.len() {
        0..=2 => run.map(|port| format!("{port}{suffix}")).collect(),
        _ => vec![format!("{}-{}{suffix}", run.start(), run.end())],
    };
    runs.into_iter().flat_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_become_one() {
        assert_eq!(without_overlaps(vec![90..=99, 80..=91, 100..=101]), [80..=99, 100..=101]);
        assert_eq!(ranges_over(&[80, 81, 82, 443].into(), &[80..=82]), [80..=82, 443..=443]);
    }

    #[test]
    fn ports_in_a_row_are_written_as_a_range() {
        assert_eq!(port_list([443, 80, 81], "").join(", "), "80, 81, 443");
        assert_eq!(port_list(5000..=5002, "/udp"), ["5000-5002/udp"]);
        assert_eq!(port_list([65534, 65535], ""), ["65534", "65535"]);
    }
}
