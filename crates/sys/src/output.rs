//! What commands print.

use std::io::{self, ErrorKind, Write};

/// Standard output whose reader may leave early. `truepeer attach status | head` is not a failure, and a
/// command finishes its work even if nobody reads its output.
pub fn stdout() -> WhileRead<io::Stdout> {
    WhileRead { out: io::stdout() }
}

/// Writes a line to standard error. If that is closed or full, the line is lost, and the program goes on:
/// `eprintln!` would panic.
#[macro_export]
macro_rules! tell {
    ($($line:tt)+) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($line)+);
    }};
}
/// Reports success for a write that no reader is left to receive (EPIPE).
#[derive(Debug)]
pub struct WhileRead<W> {
    out: W,
}

impl<W: Write> Write for WhileRead<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        unless_hung_up(self.out.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        unless_hung_up(self.out.flush(), ())
    }
}

fn unless_hung_up<T>(result: io::Result<T>, otherwise: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(otherwise),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn only_a_closed_pipe_is_ignored() {
        let mut hung_up = WhileRead { out: Failing(ErrorKind::BrokenPipe) };
        assert!(writeln!(hung_up, "unread").is_ok() && hung_up.flush().is_ok());
        let mut full = WhileRead { out: Failing(ErrorKind::StorageFull) };
        assert!(writeln!(full, "unwritten").is_err() && full.flush().is_err());
    }
}
