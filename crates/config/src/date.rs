//! Dates. The first line of manual pages, with their date. It is never the clock's, so that the same sources
//! make the same pages.

use std::time::Duration;

/// `.TH` of a page. clap_mangen and roff leave an empty date out, and the version would stand in its place.
pub fn title(page: &str, section: u8) -> String {
    format!(".TH {page} {section} \"{}\" \"truepeer {}\"\n", of_release(), env!("CARGO_PKG_VERSION"))
}

/// The date of SOURCE_DATE_EPOCH, which makers of packages set, such as `2026-11-23`; empty without it.
fn of_release() -> String {
    let seconds = std::env::var("SOURCE_DATE_EPOCH").ok();
    seconds.and_then(|seconds| seconds.parse().ok()).map(of_seconds).unwrap_or_default()
}

/// A time (UTC) since the start of 1970, as RFC 3339 writes it: `2026-11-23T05:40:12.123Z`.
pub fn of_time(time: Duration) -> String {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!(
        "{}T{hours:02}:{minutes:02}:{:02}.{:03}Z",
        of_seconds(seconds),
        seconds % 60,
        time.subsec_millis()
    )
}

/// The date (UTC) so many seconds after the start of 1970.
fn of_seconds(seconds: u32) -> String {
    let (mut year, mut day) = (1970, seconds / 86_400);
    let is_leap =
        |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_in = |year| if is_leap(year) { 366 } else { 365 };
    while day >= days_in(year) {
        (year, day) = (year + 1, day - days_in(year));
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        (month, day) = (month + 1, day - days);
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_does() {
        let time = Duration::from_millis(951_868_799_007);
        assert_eq!(of_time(time), "2000-02-29T23:59:59.007Z");
        assert_eq!(of_time(Duration::ZERO), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_761_599, "2026-12-31"),
            (1_798_761_600, "2027-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(of_seconds(seconds), date, "{seconds}");
        }
    }
}
