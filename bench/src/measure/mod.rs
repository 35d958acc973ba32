//! Measurements besides the loads' own counts: time, memory, and the machine.

pub(crate) mod cpu;
pub(crate) mod latency;
pub(crate) mod memory;
