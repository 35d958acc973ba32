//! Standard error, written to without ever waiting for who reads it: workers log, and must not stand still
//! because a pipe is full or a terminal is stopped. What finds no room, in a pipe or on a disk, is lost and
//! counted.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
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
    /// The line that says how many were lost, and why the first of them was.
    note: fn(u64, Errno) -> String,
}

/// Lines that were lost whole or in part, and not told of yet.
struct Missing {
    lines: u64,
    /// Why the first of them was lost. EAGAIN: nobody read.
    reason: Errno,
    /// Whether the output ends within a line.
    is_cut: bool,
}

impl<F: AsFd> Lines<F> {
    pub(super) fn new(output: F, note: fn(u64, Errno) -> String) -> Self {
        // It fails if the output is no pipe.
        let _ = fcntl_setpipe_size(&output, PIPE_SIZE);
        let missing = Missing { lines: 0, reason: Errno::AGAIN, is_cut: false };
        Self { output, missing: Mutex::new(missing), note }
    }

    /// Writes a line, or counts it as lost.
    pub(super) fn put(&self, line: &[u8]) {
        // Held while calls are made that don't wait.
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if missing.is_cut {
            missing.is_cut = self.write_whole(b"\n").is_err();
        }
        if missing.lines > 0 && !missing.is_cut {
            match self.write_whole((self.note)(missing.lines, missing.reason).as_bytes()) {
                Ok(()) => missing.lines = 0,
                Err(failed) => missing.is_cut = failed.written > 0,
            }
        }
        if missing.lines > 0 {
            missing.lines += 1;
        } else if let Err(Failed { reason, written }) = self.write_whole(line) {
            *missing = Missing { lines: 1, reason, is_cut: written > 0 };
        }
    }

    fn write_whole(&self, line: &[u8]) -> Result<(), Failed> {
        let mut written = 0;
        while written < line.len() {
            let piece = &line[written..line.len().min(written + PIECE)];
            match self.write_piece(piece) {
                // A disk takes what it has room for.
                Ok(0) => return Err(Failed { reason: Errno::NOSPC, written }),
                Ok(length) => written += length,
                Err(reason) => return Err(Failed { reason, written }),
            }
        }
        Ok(())
    }

    /// Writes what there is room for, without waiting.
    fn write_piece(&self, piece: &[u8]) -> Result<usize, Errno> {
        let mut polled = [PollFd::new(&self.output, PollFlags::OUT)];
        let ready = retry_on_intr(|| poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?;
        if ready == 0 {
            return Err(Errno::AGAIN);
        }
        retry_on_intr(|| rustix::io::write(&self.output, piece))
    }
}

/// Why a line was not written whole, and how many of its bytes were.
struct Failed {
    reason: Errno,
    written: usize,
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
        let note = |lost, reason: Errno| format!("{lost} lost: {}\n", reason.raw_os_error());
        (reader.into(), Lines::new(writer, note))
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
        assert!(text.ends_with("x\n3 lost: 11\nthe next\n"));
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
        let expected = format!("{}{}\n2 lost: 11\nthe next\n", "x".repeat(PIECE), "y".repeat(PIECE));
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
