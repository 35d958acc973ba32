//! A progress line with the remaining time. On a terminal it overwrites itself.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub(crate) struct Progress {
    start: Instant,
    all: usize,
    done: usize,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(all: usize) -> Self {
        Self { start: Instant::now(), all, done: 0, terminal: std::io::stderr().is_terminal() }
    }

    /// The next step starts.
    pub(crate) fn step(&mut self, what: &str) {
        let left = match u32::try_from(self.done) {
            Ok(done) if done > 0 => {
                written(self.start.elapsed() / done * u32::try_from(self.all - self.done).unwrap_or(0))
            }
            _ => "?:??".to_owned(),
        };
        self.done += 1;
        self.show(&format!("[{}/{}, {left} left] {what}", self.done, self.all));
    }

    pub(crate) fn end(&self) {
        self.show(&format!("{} measurements in {}", self.done, written(self.start.elapsed())));
        if self.terminal {
            eprintln!();
        }
    }

    fn show(&self, line: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{line}");
            // A closed terminal shows nothing.
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }
}

fn written(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}
