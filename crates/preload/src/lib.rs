//! `libtruepeer.so`: hooks a program's C library calls, so that `accept()` and `getpeername()` return the
//! client.
//!
//! ```text
//! the program            this library                                                   the kernel
//! accept() ──────────▶ hooks ─▶ accepting: accept4 ─────────────────────────────────▶ connection, sender
//!                       │ look ── Named ─▶ take, Names ─▶ returned
//!                       └── NeedMore ─▶ waiter (a thread) ─▶ ready (a unix socket)
//!                                         └─▶ WakeUp::ring ─▶ the listener; or bell, reminders
//! getpeername() ─────▶ hooks ─▶ peer: SO_COOKIE, Names
//! select(), poll() ──▶ hooks ─▶ hold: the thread's other descriptors, if the next accept() finds nothing
//! connect() ─────────▶ hooks ─▶ connecting: the header with the SYN
//! ```
//! - `hooks` is the border to C: it makes no decisions, and no panic passes it. All other modules are safe.
//! - Nothing here calls a hooked function of the C library: rustix makes its own system calls.
//! - A connection whose header has arrived takes no lock and allocates nothing, so a signal or a fork may
//!   interrupt it anywhere. A late header starts the waiter, a thread. An `accept()` in a signal handler must
//!   not do that. POSIX permits such a program, but none is known.
//! - If the program wants a number that a descriptor of the library has (dup2), the library moves its
//!   descriptor: `moving`.
//! - A forked child has no waiter. It closes its copies of waiting connections, and starts its own waiter
//!   when it needs one: `forks`.
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "tests are built without the hooks, which would affect the tests' own sockets"
    )
)]

#[cfg(not(test))]
mod abi;
mod accepting;
mod advice;
mod bell;
#[cfg(not(test))]
mod closing_hooks;
mod connecting;
mod family;
mod forks;
mod hold;
#[cfg(not(test))]
mod hooks;
mod listeners;
mod movable;
mod moving;
mod ours;
mod peer;
mod probe;
mod ready;
#[cfg(not(test))]
mod rings;
mod role;
mod say;
mod settling;
mod supervised;
mod waiter;
#[cfg(not(test))]
mod waiting_hooks;
