//! `libtruepeer.so`: stands between a program and its C library, so that `accept()` and `getpeername()` name the client.
//!
//! ```text
//! the program                            this library                                    the kernel
//! accept() ──────────▶ hooks ─▶ accepting: accept4 ───────────────────────────────────▶ connection, sender
//!                                 │ look ── Named ─▶ take, Names ─▶ returned
//!                                 └── NeedMore ─▶ waiter (a thread) ─▶ ready (a unix socket) ─▶ WakeUp::ring ─▶ the listener
//! getpeername() ─────▶ hooks ─▶ peer: SO_COOKIE, Names
//! select(), poll() ──▶ hooks ─▶ hold: what the thread waits for besides, should the next accept() have nothing for it
//! ```
//! - `hooks` is the border to C: nothing is decided there, no panic passes it. Every other module is safe to call as it is.
//! - Nothing here calls a function of the C library that is hooked: rustix speaks to the kernel itself.
//! - The way of a connection whose header is there takes no lock and no memory; so it may be interrupted, by a signal or a
//!   fork, anywhere. A late header starts the waiter, a thread, which `accept()` in a signal handler must not do: POSIX permits
//!   such a program, none is known.
//! - A number that the program wants for one of its own descriptors (dup2) is left to it: `moving`.
//! - A forked child has no waiter, closes its copies of waiting connections, and starts its own when it needs one.
#![cfg_attr(
    test,
    allow(dead_code, reason = "the hooks are not in the tests, whose own sockets they would take")
)]

mod accepting;
#[cfg(not(test))]
mod closing_hooks;
mod connecting;
mod datagrams;
mod family;
mod hold;
#[cfg(not(test))]
mod hooks;
mod listeners;
mod movable;
mod moving;
mod next;
mod ours;
mod parts;
mod peer;
mod probe;
mod ready;
#[cfg(not(test))]
mod receiving_hooks;
mod role;
mod say;
#[cfg(not(test))]
mod sending_hooks;
mod waiter;
#[cfg(not(test))]
mod waiting_hooks;
