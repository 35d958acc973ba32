//! What poll() and select() are asked, and what they answer: memory of a program, laid out as in poll(2) and
//! select(2).

use rustix::event::PollFlags;
use rustix::io::Errno;
use truepeer_sys::process::PendingCall;
use truepeer_sys::seccomp::calls;

/// `struct pollfd`: an int, and two shorts.
const ENTRY: usize = 8;
const EVENTS: usize = 4;
const REVENTS: usize = 6;
/// More entries than a process has descriptors.
const MOST_ENTRIES: u64 = 1 << 20;
/// What a listener with a connection reports (net/ipv4/inet_connection_sock.c, inet_csk_listen_poll).
const READABLE: u16 = PollFlags::IN.union(PollFlags::RDNORM).bits();

/// Bytes for the program's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
}

/// The arguments of a call that waits for descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Polled {
    what: What,
    has_a_mask: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Entries at an address.
    Poll { entries: u64, count: u64 },
    /// The descriptors below `end`: for reading, writing, and exceptions.
    Select { end: i32, sets: [u64; 3] },
}

impl Polled {
    /// `None` for other calls. `is_in_poll` is asked about a call that has begun again: select() keeps its
    /// number then, poll() doesn't.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(unused_variables, reason = "no call begins again as another")
    )]
    pub(super) fn of(call: &PendingCall, is_in_poll: impl FnOnce() -> bool) -> Option<Self> {
        let [first, second, third, fourth, _, sixth] = call.args;
        let poll = What::Poll { entries: first, count: second & u64::from(u32::MAX) };
        let select = What::Select { end: int(first), sets: [second, third, fourth] };
        match call.number {
            calls::PPOLL => Some(Self { what: poll, has_a_mask: fourth != 0 }),
            calls::PSELECT6 => Some(Self { what: select, has_a_mask: sixth != 0 }),
            #[cfg(target_arch = "x86_64")]
            calls::POLL => Some(Self { what: poll, has_a_mask: false }),
            #[cfg(target_arch = "x86_64")]
            calls::RESTART_SYSCALL if is_in_poll() => Some(Self { what: poll, has_a_mask: false }),
            #[cfg(target_arch = "x86_64")]
            calls::SELECT => Some(Self { what: select, has_a_mask: false }),
            _ => None,
        }
    }

    /// Whether the call has a signal mask of its own.
    pub(super) fn has_a_mask(&self) -> bool {
        self.has_a_mask
    }

    /// What the call would write, and return, if only these listeners were readable. `None` if the memory
    /// can't be read, or is too much.
    pub(super) fn result(
        &self,
        read: impl Fn(u64, &mut [u8]) -> Result<(), Errno>,
        room: impl FnOnce() -> i32,
        is_listener: impl Fn(i32) -> bool,
    ) -> Option<(Vec<Write>, i64)> {
        match self.what {
            What::Poll { entries, count } if count <= MOST_ENTRIES => {
                let mut bytes = vec![0; usize::try_from(count).ok()? * ENTRY];
                read(entries, &mut bytes).ok()?;
                Some(polled(entries, &bytes, is_listener))
            }
            What::Poll { .. } => None,
            What::Select { end, sets } => {
                let end = end.min(room());
                let mut asked = vec![0; set_bytes(end)];
                if sets[0] != 0 {
                    read(sets[0], &mut asked).ok()?;
                }
                Some(selected(end, sets, &asked, is_listener))
            }
        }
    }
}

/// The kernel takes an int in the lower half of a register.
fn int(argument: u64) -> i32 {
    let [a, b, c, d, ..] = argument.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// Only what changes is written.
fn polled(entries: u64, bytes: &[u8], is_listener: impl Fn(i32) -> bool) -> (Vec<Write>, i64) {
    let (mut writes, mut count) = (Vec::new(), 0);
    for (address, entry) in (entries..).step_by(ENTRY).zip(bytes.chunks_exact(ENTRY)) {
        let short = |at: usize| u16::from_ne_bytes([entry[at], entry[at + 1]]);
        let number = i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let asked = short(EVENTS) & READABLE;
        let reported = if asked != 0 && is_listener(number) { asked } else { 0 };
        count += i64::from(reported != 0);
        if short(REVENTS) != reported {
            let bytes = reported.to_ne_bytes().to_vec();
            writes.push(Write { address: address + REVENTS as u64, bytes });
        }
    }
    (writes, count)
}

/// The kernel writes whole longs (fs/select.c, FDS_BYTES).
fn set_bytes(end: i32) -> usize {
    usize::try_from(end).unwrap_or_default().div_ceil(64) * 8
}

/// All sets are written.
fn selected(end: i32, sets: [u64; 3], asked: &[u8], is_listener: impl Fn(i32) -> bool) -> (Vec<Write>, i64) {
    let mut reported = vec![0; asked.len()];
    let mut count = 0;
    for number in 0..end {
        let at = usize::try_from(number / 8).unwrap_or_default();
        let bit = 1_u8 << (number % 8);
        if asked[at] & bit != 0 && is_listener(number) {
            reported[at] |= bit;
            count += 1;
        }
    }
    let nothing = vec![0; asked.len()];
    let all = sets.into_iter().zip([reported, nothing.clone(), nothing]);
    let writes = all.filter(|(address, _)| *address != 0);
    (writes.map(|(address, bytes)| Write { address, bytes }).collect(), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: i32 = 70;
    const IN: u16 = PollFlags::IN.bits();
    const OUT: u16 = PollFlags::OUT.bits();
    const RDNORM: u16 = PollFlags::RDNORM.bits();

    fn entry(number: i32, events: u16, revents: u16) -> Vec<u8> {
        [&number.to_ne_bytes()[..], &events.to_ne_bytes(), &revents.to_ne_bytes()].concat()
    }

    fn result(what: What, memory: &[u8]) -> Option<(Vec<Write>, i64)> {
        let read = |address: u64, buffer: &mut [u8]| {
            let start = usize::try_from(address - 1000).unwrap_or(usize::MAX);
            let there = start.checked_add(buffer.len()).and_then(|end| memory.get(start..end));
            buffer.copy_from_slice(there.ok_or(Errno::FAULT)?);
            Ok(())
        };
        Polled { what, has_a_mask: false }.result(read, || 256, |number| number == LISTENER)
    }

    #[test]
    fn only_the_listeners_entries_are_reported() {
        let entries = [
            entry(3, IN, 0),
            entry(LISTENER, IN | OUT, 0),
            entry(-1, IN, 0),
            entry(LISTENER, OUT, 0),
            entry(LISTENER, RDNORM, 0),
            entry(4, IN, IN),
        ]
        .concat();
        let (writes, count) = result(What::Poll { entries: 1000, count: 6 }, &entries).expect("a result");
        let write = |entry: u64, flags: u16| Write {
            address: 1000 + entry * 8 + 6,
            bytes: flags.to_ne_bytes().to_vec(),
        };
        assert_eq!(writes, [write(1, IN), write(4, RDNORM), write(5, 0)]);
        assert_eq!(count, 2);
        assert_eq!(result(What::Poll { entries: 1000, count: 5 }, &entries[..39]), None, "not readable");
        assert_eq!(result(What::Poll { entries: 1000, count: MOST_ENTRIES + 1 }, &entries), None);
        assert_eq!(result(What::Poll { entries: 1000, count: 0 }, &entries), Some((Vec::new(), 0)));
    }

    #[test]
    fn only_the_listeners_bit_stays_and_all_sets_are_written() {
        let mut reading = vec![0_u8; 16];
        reading[0] = 0b1000;
        reading[8] = 0b111 << (LISTENER % 8 - 1);
        let what = |end, others: u64| What::Select { end, sets: [1000, others, 0] };
        let (writes, count) = result(what(128, 2000), &reading).expect("a result");
        let mut reported = vec![0_u8; 16];
        reported[8] = 1 << (LISTENER % 8);
        let write = |address, bytes| Write { address, bytes };
        assert_eq!(writes, [write(1000, reported.clone()), write(2000, vec![0; 16])]);
        assert_eq!(count, 1);
        // Whole longs: beyond the last descriptor, nothing is reported.
        let (writes, count) = result(what(LISTENER, 0), &reading).expect("a result");
        assert_eq!((writes, count), (vec![write(1000, vec![0; 16])], 0));
        // No further than the process has room for descriptors.
        let most: Vec<u8> = reading.iter().copied().chain([0; 16]).collect();
        let (writes, count) = result(what(i32::MAX, 0), &most).expect("a result");
        let whole: Vec<u8> = reported.iter().copied().chain([0; 16]).collect();
        assert_eq!((writes, count), (vec![write(1000, whole)], 1));
        assert_eq!(result(what(1024, 0), &reading), None, "not readable");
        assert_eq!(result(what(-1, 0), &reading), Some((vec![write(1000, Vec::new())], 0)));
    }

    #[test]
    fn without_a_set_for_reading_nothing_is_reported() {
        let what = What::Select { end: 128, sets: [0, 2000, 3000] };
        assert_eq!(result(what, &[]).map(|(_, count)| count), Some(0));
    }
}
