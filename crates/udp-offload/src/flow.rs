//! One flow.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::layout::{BACKEND, Key, SENDER};
use crate::table::FlowTable;

/// Datagrams of one end that the kernel has sent on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many.
    pub datagrams: u64,
    /// Their payloads, without headers.
    pub bytes: u64,
}

/// A flow in the tables. Dropped, it is user space's again, and forgotten here.
#[derive(Debug)]
pub struct Offload {
    table: Arc<FlowTable>,
    place: u32,
    keys: [Key; 2],
}

impl Offload {
    pub(crate) fn new(table: Arc<FlowTable>, place: u32, keys: [Key; 2]) -> Self {
        Self { table, place, keys }
    }

    /// From now on the kernel sends datagrams on, as soon as the next ones through the sockets have shown by
    /// which devices. `mtus`: of the paths to sender and backend.
    pub fn send_on(&self, mtus: [u32; 2]) {
        let flow = self.table.at(self.place);
        for (end, mtu) in flow.ends.iter().zip(mtus) {
            end.device.store(0, Ordering::Relaxed);
            end.mtu.store(mtu, Ordering::Relaxed);
        }
        flow.is_here.store(1, Ordering::Release);
    }

    /// All further datagrams pass to user space.
    pub fn recall(&self) {
        self.table.at(self.place).is_here.store(0, Ordering::Release);
    }

    /// Whether the kernel may send datagrams on.
    #[must_use]
    pub fn is_sent_on(&self) -> bool {
        self.table.at(self.place).is_here.load(Ordering::Acquire) != 0
    }

    /// Whether it does so with those of both ends.
    #[must_use]
    pub fn has_left(&self) -> bool {
        let flow = self.table.at(self.place);
        self.is_sent_on() && flow.ends.iter().any(|end| end.device.load(Ordering::Relaxed) != 0)
    }

    /// What it has sent on: from the sender, from the backend.
    #[must_use]
    pub fn moved(&self) -> [Moved; 2] {
        self.table.at(self.place).moved.each_ref().map(|moved| Moved {
            datagrams: moved.datagrams.load(Ordering::Relaxed),
            bytes: moved.bytes.load(Ordering::Relaxed),
        })
    }

    /// The port that the sender used last.
    #[must_use]
    pub fn sender_port(&self) -> u16 {
        self.table.at(self.place).ends[SENDER].remote_port()
    }

    /// The sender has used another port, in a datagram that passed to user space.
    pub fn set_sender_port(&self, port: u16) {
        self.table.at(self.place).ends[SENDER].set_remote_port(port);
    }

    /// The path to the backend has a smaller MTU.
    pub fn set_backend_mtu(&self, mtu: u32) {
        self.table.at(self.place).ends[BACKEND].mtu.store(mtu, Ordering::Relaxed);
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.recall();
        self.table.end(self.place, &self.keys);
    }
}
