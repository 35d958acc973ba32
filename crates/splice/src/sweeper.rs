//! What is left of flows is cleared away by a thread of its own: it makes room where they have ended, and resets peers.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use truepeer_bpf::{Forgotten, Question, Splices, Watched};
use truepeer_sys::repair;

/// How often flows are looked at.
const SWEEP: Duration = Duration::from_secs(1);
/// Likewise while places are short.
const SWEEP_SOON: Duration = Duration::from_millis(250);
/// An ended flow still translates for so long what is sent again.
const LINGER: Duration = Duration::from_secs(5);
/// A peer that was still receiving when it was reset is reset once more after so long. Linux delays an acknowledgement by up to 40 ms.
const AGAIN: Duration = Duration::from_millis(50);

/// Clears away what is left of flows. Dropped, it first finishes the resets that it has begun.
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
    /// Starts the thread. It gives the flows to `hand_out` that were adopted from another process.
    ///
    /// # Errors
    /// No thread could be started.
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

    /// Asks a peer whether it is still there. It answers to the other one, or by a reset.
    pub fn ask(&self, question: Question) {
        self.order(Task::Ask(question));
    }

    fn order(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // Err: the thread has ended by a panic. The peers notice by their own time-outs.
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.tasks = None;
        // Err: it has ended by a panic, which is in the log.
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
            splices.sweep(now, LINGER);
            splices.questions().iter().for_each(|question| ask(splices, question));
            splices.unattended().into_iter().for_each(|forgotten| again.reset(forgotten));
            sweep_at = now + if splices.is_short_of_places() { SWEEP_SOON } else { SWEEP };
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
    // Failing: it is asked again.
    let _ = repair::ask_unattended(own, peer, numbers, timestamp, |socket| splices.speaks(question, socket));
}

/// A peer believes only the number that it expects (RFC 5961, 3.2). It is what the peer has acknowledged, or what follows all that was sent to
/// it, or something between, which is known a moment later.
fn reset(forgotten: &Forgotten) {
    for connection in forgotten.connections().into_iter().flatten() {
        let [acknowledged, sent] = connection.expected;
        let last = (sent != acknowledged).then_some(sent);
        for expected in [Some(acknowledged), last].into_iter().flatten() {
            // Failing: a new connection has the addresses already.
            let _ = repair::reset(connection.own, connection.peer, expected);
        }
    }
}
