//! A thread that cleans up after flows: it removes those that have ended, asks silent peers, and resets peers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use truepeer_bpf::{Forgotten, Question, Splices, Watched};
use truepeer_sys::repair::{self, wait_for_grace_period};

/// The time between two looks at the flows.
const SWEEP: Duration = Duration::from_secs(1);
/// The same while many places are in use.
const SWEEP_SOON: Duration = Duration::from_millis(250);
/// An ended flow stays until nothing has come for so long: retransmissions are still translated.
const LINGER: Duration = Duration::from_secs(5);
/// Each reset is repeated after so long: if the peer was still receiving, its last acknowledgement tells the right number. Linux delays
/// acknowledgements by up to 40 ms.
const AGAIN: Duration = Duration::from_millis(50);

/// The running thread. Dropping this waits until the resets that it has begun are repeated.
#[derive(Debug)]
pub struct Sweeper {
    /// `None` while it is dropped.
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Task {
    Reset(Forgotten),
    Ask(Question),
}

impl Sweeper {
    /// Starts the thread. It passes flows that were adopted from another process to `hand_out`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        splices: Arc<Splices>,
        hand_out: impl Fn(Vec<Watched>) + Send + 'static,
    ) -> io::Result<Self> {
        let (tasks, asked) = channel();
        let sweep = move || run(&splices, &asked, &hand_out);
        let thread = thread::Builder::new().name("sweep".into()).spawn(sweep)?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Resets both peers of a flow.
    pub fn reset(&self, forgotten: Forgotten) {
        self.order(Task::Reset(forgotten));
    }

    /// Asks a peer whether it is still there. Its answer is translated to the other peer; a peer that has forgotten the connection sends a reset.
    pub fn ask(&self, question: Question) {
        self.order(Task::Ask(question));
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

fn run(splices: &Arc<Splices>, tasks: &Receiver<Task>, hand_out: &impl Fn(Vec<Watched>)) {
    let mut again = Again::default();
    let mut sweep_at = Instant::now();
    loop {
        let now = Instant::now();
        if now >= sweep_at {
            splices.inherit();
            match splices.adopted() {
                none if none.is_empty() => {}
                adopted => hand_out(adopted),
            }
            sweep(splices, now);
            splices.questions().iter().for_each(|question| ask(splices, question));
            splices.unattended().into_iter().for_each(|forgotten| again.reset(forgotten));
            sweep_at = now + if splices.is_filling() { SWEEP_SOON } else { SWEEP };
        }
        again.repeat(now);
        let next = again.due().map_or(sweep_at, |due| due.min(sweep_at));
        match tasks.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(Task::Reset(forgotten)) => again.reset(forgotten),
            Ok(Task::Ask(question)) => ask(splices, &question),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return again.finish(),
        }
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
struct Again(VecDeque<(Instant, Forgotten)>);

impl Again {
    fn reset(&mut self, forgotten: Forgotten) {
        reset(&forgotten);
        self.0.push_back((Instant::now() + AGAIN, forgotten));
    }

    fn due(&self) -> Option<Instant> {
        self.0.front().map(|(due, _)| *due)
    }

    fn repeat(&mut self, now: Instant) {
        while let Some((_, forgotten)) = self.0.pop_front_if(|(due, _)| *due <= now) {
            reset(&forgotten);
        }
    }

    fn finish(&mut self) {
        while let Some(due) = self.due() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.repeat(due);
        }
    }
}

/// Asks a peer whether it is still there, by the route that leads to it now.
pub fn ask(splices: &Splices, question: &Question) {
    let Question { own, peer, numbers, timestamp, .. } = *question;
    // If it fails, the peer is asked again later.
    let _ = repair::ask_unattended(own, peer, numbers, timestamp, |socket| splices.speaks(question, socket));
}

/// Resets both peers. A peer believes only the number that it expects (RFC 5961, 3.2): the one that it has acknowledged, or the end of all that was
/// sent to it. If it is one in between, the repetition has it.
fn reset(forgotten: &Forgotten) {
    for connection in forgotten.connections().into_iter().flatten() {
        let [acknowledged, sent] = connection.expected;
        let last = (sent != acknowledged).then_some(sent);
        for expected in [Some(acknowledged), last].into_iter().flatten() {
            // If it fails, a new connection has the addresses already.
            let _ = repair::reset(connection.own, connection.peer, expected);
        }
    }
}
