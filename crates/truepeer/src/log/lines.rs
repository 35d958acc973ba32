//! Standard error, written to without ever waiting for who reads it: workers log, and must not stand still because a
//! pipe is full or a terminal is stopped. What finds no room is lost and counted.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::fcntl_setpipe_size;

/// How much, in bytes, a pipe takes without waiting if poll(2) calls it writable: a page of the smallest size
/// (pipe(7)). Sockets and terminals call themselves writable if they take more.
const PIECE: usize = 4096;

/// How much, in bytes, a pipe is asked to hold instead of 64 KiB: some 5,000 lines while its reader is busy
/// elsewhere. It is what the kernel allows without privileges (/proc/sys/fs/pipe-max-size).
const PIPE_SIZE: usize = 1 << 20;

/// Where lines go, and how many were lost since the last that was written.
pub(super) struct Lines<F> {
    output: F,
    missing: Mutex<Missing>,
    /// The line that says how many were lost.
    note: fn(u64) -> String,
}

#[derive(Default)]
struct Missing {
    /// Lines that were lost whole or in part, and not told of yet.
    lines: u64,
    /// Whether the output ends within a line.
    is_cut: bool,
}

impl<F: AsFd> Lines<F> {
    pub(super) fn new(output: F, note: fn(u64) -> String) -> Self {
        // It fails if the output is no pipe.
        let _ = fcntl_setpipe_size(&output, PIPE_SIZE);
        Self { output, missing: Mutex::default(), note }
    }

    /// Writes a line, or counts it as lost.
    pub(super) fn put(&self, line: &[u8]) {
        // Held while two calls are made that don't wait.
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if missing.is_cut {
            missing.is_cut = !self.is_written(b"\n");
        }
        if missing.lines > 0 && !missing.is_cut && self.is_written((self.note)(missing.lines).as_bytes()) {
            missing.lines = 0;
        }
        if missing.lines > 0 {
            missing.lines += 1;
            return;
        }
        for (index, piece) in line.chunks(PIECE).enumerate() {
            if !self.is_written(piece) {
                *missing = Missing { lines: 1, is_cut: index > 0 };
                return;
            }
        }
    }

    /// Whether there was room. Another failure (a full device, a pipe without a reader) loses the bytes in silence:
    /// nobody is there to be told.
    fn is_written(&self, piece: &[u8]) -> bool {
        let mut polled = [PollFd::new(&self.output, PollFlags::OUT)];
        let is_full = loop {
            match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Ok(ready) => break ready == 0,
                Err(Errno::INTR) => {}
                Err(_) => break false,
            }
        };
        !is_full && rustix::io::write(&self.output, piece) != Err(Errno::AGAIN)
    }
}

/// Each call is one line.
impl<F: AsFd> Write for &Lines<F> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    fn lines() -> (std::fs::File, Lines<OwnedFd>) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        (reader.into(), Lines::new(writer, |lost| format!("{lost} lost\n")))
    }

    fn read_all(mut reader: std::fs::File, lines: Lines<OwnedFd>) -> String {
        drop(lines);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn lines_that_find_no_room_are_counted_and_told_of_before_the_next() {
        let (mut reader, lines) = lines();
        let line = [&[b'x'; PIECE - 1][..], b"\n"].concat();
        let written = PIPE_SIZE / PIECE;
        for _ in 0..written + 3 {
            lines.put(&line);
        }
        let mut taken = vec![0; 2 * PIECE];
        reader.read_exact(&mut taken).unwrap();
        lines.put(b"the next\n");
        let text = read_all(reader, lines);
        assert_eq!(text.lines().filter(|line| line.starts_with('x')).count(), written - 2);
        assert!(text.ends_with("x\n3 lost\nthe next\n"));
    }

    #[test]
    fn a_line_that_was_cut_ends_before_the_next() {
        let (mut reader, lines) = lines();
        for _ in 0..PIPE_SIZE / PIECE - 1 {
            lines.put(&[b'x'; PIECE]);
        }
        lines.put(&[b'y'; 2 * PIECE]);
        lines.put(b"lost\n");
        reader.read_exact(&mut vec![0; PIPE_SIZE - 2 * PIECE]).unwrap();
        lines.put(b"the next\n");
        let text = read_all(reader, lines);
        let expected = format!("{}{}\n2 lost\nthe next\n", "x".repeat(PIECE), "y".repeat(PIECE));
        assert!(text == expected, "{} bytes, ending {:?}", text.len(), &text[text.len() - 60..]);
    }

    #[test]
    fn a_line_of_any_length_is_written_whole_where_there_is_room() {
        let (reader, lines) = lines();
        let line = "z".repeat(3 * PIECE + 5) + "\n";
        (&lines).write_all(line.as_bytes()).unwrap();
        assert_eq!(read_all(reader, lines), line);
    }
}
