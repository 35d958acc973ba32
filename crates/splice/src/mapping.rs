//! Why one addition translates a sequence number.
//!
//! Each byte that is read from one socket is written to the other, in order, and nothing else is. So the n-th
//! byte behind the header has the number `a + n` on one connection and `b + n` on the other, whoever carries
//! it, and whatever lies in queues.

use truepeer_sys::repair::Received;

/// Where a socket's stream of written bytes stands: by this, the number of each byte is known by counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The number of the first byte that was counted.
    first: u32,
}

impl Position {
    /// `next` is the number of the byte that follows `written` counted ones.
    #[must_use]
    pub fn new(next: u32, written: u64) -> Self {
        Self { first: next.wrapping_sub(low(written)) }
    }

    /// The number of the byte that follows `count` ones.
    #[must_use]
    pub fn after(self, count: u64) -> u32 {
        self.first.wrapping_add(low(count))
    }
}

/// How the numbers of one connection become those of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// To add to the numbers of what comes from each side.
    pub shifts: [u32; 2],
    /// The first byte of each side that nobody here has received.
    pub cuts: [u32; 2],
    /// Bytes before the cut that the socket has received and nobody has read.
    pub unread: [u32; 2],
}

impl Mapping {
    /// `received` of each side's socket; `next_out[side]` is the number that the next byte to be read from
    /// the *other* side's socket will have on this side's connection, bytes that were read but not yet
    /// written before it.
    #[must_use]
    pub fn at_the_cut(received: [Received; 2], next_out: [u32; 2]) -> Self {
        let unread_from = received.map(|socket| socket.next.wrapping_sub(socket.unread));
        Self {
            shifts: [next_out[1].wrapping_sub(unread_from[0]), next_out[0].wrapping_sub(unread_from[1])],
            cuts: received.map(|socket| socket.next),
            unread: received.map(|socket| socket.unread),
        }
    }
}

/// Sequence numbers count modulo 2^32.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
fn low(count: u64) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One direction at any moment: so many bytes have been received, of which so many read, of which so many
    /// written.
    #[derive(Debug, Clone, Copy)]
    struct Moment {
        isn: u32,
        received: u64,
        read: u64,
        written: u64,
    }

    fn moment() -> impl Strategy<Value = Moment> {
        (any::<u32>(), 0_u64..1 << 40, 0_u64..1 << 24, 0_u64..1 << 24).prop_map(
            |(isn, received, unread, unwritten)| {
                let read = received.saturating_sub(unread);
                Moment { isn, received, read, written: read.saturating_sub(unwritten) }
            },
        )
    }

    /// The mapping at a moment, of streams that begin at `isn` of one connection and `out` of the other.
    fn mapping(moments: [Moment; 2], outs: [u32; 2], learnt_at: [u64; 2]) -> Mapping {
        let received = moments.map(|moment| Received {
            next: moment.isn.wrapping_add(low(moment.received)),
            unread: low(moment.received - moment.read),
        });
        let next_out = [0, 1].map(|side: usize| {
            let stream = moments[1 - side];
            let learnt = learnt_at[side].min(stream.written);
            Position::new(outs[side].wrapping_add(low(learnt)), learnt).after(stream.read)
        });
        Mapping::at_the_cut(received, next_out)
    }

    proptest! {
        #[test]
        fn the_shift_is_the_same_at_every_moment(
            first in (moment(), moment()),
            second in (moment(), moment()),
            outs in any::<[u32; 2]>(),
            learnt_at in any::<[u64; 2]>(),
        ) {
            let isns = [first.0.isn, first.1.isn];
            let later = [Moment { isn: isns[0], ..second.0 }, Moment { isn: isns[1], ..second.1 }];
            let one = mapping([first.0, first.1], outs, learnt_at);
            let other = mapping(later, outs, learnt_at);
            prop_assert_eq!(one.shifts, other.shifts);
        }

        #[test]
        fn a_byte_has_the_number_that_the_relay_would_give_it(
            moments in (moment(), moment()),
            outs in any::<[u32; 2]>(),
            byte in 0_u64..1 << 41,
        ) {
            let moments = [moments.0, moments.1];
            let mapping = mapping(moments, outs, [0, 0]);
            for side in 0..2 {
                let came_as = moments[side].isn.wrapping_add(low(byte));
                let relayed_as = outs[1 - side].wrapping_add(low(byte));
                prop_assert_eq!(came_as.wrapping_add(mapping.shifts[side]), relayed_as);
            }
        }
    }
}
