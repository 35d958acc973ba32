//! Errors that name the system call.

use rustix::io::Errno;

/// A system call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {errno}")]
pub struct CallError {
    /// The call, with the option if the call serves many purposes: `setsockopt(IP_TRANSPARENT)`.
    pub call: &'static str,
    /// The kernel's error.
    pub errno: Errno,
}

/// Gives a failed call its name.
pub trait Named<T> {
    /// Turns the bare error number of `call` into a [`CallError`].
    ///
    /// # Errors
    /// The same failure, named.
    fn named(self, call: &'static str) -> Result<T, CallError>;
}

impl<T> Named<T> for Result<T, Errno> {
    fn named(self, call: &'static str) -> Result<T, CallError> {
        self.map_err(|errno| CallError { call, errno })
    }
}

impl<T> Named<T> for std::io::Result<T> {
    fn named(self, call: &'static str) -> Result<T, CallError> {
        self.map_err(|error| CallError { call, errno: Errno::from_io_error(&error).unwrap_or(Errno::IO) })
    }
}
