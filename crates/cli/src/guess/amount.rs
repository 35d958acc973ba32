//! Times and sizes in other notations.

/// `10minutes`, `1d`, `1.5 s`, `1h30m`.
pub(super) fn time(lower: &str) -> Option<String> {
    let units = [("h", 3600e3), ("m", 60e3), ("s", 1000.0), ("ms", 1.0)];
    let (mut millis, mut rest) = (0.0, lower);
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_alphabetic()).unwrap_or(rest.len());
        let behind = rest[end..].find(|c: char| !c.is_alphabetic()).map_or(rest.len(), |unit| end + unit);
        millis += milliseconds(&rest[..behind])?;
        rest = rest[behind..].trim_start();
    }
    let (unit, each) = units.into_iter().find(|(_, each)| millis % each == 0.0)?;
    Some(format!("{}{unit}", millis / each))
}

/// A number and its unit.
fn milliseconds(text: &str) -> Option<f64> {
    let (number, unit) = number(text)?;
    let each = match unit.trim_end_matches('s') {
        "m" if unit == "ms" => 1.0,
        "msec" | "milli" | "millisecond" => 1.0,
        "" if unit.is_empty() && number.fract() == 0.0 => return None,
        "" | "sec" | "second" => 1000.0,
        "m" | "min" | "minute" => 60e3,
        "h" | "hr" | "hour" => 3600e3,
        "d" | "day" => 24.0 * 3600e3,
        "w" | "week" => 7.0 * 24.0 * 3600e3,
        _ => return None,
    };
    Some(each * number)
}

/// `10MB`, `16 k`.
pub(super) fn size(lower: &str) -> Option<String> {
    let (number, unit) = number(lower)?;
    let unit = match unit.trim_end_matches('s') {
        "b" | "byte" => "",
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        _ => return None,
    };
    Some(format!("{number}{unit}"))
}

fn number(lower: &str) -> Option<(f64, &str)> {
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    // `5,000` could be either.
    let number =
        number.split_once(',').map_or(Some(number), |(_, end)| (end.len() != 3).then_some(number))?;
    Some((number.replace(',', ".").parse().ok()?, unit.trim()))
}
