//! Whole sessions of the relay on simulated sockets: the input makes the parties, and decides what happens
//! next.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| truepeer_relay::fuzzing::any_sessions(bytes));
