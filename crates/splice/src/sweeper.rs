//! A thread that cleans up after flows: it removes those that have ended, asks silent peers, and resets
//! peers.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use truepeer_bpf::{Question, Removed, Splices, Watched, Way};
use truepeer_sys::repair::{self, wait_for_grace_period};
use truepeer_sys::socket::set_mark;

use crate::Ways;

/// The time between two looks at the flows.
const SWEEP: Duration = Duration::from_secs(1);
/// The same while many places are in use.
const SWEEP_SOON: Duration = Duration::from_millis(250);
/// An ended flow stays until nothing has come for so long: retransmissions are still translated.
const LINGER: Duration = Duration::from_secs(5);
/// Each reset is repeated after so long: if the peer was still receiving, its last acknowledgement tells the
/// right number. Linux delays acknowledgements by up to 40 ms.
const AGAIN: Duration = Duration::from_millis(50);
/// A peer whose device was gone may be reached again later: its reset is repeated each second for this long.
const RESET_FOR: Duration = Duration::from_secs(60);
/// How long a question about a way may take. A device that comes back, or is made anew, gets its addresses
/// and the programs. Then IPv6 asks for two seconds whether anybody has them, and after that for the peer's
/// link address.
const PATIENCE: Duration = Duration::from_secs(6);

/// The running thread. Dropping this waits until the resets that it has begun are repeated.
#[derive(Debug)]
pub struct Sweeper {
    /// `None` while it is dropped.
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Task {
    Reset(Removed),
    Ask(Question, u32),
}

impl Sweeper {
    /// Starts the thread. It passes flows that were adopted from another process to `hand_out`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        splices: Arc<Splices>,
        ways: Arc<Ways>,
        hand_out: impl Fn(Vec<Watched>) + Send + 'static,
    ) -> io::Result<Self> {
        let (tasks, asked) = channel();
        let sweep = move || run(&splices, &ways, &asked, &hand_out);
        let thread = thread::Builder::new().name("sweep".into()).spawn(sweep)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Resets both peers of a flow.
    pub fn reset(&self, removed: Removed) {
        self.order(Task::Reset(removed));
    }

    /// Asks a peer whether it is still there. Its answer is translated to the other peer; a peer that has
    /// forgotten the connection sends a reset. `mark`: that of the session's packets to this peer. A backend
    /// on this host answers by the route of the mark.
    pub fn ask(&self, question: Question, mark: u32) {
        self.order(Task::Ask(question, mark));
    }

    fn order(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // Err: the thread has panicked. The peers end by their own time-outs.
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.tasks = None;
        // Err: it has panicked, which is in the log.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(splices: &Arc<Splices>, ways: &Ways, tasks: &Receiver<Task>, hand_out: &impl Fn(Vec<Watched>)) {
    let mut again = Again::default();
    let mut asked = Asked::default();
    let mut sweep_at = Instant::now();
    loop {
        let now = Instant::now();
        if now >= sweep_at {
            splices.inherit();
            match splices.adopted() {
                none if none.is_empty() => {}
                adopted => hand_out(adopted),
            }
            asked.look(splices, ways, now);
            sweep(splices, now);
            splices.questions().iter().for_each(|question| ask(splices, question, 0));
            splices.unattended().into_iter().for_each(|removed| again.reset(removed));
            sweep_at = now + if splices.is_filling() { SWEEP_SOON } else { SWEEP };
        }
        again.repeat(now);
        let next = again.due().map_or(sweep_at, |due| due.min(sweep_at));
        match tasks.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Task::Reset(removed)) => again.reset(removed),
            Ok(Task::Ask(question, mark)) => ask(splices, &question, mark),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return again.finish(),
        }
    }
}

/// Flows whose way may have changed: each peer is asked, so that splice_out learns the device of the route as
/// it is now.
#[derive(Debug, Default)]
struct Asked {
    has_begun: bool,
    /// The firewall has changed: flows that it could do something to at the next look as well have to end.
    are_filtered: bool,
    questions: Vec<(Question, Instant)>,
}

impl Asked {
    /// A peer that has not answered yet is asked with the newer numbers, and has no more time for that.
    fn add(&mut self, questions: Vec<Question>, now: Instant) {
        let of: HashMap<_, _> =
            (0..).zip(&self.questions).map(|(place, (asked, _))| (asked.place, place)).collect();
        for question in questions {
            match of.get(&question.place).and_then(|place: &usize| self.questions.get_mut(*place)) {
                Some((asked, _)) if (asked.own, asked.peer) == (question.own, question.peer) => {
                    *asked = question
                }
                Some(of_an_ended_flow) => *of_an_ended_flow = (question, now),
                None => self.questions.push((question, now)),
            }
        }
    }

    fn look(&mut self, splices: &Splices, ways: &Ways, now: Instant) {
        let (changes, devices) = ways.changes(splices.are_any());
        if changes.are_encrypted || changes.are_ruled {
            // They hold for all bytes from now on, and the programs don't know them.
            splices.lose_all_ways();
        }
        // Rules that are loaded anew are gone for a moment.
        if std::mem::replace(&mut self.are_filtered, changes.are_filtered) && ways.are_any_filtered() {
            splices.lose_ways(|ends| ways.are_filtered(&ends));
        }
        // Where devices are unknown, so is whether a way is lost.
        let Some(devices) = devices else { return };
        // Flows of an earlier process may have lost their device while nobody was here.
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first || !changes.are_none() {
            let questions =
                splices.ways_to_ask(|own, device| changes.concern(own, device) || devices.are_lost(device));
            self.add(questions, now);
        }
        self.questions.retain_mut(|(question, since)| {
            let is_lost = match splices.way(question) {
                Way::Over => return false,
                Way::By(device) if !devices.are_lost(device) => return false,
                Way::By(device) if devices.are_big(device) || !repair::is_possible() => true,
                Way::InTheTail => {
                    *since = now;
                    return true;
                }
                // A device that is lost now may have been the way when the question left: a bridge gets the
                // addresses of its port a moment later.
                Way::By(before) | Way::Unseen { before } => {
                    if devices.is_down(before) || !repair::is_possible() {
                        // It may come up again. Without the repair keeper nobody can ask.
                        *since = now;
                        return true;
                    }
                    *question = splices.once_more(question);
                    ask(splices, question, 0);
                    now.saturating_duration_since(*since) >= PATIENCE
                }
            };
            if is_lost {
                splices.lose_way(question);
            }
            !is_lost
        });
    }
}

fn sweep(splices: &Splices, now: Instant) {
    let swept = splices.sweep(now, LINGER, repair::is_possible());
    let before = Instant::now();
    // Failing, the places rest for a second.
    if swept.ended > 0 && splices.is_filling() && wait_for_grace_period().is_ok() {
        splices.have_rested(before);
    }
}

/// Resets that are sent a second time, in the order in which they are due.
#[derive(Debug, Default)]
struct Again {
    soon: VecDeque<(Instant, Removed)>,
    /// Those of lost ways, and when they began.
    later: VecDeque<(Instant, Instant, Removed)>,
}

impl Again {
    fn reset(&mut self, removed: Removed) {
        reset(&removed);
        self.soon.push_back((Instant::now() + AGAIN, removed));
    }

    fn due(&self) -> Option<Instant> {
        let soon = self.soon.front().map(|(due, _)| *due);
        soon.into_iter().chain(self.later.front().map(|(due, ..)| *due)).min()
    }

    fn repeat(&mut self, now: Instant) {
        while let Some((_, removed)) = self.soon.pop_front_if(|(due, _)| *due <= now) {
            reset(&removed);
            if removed.has_lost_its_way() {
                self.later.push_back((now + SWEEP, now, removed));
            }
        }
        while let Some((_, began, removed)) = self.later.pop_front_if(|(due, ..)| *due <= now) {
            reset(&removed);
            if now.saturating_duration_since(began) < RESET_FOR {
                self.later.push_back((now + SWEEP, began, removed));
            }
        }
    }

    fn finish(&mut self) {
        self.later.clear();
        while let Some(due) = self.soon.front().map(|(due, _)| *due) {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.repeat(due);
        }
    }
}

/// Asks a peer whether it is still there, by the route that leads to it now.
pub fn ask(splices: &Splices, question: &Question, mark: u32) {
    let Question { own, peer, numbers, timestamp, .. } = *question;
    let prepare = |socket: BorrowedFd<'_>| {
        splices.speaks(question, socket);
        if mark != 0 {
            // If it fails, an answer may get lost.
            let _ = set_mark(socket, mark);
        }
    };
    // If it fails, the peer is asked again later.
    let _ = repair::ask_unattended(own, peer, numbers, timestamp, prepare);
}

/// Resets both peers. A peer believes only the number that it expects (RFC 5961, 3.2): the one that it has
/// acknowledged, or the end of all that was sent to it. If it is one in between, the repetition has it.
fn reset(removed: &Removed) {
    for connection in removed.connections().into_iter().flatten() {
        let [acknowledged, sent] = connection.expected;
        let last = (sent != acknowledged).then_some(sent);
        for expected in [Some(acknowledged), last].into_iter().flatten() {
            // If it fails, a new connection has the addresses already.
            let _ = repair::reset(connection.own, connection.peer, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_whose_way_changes_often_is_asked_once_at_a_time() {
        let now = Instant::now();
        let question = |port, place| Question {
            own: ([192, 0, 2, 1], port).into(),
            peer: ([192, 0, 2, 2], 80).into(),
            numbers: [1, 1],
            timestamp: None,
            place,
        };
        let mut asked = Asked::default();
        for change in 0..10 {
            let numbers = [change, change];
            let both = [question(1000, 14), question(2000, 15)].map(|one| Question { numbers, ..one });
            asked.add(both.to_vec(), now + Duration::from_secs(change.into()));
        }
        assert!(asked.questions.iter().all(|(one, since)| one.numbers == [9, 9] && *since == now));
        assert_eq!(asked.questions.len(), 2);
        // Another flow has the place.
        let later = now + Duration::from_secs(20);
        asked.add(vec![question(3000, 14)], later);
        assert_eq!(asked.questions[0], (question(3000, 14), later));
        assert_eq!(asked.questions.len(), 2);
    }
}
