//! For tests: the programs run by BPF_PROG_TEST_RUN, and what else a test needs of them. Nothing here is part
//! of a release.

pub mod bans;
pub mod header;
pub mod other_programs;
pub mod splice;
pub mod tcp;
pub mod udp;
