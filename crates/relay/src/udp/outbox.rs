//! Outgoing datagrams: gathered, merged into runs of equal size and sent. Where merging fails, they are sent
//! again one by one.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use truepeer_sys::udp::{Local, Run, send_runs};

/// The most datagrams in one run. Kernels since 6.10 accept 128, older ones 64.
const SEGMENTS: usize = 64;
/// The most bytes in one run: the payload of the largest IPv4 packet.
const RUN_BYTES: usize = 65_507;

/// One datagram: the header to add, and the payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram<'a> {
    pub(super) prefix: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl Datagram<'_> {
    fn len(&self) -> usize {
        self.prefix.len() + self.payload.len()
    }
}

/// The destination of datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) socket: BorrowedFd<'a>,
    /// `None`: the address that the socket is connected to.
    pub(super) to: Option<SocketAddr>,
    /// `None`: the address that the socket is bound to.
    pub(super) from: Option<Local>,
}

/// The outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The datagrams that were sent.
    pub datagrams: u64,
    /// Payload bytes, without headers.
    pub bytes: u64,
    /// Lost here: the socket's buffer is full, or the datagram is longer than the path's MTU.
    pub dropped: u64,
}

impl Sent {
    /// Adds datagrams that were sent later.
    pub(super) fn add(&mut self, more: Self) {
        self.datagrams += more.datagrams;
        self.bytes += more.bytes;
        self.dropped += more.dropped;
    }
}

/// A run: the datagrams `first..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    first: usize,
    end: usize,
    segment_bytes: Option<u16>,
}

impl Bounds {
    fn run<'a>(&self, slices: &'a [IoSlice<'a>], slices_each: usize) -> Run<'a> {
        let parts = &slices[slices_each * self.first..slices_each * self.end];
        Run { parts, segment_bytes: self.segment_bytes }
    }
}

/// Sends `datagrams` in order. Clears `may_merge` when the path refuses merged ones.
pub(super) fn send(way: Way<'_>, datagrams: &[Datagram<'_>], may_merge: &mut bool) -> Sent {
    // Usually no datagram has a header: half as many slices for the kernel to copy.
    let slices: Vec<IoSlice<'_>> = if datagrams.iter().all(|datagram| datagram.prefix.is_empty()) {
        datagrams.iter().map(|datagram| IoSlice::new(datagram.payload)).collect()
    } else {
        let both = datagrams.iter().flat_map(|datagram| [datagram.prefix, datagram.payload]);
        both.map(IoSlice::new).collect()
    };
    let mut sending = RunSender { way, datagrams, slices: &slices, sent: Sent::default() };
    if *may_merge {
        let runs = merge(datagrams);
        *may_merge = sending.all(&runs);
    } else {
        sending.all(&plain(0, datagrams.len()));
    }
    sending.sent
}

/// Splits into runs of datagrams of equal length. Only the last of a run may be shorter.
fn merge(datagrams: &[Datagram<'_>]) -> Vec<Bounds> {
    let mut runs = Vec::with_capacity(datagrams.len());
    let mut first = 0;
    while first < datagrams.len() {
        let end = first + run_length(&datagrams[first..]);
        let segment_bytes = if end - first > 1 { u16::try_from(datagrams[first].len()).ok() } else { None };
        runs.push(Bounds { first, end, segment_bytes });
        first = end;
    }
    runs
}

fn run_length(datagrams: &[Datagram<'_>]) -> usize {
    let size = datagrams[0].len();
    if size == 0 {
        return 1;
    }
    let most = SEGMENTS.min(RUN_BYTES / size).clamp(1, datagrams.len());
    let equal = datagrams[..most].iter().take_while(|datagram| datagram.len() == size).count();
    let shorter_end = datagrams[..most].get(equal).is_some_and(|next| (1..size).contains(&next.len()));
    equal + usize::from(shorter_end)
}

/// Each datagram alone.
fn plain(first: usize, end: usize) -> Vec<Bounds> {
    (first..end).map(|first| Bounds { first, end: first + 1, segment_bytes: None }).collect()
}

struct RunSender<'a> {
    way: Way<'a>,
    datagrams: &'a [Datagram<'a>],
    /// One or two slices for each datagram.
    slices: &'a [IoSlice<'a>],
    sent: Sent,
}

impl<'a> RunSender<'a> {
    /// Sends all runs; `false` if merged ones were refused and went plainly.
    fn all(&mut self, bounds: &[Bounds]) -> bool {
        let slices: &'a [IoSlice<'a>] = self.slices;
        let slices_each = slices.len().checked_div(self.datagrams.len()).unwrap_or_default();
        let runs: Vec<_> = bounds.iter().map(|bounds| bounds.run(slices, slices_each)).collect();
        let (mut next, mut merging_works, mut tried_again) = (0, true, false);
        while let Some(current) = bounds.get(next) {
            match send_runs(self.way.socket, self.way.to.as_ref(), self.way.from, &runs[next..]) {
                Ok(count) => {
                    let done = &bounds[next..next + count.max(1)];
                    done.iter().for_each(|bounds| self.count_sent(bounds));
                    next += done.len();
                    tried_again = false;
                }
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.count_dropped(&bounds[next..]);
                    break;
                }
                // udp(7): a segment above the path's MTU, or a device without support.
                Err(Errno::MSGSIZE | Errno::INVAL | Errno::IO) if current.segment_bytes.is_some() => {
                    merging_works = false;
                    self.all(&plain(current.first, current.end));
                    next += 1;
                    tried_again = false;
                }
                // This may be an ICMP error for an earlier datagram (refused, unreachable, too large). It has
                // now been reported, and this datagram was not sent.
                Err(_) if !tried_again => tried_again = true,
                Err(_) => {
                    self.count_dropped(&bounds[next..=next]);
                    next += 1;
                    tried_again = false;
                }
            }
        }
        merging_works
    }

    fn count_dropped(&mut self, bounds: &[Bounds]) {
        self.sent.dropped += bounds.iter().map(|bounds| (bounds.end - bounds.first) as u64).sum::<u64>();
    }

    fn count_sent(&mut self, bounds: &Bounds) {
        let datagrams = &self.datagrams[bounds.first..bounds.end];
        self.sent.datagrams += datagrams.len() as u64;
        self.sent.bytes += datagrams.iter().map(|datagram| datagram.payload.len() as u64).sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(lengths: &[usize]) -> Vec<(usize, Option<u16>)> {
        let payload = [0; 65_507];
        let datagrams: Vec<_> =
            lengths.iter().map(|&length| Datagram { prefix: &[], payload: &payload[..length] }).collect();
        merge(&datagrams).iter().map(|run| (run.end - run.first, run.segment_bytes)).collect()
    }

    #[test]
    fn equal_datagrams_are_merged_and_the_last_may_be_shorter() {
        assert_eq!(cut(&[100, 100, 60, 100]), [(3, Some(100)), (1, None)]);
        assert_eq!(cut(&[60, 100, 100]), [(1, None), (2, Some(100))]);
        assert_eq!(cut(&[7]), [(1, None)]);
    }

    #[test]
    fn empty_datagrams_are_never_merged() {
        assert_eq!(cut(&[0, 0, 5, 0]), [(1, None), (1, None), (1, None), (1, None)]);
    }

    #[test]
    fn runs_keep_to_the_kernels_limits() {
        assert_eq!(cut(&[1; 130]), [(64, Some(1)), (64, Some(1)), (2, Some(1))]);
        assert_eq!(cut(&[40_000; 2]), [(1, None), (1, None)]);
        assert_eq!(cut(&[32_753; 3]), [(2, Some(32_753)), (1, None)]);
        assert_eq!(cut(&[65_507; 2]), [(1, None), (1, None)]);
    }
}
