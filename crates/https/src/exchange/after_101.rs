//! The bytes of a connection whose protocol has changed.

use truepeer_origin::{ClientInfo, Dial, OriginConnection};
use truepeer_stream::pump::{ByteCounts, IdleTimeouts, Pump, PumpEnd};
use truepeer_stream::read_buffer::Buffer;
use truepeer_stream::shared_stream::SharedStream;
use truepeer_stream::stream::Connection;

use super::serve::Service;

impl<O: Dial> Service<O> {
    /// Moves bytes both ways until the end. Returns the end and the numbers of bytes up and down. `early`:
    /// bytes that the client has sent already.
    pub(crate) async fn tunnel<C: Connection>(
        &self,
        client_info: &ClientInfo,
        mut early: Buffer,
        stream: &SharedStream<C>,
        mut origin: OriginConnection<O::Stream>,
    ) -> ((u64, u64), PumpEnd) {
        let limits = &self.settings.timeouts;
        let timeouts = IdleTimeouts { both: Some(limits.tunnel), half: Some(limits.half_tunnel) };
        let counts = ByteCounts { shard: self.journal.shard(), open: client_info.open.clone() };
        let mut pump = Pump::new(early.take(), origin.buffer.take(), self.backlog.clone(), counts);
        let end = pump.run(&self.reactor, timeouts, stream, &origin.stream).await;
        (pump.delivered(), end)
    }
}
