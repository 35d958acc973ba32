//! The border between the relay and what moves sessions out of user space: the kernel's programs
//! ([`crate::Splicing`]), or the simulator's.

use std::time::Duration;

use truepeer_splice::{Connections, Reason, Stage};

/// Moves sessions out of user space. Index 0 of an array is downstream, 1 is upstream.
pub trait Offload {
    /// A session's socket.
    type Socket;
    /// A session on its way. It can still stay.
    type Armed;
    /// A session that has left.
    type Flow: Flow;

    /// Begins to hand a session over. `age`: how old the session is.
    ///
    /// # Errors
    /// Why it stays in user space.
    fn arm(&self, sockets: [&Self::Socket; 2], age: Duration) -> Result<Self::Armed, Reason>;

    /// What the hand-over asks of the session's connections, for one turn.
    fn connections<'a>(armed: &'a mut Self::Armed, sockets: [&'a Self::Socket; 2]) -> impl Connections + 'a;

    /// Bytes of both streams since the session began; 0 before the cut.
    fn stream_bytes(armed: &Self::Armed) -> u64;

    /// The session stays: its sockets are as they were. `was_held`: its peers were offered less than its
    /// sockets take.
    fn give_up(armed: Self::Armed, sockets: [&Self::Socket; 2], was_held: bool);

    /// Closes the sockets, and says nothing to the peers.
    fn release(armed: Self::Armed, sockets: [Self::Socket; 2]) -> Self::Flow;

    /// Whether [`Self::ask`] can work.
    fn can_ask(&self) -> bool;

    /// Asks the peer of this side whether it still has the connection. `mark`: that of packets to backends.
    fn ask(&self, flow: &Self::Flow, side: usize, mark: u32);

    /// Ends a session that has left, and resets both peers.
    fn reset(&self, flow: Self::Flow);
}

/// A session that has left user space. Dropped, it goes on without this process.
pub trait Flow {
    /// Where it stands.
    fn stage(&self) -> Stage;
    /// Bytes of each peer's stream, whoever has carried them.
    fn bytes(&self) -> [u64; 2];
    /// Translated segments of each peer.
    fn segments(&self) -> [u64; 2];
    /// The side whose peer has reset the connection, if one has.
    fn reset_by(&self) -> Option<usize>;
    /// Whether a peer can't be reached any more.
    fn has_lost_its_way(&self) -> bool;
}
