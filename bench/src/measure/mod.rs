//! What is measured beside the loads' own counts: time, memory, and the machine itself.

pub(crate) mod cpu;
pub(crate) mod latency;
pub(crate) mod memory;
