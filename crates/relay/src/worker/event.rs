//! Decodes an event's user data.

use truepeer_session::table::Key;

use crate::tcp::relaying::Side;

/// The most listening sockets, and UDP sockets for senders: far more than exist.
const PLACES: u64 = 1 << 20;
/// No session's key has an index this high.
const BELL: u64 = u64::MAX;
const FIRST_LISTENING: u64 = u64::MAX - PLACES;
const FIRST_DOWNSTREAM: u64 = FIRST_LISTENING - PLACES;
/// Marks a flow's upstream socket; no session's key has this bit.
const FLOW: u64 = 1 << 63;

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventSource {
    /// The mailbox.
    Bell,
    /// A listening socket, by its index.
    Listening(usize),
    /// A UDP socket for senders, by its index.
    UdpDownstream(usize),
    /// A flow's upstream socket.
    Flow(Key),
    /// One of a session's sockets.
    Session(Key, Side),
}

impl EventSource {
    /// Encodes it as user data.
    pub(super) fn to_bits(self) -> u64 {
        match self {
            Self::Bell => BELL,
            Self::Listening(place) => FIRST_LISTENING + place as u64,
            Self::UdpDownstream(place) => FIRST_DOWNSTREAM + place as u64,
            Self::Flow(key) => FLOW | key.to_bits(),
            Self::Session(key, side) => key.to_bits() << 1 | u64::from(side == Side::Upstream),
        }
    }

    /// The inverse of [`EventSource::to_bits`].
    pub(super) fn from_bits(bits: u64) -> Self {
        let place = |first: u64| usize::try_from(bits - first).unwrap_or(usize::MAX);
        match bits {
            BELL => Self::Bell,
            FIRST_LISTENING.. => Self::Listening(place(FIRST_LISTENING)),
            FIRST_DOWNSTREAM.. => Self::UdpDownstream(place(FIRST_DOWNSTREAM)),
            _ if bits & FLOW != 0 => Self::Flow(Key::from_bits(bits & !FLOW)),
            _ if bits & 1 == 0 => Self::Session(Key::from_bits(bits >> 1), Side::Downstream),
            _ => Self::Session(Key::from_bits(bits >> 1), Side::Upstream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_is_decoded_to_its_source() {
        let mut events = vec![EventSource::Bell];
        events.extend([0, 1, 1000].map(EventSource::Listening));
        events.extend([0, 1, 1000].map(EventSource::UdpDownstream));
        // The highest key.
        for bits in [0, 1, 1 << 32, (1 << 62) - 1] {
            let key = Key::from_bits(bits);
            events.extend([
                EventSource::Session(key, Side::Downstream),
                EventSource::Session(key, Side::Upstream),
            ]);
        }
        // The index of a flow stays below the downstream sockets' indices.
        events.extend([0, 1, 1 << 32, (1 << 50) + 7].map(|bits| EventSource::Flow(Key::from_bits(bits))));
        for event in events {
            assert_eq!(EventSource::from_bits(event.to_bits()), event);
        }
    }
}
