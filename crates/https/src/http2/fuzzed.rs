//! Any client's frames.

use crate::fuzzing::Given;

/// Most random bytes make one long frame. So a length is given for each, and the rest of its header as it is.
pub(super) fn framed(bytes: &[u8]) -> Vec<u8> {
    let (mut given, mut sent) = (Given(bytes), Vec::new());
    while !given.is_empty() {
        let head = given.bytes(4);
        let &[kind, flags, stream, length] = head else {
            sent.extend_from_slice(head);
            break;
        };
        let payload = given.bytes(length.into());
        // Sometimes the header tells a length that isn't true.
        let told = if flags & 0x40 == 0 { payload.len() } else { usize::from(length) };
        let [.., high, low] = told.to_be_bytes();
        sent.extend_from_slice(&[0, high, low, kind % 10, flags, 0, 0, 0, stream & 31]);
        sent.extend_from_slice(payload);
    }
    sent
}
