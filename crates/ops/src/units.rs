//! Numbers for people.

use std::fmt;

/// Bytes, such as `3.2 MiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
        let (mut value, mut unit) = (self.0 as f64 / 1024.0, 0);
        while value >= 999.5 && unit + 1 < UNITS.len() {
            (value, unit) = (value / 1024.0, unit + 1);
        }
        let digits = usize::from(value < 99.95);
        f.pad(&format!("{value:.digits$} {}", UNITS[unit]))
    }
}

/// A number in groups of three digits.
pub(crate) struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// How often: `once`, or `1,234 times`.
pub(crate) struct Times(pub(crate) u64);

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 1 { f.write_str("once") } else { write!(f, "{} times", Count(self.0)) }
    }
}

/// A time in seconds, such as `42s`, `3m12s`, `5h06m` or `2d03h`.
pub(crate) struct Age(pub(crate) f64);

impl fmt::Display for Age {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an age is not negative, and casts saturate"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 as u64;
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        f.pad(&match seconds {
            0..60 => format!("{seconds}s"),
            60..3600 => format!("{minutes}m{:02}s", seconds % 60),
            3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
            _ => format!("{days}d{:02}h", hours % 24),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (102_349, "100 KiB"),
            (1 << 20, "1.0 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Bytes(1_023_000).to_string(), "999 KiB");
        assert_eq!(format!("{:>9}", Bytes(5)), "      5 B");
        for (count, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(Count(count).to_string(), text);
        }
        assert_eq!([1, 1234].map(|count| Times(count).to_string()), ["once", "1,234 times"]);
        for (seconds, text) in
            [(0.9, "0s"), (59.9, "59s"), (192.0, "3m12s"), (18_360.0, "5h06m"), (183_600.0, "2d03h")]
        {
            assert_eq!(Age(seconds).to_string(), text);
        }
    }
}
