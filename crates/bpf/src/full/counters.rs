//! The counters of the programs by name: the order is that of `enum full_counter` in `c/offload/full_maps.h`.

use aya::maps::MapError;

use super::Full;
use crate::AttachError;

/// Name and meaning of each.
#[rustfmt::skip]
pub const FULL_COUNTERS: [(&str, &str); 18] = [
    ("syn_answered", "SYNs of senders, answered by a cookie"),
    ("header_taken", "headers after which the kernel asked the backend"),
    ("header_repeated", "headers that came again before the backend had answered"),
    ("begun", "sessions that the kernel has made"),
    ("to_truepeer", "connections that truepeer took over: their start leaves something to decide"),
    ("backend_said_no", "resets by backends: truepeer asks them again"),
    ("backend_differs", "backends that no longer agree to what they did: truepeer asks them"),
    ("no_place", "no room for another session of the kernel: truepeer relays it"),
    ("tuple_taken", "clients whose address and port are in use: truepeer decides"),
    ("too_early", "segments whose predecessor is missing: their senders repeat both"),
    ("not_ours", "segments with a wrong number, or damaged"),
    ("learnt_backend", "answers of backends to truepeer's own connections"),
    ("failed", "the kernel failed to do something: TCP sends again"),
    ("other_rule", "SYNs of senders that may not send, or need not send a header: truepeer decides"),
    ("backend_unknown", "SYNs while truepeer had not connected to the backend within a minute: truepeer answers"),
    ("sender_unknown", "SYNs by another device than the route to their sender, or while that was unknown: truepeer answers"),
    ("other_options", "SYNs without timestamps, SACK or window scaling, or with options for others: truepeer answers"),
    ("not_clear", "headers that are not whole, or leave something to decide: truepeer reads them"),
];

impl Full {
    /// [`FULL_COUNTERS`] since the programs were attached.
    ///
    /// # Errors
    /// If a system call fails.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, AttachError> {
        let read = |index: usize| -> Result<u64, MapError> {
            Ok(self.counters.get(&u32::try_from(index).unwrap_or(u32::MAX), 0)?.iter().sum())
        };
        let all = FULL_COUNTERS.iter().enumerate().map(|(index, (name, _))| Ok((*name, read(index)?)));
        all.collect::<Result<_, _>>().map_err(AttachError::map("reading", "tf_counters"))
    }
}
