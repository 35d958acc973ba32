//! The stages on connections that are made up.

use super::*;

/// Two connections that a session has relayed from the beginning: what is known of them.
#[derive(Debug, Clone, Default)]
struct MadeUp {
    is_heard: bool,
    has_narrow_windows: bool,
    has_unsent: [bool; 2],
    is_ended: bool,
    is_grace_over: bool,
    offers_fit: bool,
    has_work: bool,
    acknowledged: [Option<u32>; 2],
    received: [u32; 2],
    can_not_repair: bool,
    has_a_rule: bool,
    has_ended: bool,
    done: Vec<&'static str>,
    held: Option<Mapping>,
    cut: Option<Mapping>,
}

impl Connections for MadeUp {
    fn can_repair(&self) -> bool {
        !self.can_not_repair
    }

    fn fall_silent(&mut self) -> bool {
        !self.can_not_repair
    }

    fn has_ended(&mut self) -> bool {
        self.has_ended
    }

    fn is_heard(&self, _: usize) -> bool {
        self.is_heard
    }

    fn scales_fit(&self) -> bool {
        !self.has_narrow_windows
    }

    fn next_to_write(&mut self, side: usize) -> Result<Option<u32>, CallError> {
        if self.can_not_repair {
            return Err(CallError { call: "the keeper", errno: rustix::io::Errno::TIMEDOUT });
        }
        Ok((!self.has_unsent[side]).then_some([1000, 2000][side]))
    }

    fn received(&mut self, side: usize) -> Result<Received, CallError> {
        Ok(Received { next: self.received[side], unread: 0 })
    }

    fn is_established(&mut self, _: usize) -> Result<bool, CallError> {
        Ok(!self.is_ended)
    }

    fn pending_bytes(&mut self, _: usize) -> Result<Pending, CallError> {
        Ok(Pending { unread: 0, unacknowledged: self.has_work.into() })
    }

    fn has_acknowledged(&self, side: usize, number: u32) -> bool {
        self.acknowledged[side].is_some_and(|newest| newest.wrapping_sub(number).cast_signed() >= 0)
    }

    fn hold(&mut self, mapping: &Mapping) {
        self.done.push("hold");
        self.held = Some(*mapping);
    }

    fn offers_fit(&self) -> bool {
        self.offers_fit
    }

    fn may_be_cut(&self) -> Result<(), Reason> {
        if self.has_a_rule { Err(Reason::Rules) } else { Ok(()) }
    }

    fn reset_when_closed(&mut self) {
        self.done.push("reset when closed");
    }

    fn cut(&mut self, mapping: &Mapping, _: [u64; 2]) {
        self.done.push("cut");
        self.cut = Some(*mapping);
    }

    fn ask_peers(&mut self) {
        self.done.push("ask");
    }

    fn keep(&mut self, _: usize, _: u32) {}

    fn all_is_delivered(&mut self, _: Ended) -> bool {
        self.done.push("delivered");
        true
    }

    fn back_to_tail(&mut self) -> bool {
        self.done.push("back");
        true
    }

    fn ask_for_grace(&mut self) {
        self.is_grace_over = false;
    }

    fn is_grace_over(&self) -> bool {
        self.is_grace_over
    }
}

fn turn(handover: &mut Handover, connections: &mut MadeUp, streams: &Streams) -> Turn {
    handover.turn(connections, streams).expect("nothing fails here")
}

/// A hand-over that holds the offers, of a session that has relayed nothing yet.
fn held() -> (Handover, MadeUp) {
    let (mut handover, mut connections) =
        (Handover::default(), MadeUp { is_heard: true, ..MadeUp::default() });
    assert_eq!(turn(&mut handover, &mut connections, &Streams::default()), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Held);
    (handover, connections)
}

#[test]
fn the_cut_waits_until_offers_fit_and_all_programs_know() {
    for (is_grace_over, offers_fit) in [(false, false), (true, false), (false, true)] {
        let (mut handover, mut connections) = held();
        (connections.is_grace_over, connections.offers_fit) = (is_grace_over, offers_fit);
        assert_eq!(turn(&mut handover, &mut connections, &Streams::default()), Turn::Wait);
        assert_eq!(connections.done, ["hold"]);
    }
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    assert_eq!(turn(&mut handover, &mut connections, &Streams::default()), Turn::Wait);
    assert_eq!(connections.done, ["hold", "reset when closed", "cut", "ask"]);
    assert_eq!(connections.held.map(|held| held.shifts), connections.cut.map(|cut| cut.shifts));
}

#[test]
fn a_window_of_less_than_some_steps_is_waited_for() {
    let mut handover = Handover::default();
    let mut connections = MadeUp { is_heard: true, has_narrow_windows: true, ..MadeUp::default() };
    assert_eq!(turn(&mut handover, &mut connections, &Streams::default()), Turn::Wait);
    assert!(handover.waits_for_windows() && handover.progress() == Progress::Armed);
    connections.has_narrow_windows = false;
    assert_eq!(turn(&mut handover, &mut connections, &Streams::default()), Turn::Wait);
    assert!(!handover.waits_for_windows() && handover.progress() == Progress::Held);
}

#[test]
fn a_rule_that_comes_before_the_cut_keeps_a_session_here() {
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit, connections.has_a_rule) = (true, true, true);
    let turned = turn(&mut handover, &mut connections, &Streams::default());
    assert_eq!(turned, Turn::StayHere(Reason::Rules));
    assert_eq!(connections.done, ["hold"]);
}

#[test]
fn bytes_that_move_meanwhile_change_no_shift() {
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    connections.received = [70, 500];
    let streams = Streams { written: [490, 60], held: [10, 10], ..Streams::default() };
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Tail);
    assert_eq!(connections.cut.map(|cut| cut.cuts), Some([70, 500]));
}

#[test]
fn numbers_that_do_not_add_up_keep_a_session_here() {
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    connections.received = [70, 500];
    let streams = Streams { written: [490, 60], held: [10, 9], ..Streams::default() };
    assert!(matches!(turn(&mut handover, &mut connections, &streams), Turn::StayHere(_)));
    assert_eq!(connections.done, ["hold"]);
}

#[test]
fn unsent_bytes_are_waited_for_one_side_after_the_other() {
    let mut handover = Handover::default();
    let mut connections = MadeUp { is_heard: true, has_unsent: [true, true], ..MadeUp::default() };
    let streams = Streams { written: [5, 5], ..Streams::default() };
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Hold(1));
    connections.has_unsent[1] = false;
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Hold(0));
    connections.has_unsent = [false, true];
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Held);
}

#[test]
fn an_end_before_the_cut_keeps_a_session_here() {
    let ended = Streams { ended: [true, false], ..Streams::default() };
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    assert!(matches!(turn(&mut handover, &mut connections, &ended), Turn::StayHere(_)));
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit, connections.is_ended) = (true, true, true);
    let turned = turn(&mut handover, &mut connections, &Streams::default());
    assert!(matches!(turned, Turn::StayHere(_)), "an end that lies unread");
}

#[test]
fn what_comes_to_a_socket_after_all_is_delivered() {
    let (mut handover, mut connections) = held();
    let nothing = Streams::default();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Wait);
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Settling);
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Wait, "the grace period is not over");
    (connections.is_grace_over, connections.has_work) = (true, true);
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Tail);
    connections.has_work = false;
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Wait);
    connections.is_grace_over = true;
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Offload);
}

#[test]
fn the_flow_is_told_of_an_end_that_slips_to_a_socket_and_is_passed_on_at_once() {
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    turn(&mut handover, &mut connections, &Streams::default());
    turn(&mut handover, &mut connections, &Streams::default());
    assert_eq!(handover.progress(), Progress::Settling);
    connections.is_grace_over = true;
    let ended = Streams { ended: [true, false], end_written: [true, false], ..Streams::default() };
    assert_eq!(turn(&mut handover, &mut connections, &ended), Turn::Wait);
    assert_eq!(turn(&mut handover, &mut connections, &ended), Turn::Wait);
    connections.is_grace_over = true;
    assert_eq!(turn(&mut handover, &mut connections, &ended), Turn::Offload);
    assert_eq!(connections.done[4..], ["delivered", "back", "delivered"]);
}

#[test]
fn an_end_that_the_relay_has_not_read_keeps_the_sockets_open() {
    for side in [0, 1] {
        let (mut handover, mut connections) = held();
        (connections.is_grace_over, connections.offers_fit) = (true, true);
        turn(&mut handover, &mut connections, &Streams::default());
        turn(&mut handover, &mut connections, &Streams::default());
        assert_eq!(handover.progress(), Progress::Settling);
        // The kernel counts the end as a received byte, and nothing is unread.
        (connections.is_grace_over, connections.received[side]) = (true, 1);
        for _ in 0..3 {
            assert_eq!(turn(&mut handover, &mut connections, &Streams::default()), Turn::Wait);
            assert_eq!(handover.progress(), Progress::Tail);
        }
        let mut streams = Streams::default();
        (streams.ended[side], streams.end_written[side]) = (true, true);
        assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
        connections.is_grace_over = true;
        assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Offload);
    }
}

#[test]
fn without_the_keeper_a_session_stays_here_before_the_cut() {
    let mut connections = MadeUp { is_heard: true, can_not_repair: true, ..MadeUp::default() };
    let turned = turn(&mut Handover::default(), &mut connections, &Streams::default());
    assert_eq!(turned, Turn::StayHere(Reason::KeeperGone));
}

#[test]
fn without_the_keeper_the_sockets_stay_open_behind_the_cut_until_both_streams_have_ended() {
    let (mut handover, mut connections) = held();
    let nothing = Streams::default();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    turn(&mut handover, &mut connections, &nothing);
    connections.can_not_repair = true;
    turn(&mut handover, &mut connections, &nothing);
    assert_eq!(handover.progress(), Progress::Settling);
    connections.is_grace_over = true;
    for _ in 0..3 {
        assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Wait);
    }
    connections.has_ended = true;
    assert_eq!(turn(&mut handover, &mut connections, &nothing), Turn::Offload);
}

#[test]
fn what_the_peers_have_acknowledged_is_delivered_though_the_sockets_have_not_heard_of_it() {
    let (mut handover, mut connections) = held();
    (connections.is_grace_over, connections.offers_fit) = (true, true);
    turn(&mut handover, &mut connections, &Streams::default());
    let streams = Streams { written: [5, 7], ended: [true; 2], end_written: [true; 2], ..Streams::default() };
    connections.has_work = true;
    // All but the end of one.
    connections.acknowledged = [Some(1005), Some(2008)];
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Tail);
    connections.acknowledged = [Some(1006), Some(2008)];
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
    assert_eq!(handover.progress(), Progress::Settling);
    connections.is_grace_over = true;
    assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Offload);
}

#[test]
fn an_end_that_its_peer_has_not_acknowledged_is_not_delivered() {
    for from in [0, 1] {
        let (mut handover, mut connections) = held();
        (connections.is_grace_over, connections.offers_fit) = (true, true);
        turn(&mut handover, &mut connections, &Streams::default());
        let mut streams = Streams { written: [5, 7], ..Streams::default() };
        (streams.ended[from], streams.end_written[from]) = (true, true);
        connections.received = [7, 5];
        connections.received[from] += 1;
        connections.has_work = true;
        // Every byte, not the end.
        connections.acknowledged = [Some(1005), Some(2007)];
        assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
        assert_eq!(handover.progress(), Progress::Tail, "the end of side {from}");
        connections.acknowledged[1 - from] = Some([1006, 2008][1 - from]);
        assert_eq!(turn(&mut handover, &mut connections, &streams), Turn::Wait);
        assert_eq!(handover.progress(), Progress::Settling, "the end of side {from}");
    }
}
