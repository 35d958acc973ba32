//! Redis without persistence.

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;

/// Redis. `CLIENT INFO` returns the address that it sees.
#[derive(Debug, Clone, Copy)]
pub struct Redis;

impl Redis {
    /// Starts it on one port of several addresses, in the calling thread's network namespace.
    pub fn start(bed: &Bed, addresses: &[&str], port: u16) -> anyhow::Result<Running> {
        Redis::start_with(bed, addresses, port, |program| program)
    }

    /// The same; the caller can change how the program is run.
    pub fn start_with(
        bed: &Bed,
        addresses: &[&str],
        port: u16,
        adjust: impl FnOnce(Program) -> Program,
    ) -> anyhow::Result<Running> {
        let options = ["--save", "", "--appendonly", "no", "--protected-mode", "no", "--port"];
        let program =
            Program::new("redis-server").args(options).arg(port.to_string()).arg("--bind").args(addresses);
        let redis = adjust(program).start(bed)?;
        redis.wait_for_log("Ready to accept connections")?;
        Ok(redis)
    }
}
