//! The account of one UDP flow: which datagrams are in flight, which have come back, which are lost.
//!
//! Datagrams of one flow keep their order on this path, so a datagram that [`OVERTAKEN`] others have
//! overtaken is lost. All are lost if nothing has come back for [`SILENCE`]. A lost one is replaced, so that
//! a contestant that drops datagrams is not slowed down as well.

use std::time::{Duration, Instant};

/// How many later datagrams must come back before one counts as lost.
const OVERTAKEN: u64 = 64;
/// After this silence everything in flight counts as lost.
const SILENCE: Duration = Duration::from_millis(100);
/// How many datagrams are remembered: more than can be in flight and overtaken together.
const MEMORY: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    Lost,
    Home,
}

/// The account of one flow.
#[derive(Debug)]
pub(super) struct Account {
    /// The next datagram's number.
    next: u64,
    /// All datagrams before this one have come back or are lost.
    settled: u64,
    states: Box<[State; MEMORY]>,
    under_way: usize,
    lost: u64,
    doubled: u64,
    heard: Instant,
}

impl Account {
    pub(super) fn new(now: Instant) -> Self {
        let states = Box::new([State::Home; MEMORY]);
        Self { next: 0, settled: 0, states, under_way: 0, lost: 0, doubled: 0, heard: now }
    }

    /// The number of the next datagram.
    pub(super) fn send(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        *self.state(number) = State::UnderWay;
        self.under_way += 1;
        number
    }

    /// It could not be sent after all.
    pub(super) fn drop_unsent(&mut self, number: u64) {
        if *self.state(number) == State::UnderWay {
            self.lose(number);
        }
    }

    /// It has come back. Returns whether it was expected.
    pub(super) fn receive(&mut self, number: u64, now: Instant) -> bool {
        if number >= self.next || number + (MEMORY as u64) < self.next {
            return false;
        }
        self.heard = now;
        match std::mem::replace(self.state(number), State::Home) {
            State::UnderWay => self.under_way -= 1,
            State::Lost => self.lost -= 1, // late, but not lost
            State::Home => {
                self.doubled += 1;
                return false;
            }
        }
        self.settle_before(number.saturating_sub(OVERTAKEN));
        true
    }

    /// Counts silence as loss.
    pub(super) fn expire(&mut self, now: Instant) {
        if self.under_way > 0 && now.duration_since(self.heard) >= SILENCE {
            self.heard = now;
            self.settle_before(self.next);
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn sent(&self) -> u64 {
        self.next
    }

    /// The datagrams that have not come back, including those in flight.
    pub(super) fn missing(&self) -> u64 {
        self.lost + self.under_way as u64
    }

    fn settle_before(&mut self, end: u64) {
        while self.settled < end {
            let number = self.settled;
            if *self.state(number) == State::UnderWay {
                self.lose(number);
            }
            self.settled += 1;
        }
    }

    fn lose(&mut self, number: u64) {
        *self.state(number) = State::Lost;
        self.under_way -= 1;
        self.lost += 1;
    }

    fn state(&mut self, number: u64) -> &mut State {
        let place = usize::try_from(number % MEMORY as u64).unwrap_or(0);
        &mut self.states[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overtaken_datagram_is_lost_and_a_late_one_is_not() {
        let now = Instant::now();
        let mut account = Account::new(now);
        for _ in 0..100 {
            account.send();
        }
        for number in 1..=64 {
            assert!(account.receive(number, now));
        }
        assert_eq!((account.under_way(), account.missing()), (36, 36)); // 0 is one of them: not overtaken often enough
        assert!(account.receive(65, now));
        assert_eq!((account.under_way(), account.missing()), (34, 35));
        assert!(account.receive(0, now));
        assert_eq!((account.under_way(), account.missing()), (34, 34));
        assert!(!account.receive(0, now));
        assert!(!account.receive(100, now));
    }

    #[test]
    fn silence_is_loss() {
        let now = Instant::now();
        let mut account = Account::new(now);
        account.send();
        account.expire(now + SILENCE / 2);
        assert_eq!(account.under_way(), 1);
        account.expire(now + SILENCE);
        assert_eq!((account.under_way(), account.missing(), account.sent()), (0, 1, 1));
    }
}
