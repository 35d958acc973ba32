//! Configuration values as text: durations with units, and serde with the notation of the command line.

use std::time::Duration;

/// `5s`, `500ms`, `1m30s`, `2h`, or bare seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected seconds, or a number with ms, s, m or h, such as 5s or 500ms".to_owned();
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let millis =
            number.parse::<u64>().ok().zip(unit_millis(unit)).and_then(|(n, unit)| n.checked_mul(unit));
        total = total.checked_add(Duration::from_millis(millis.ok_or_else(wrong)?)).ok_or_else(wrong)?;
        rest = behind;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

fn unit_millis(unit: &str) -> Option<u64> {
    match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    }
}

/// The text for `parse_duration`, in whole milliseconds.
pub fn format_duration(duration: &Duration) -> String {
    match duration.as_millis() {
        millis if millis % 1000 == 0 => format!("{}s", duration.as_secs()),
        millis => format!("{millis}ms"),
    }
}

/// A value that has a text form.
pub(crate) mod one {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Such a value, or none.
pub(crate) mod maybe {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(T::to_string).serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// Several such values; each may be printed as several words.
pub(crate) mod list {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        let text = values.iter().map(T::to_string).collect::<Vec<_>>().join(" ");
        to.collect_seq(text.split_whitespace())
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let words = Vec::<String>::deserialize(from)?;
        words.iter().map(|word| word.parse().map_err(D::Error::custom)).collect()
    }
}

/// A set of prefixes as a list of words.
pub(crate) mod prefixes {
    use serde::{Deserializer, Serializer};
    use truepeer_policy::PrefixSet;

    pub(crate) fn serialize<S: Serializer>(set: &PrefixSet, to: S) -> Result<S::Ok, S::Error> {
        super::list::serialize(std::slice::from_ref(set), to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PrefixSet, D::Error> {
        let sets: Vec<PrefixSet> = super::list::deserialize(from)?;
        Ok(sets.iter().fold(PrefixSet::new(), |mut all, set| {
            all.extend(set);
            all
        }))
    }
}

/// A set of destinations as a list of words.
pub(crate) mod destinations {
    use serde::{Deserializer, Serializer};
    use truepeer_policy::Destinations;

    pub(crate) fn serialize<S: Serializer>(set: &Destinations, to: S) -> Result<S::Ok, S::Error> {
        super::list::serialize(std::slice::from_ref(set), to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Destinations, D::Error> {
        let sets: Vec<Destinations> = super::list::deserialize(from)?;
        Ok(sets.iter().fold(Destinations::default(), |mut all, set| {
            all.extend(set);
            all
        }))
    }
}

/// A duration with its unit.
pub(crate) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format_duration(value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A duration with its unit, or none.
pub(crate) mod maybe_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(super::format_duration).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| super::parse_duration(&text).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, millis) in [
            ("5", 5000),
            ("0", 0),
            ("5s", 5000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1h0m0s", 3_600_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "s", "5 s", "-1", "5d", "1.5s", "5s3", "99999999999999999999", "18446744073709551615h"]
        {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains("expected seconds"), "{text}: {error}");
        }
    }

    #[test]
    fn durations_print_as_they_are_read() {
        for text in ["5s", "500ms", "0s", "90s", "1500ms"] {
            assert_eq!(format_duration(&parse_duration(text).unwrap()), text);
        }
    }
}
