//! Which stream's bytes leave first (RFC 9218).

/// A request's priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Priority {
    /// 0 leaves first, 7 last.
    urgency: u8,
    /// Its bytes are of use in part, so streams of its urgency take turns. Otherwise one stream follows the
    /// other.
    pub(super) is_incremental: bool,
}

/// A client that says nothing may read all of its responses at once, so they take turns.
impl Default for Priority {
    fn default() -> Self {
        Self { urgency: Self::USUAL_URGENCY, is_incremental: true }
    }
}

impl Priority {
    const USUAL_URGENCY: u8 = 3;

    /// The value of a `Priority` field or of a PRIORITY_UPDATE frame. What is invalid has the default of RFC
    /// 9218 section 4.
    pub(super) fn of(value: &[u8]) -> Self {
        let mut priority = Self { urgency: Self::USUAL_URGENCY, is_incremental: false };
        for member in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
            match member {
                [b'u', b'=', urgency @ b'0'..=b'7'] => priority.urgency = urgency - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read() {
        for (value, urgency, is_incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i,u=2", 2, true),
            ("i=?1", 3, true),
            ("u=1,i=?0", 1, false),
            ("u=8, u=-1, u=x, u", 3, false),
            ("U=1, a=b;c, i=1", 3, false),
        ] {
            assert_eq!(Priority::of(value.as_bytes()), Priority { urgency, is_incremental }, "{value}");
        }
        assert!(Priority::of(b"u=2, i") < Priority::of(b"u=3"));
    }
}
