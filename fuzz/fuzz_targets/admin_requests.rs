//! A connection to the admin socket, as its reader takes it: in pieces, within small limits; then the query.
//! No panic, the same in any pieces, never more than the limit kept; each escaped value is read back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use truepeer_http::{HeadEnd, HeadError, HttpLimits, RequestHead, query};

/// As `admin/connection.rs` has them.
const LIMITS: HttpLimits = HttpLimits {
    head_bytes: 8 << 10,
    target_bytes: 2 << 10,
    fields: 64,
    chunk_extension_bytes: 0,
    trailer_bytes: 0,
};

fuzz_target!(|bytes: &[u8]| {
    let (piece, bytes) = bytes.split_first().unwrap_or((&0, bytes));
    let mut head = RequestHead::default();
    let result = read(&mut head, bytes, 1 + usize::from(*piece) * 8);
    assert_eq!(result.is_ok(), read(&mut RequestHead::default(), bytes, bytes.len().max(1)).is_ok());
    let Ok(Some(length)) = result else { return };
    assert!(length <= LIMITS.head_bytes && head.target().len() <= LIMITS.target_bytes);
    assert!(head.fields.len() <= LIMITS.fields);
    let Ok(target) = std::str::from_utf8(head.target()) else { return };
    let (_, query) = target.split_once('?').unwrap_or((target, ""));
    for (name, value) in query::pairs(query) {
        assert!(query.contains(name) && value.len() <= query.len() * 3);
        let escaped: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let again: Vec<_> = query::pairs(&format!("{name}={escaped}")).map(|(_, value)| value).collect();
        assert_eq!(again, [value]);
    }
});

/// As the admin's connection reads: what has come so far, whenever more has come.
fn read(head: &mut RequestHead, bytes: &[u8], step: usize) -> Result<Option<usize>, HeadError> {
    let mut end = HeadEnd::default();
    for had in (0..bytes.len()).step_by(step).skip(1).chain([bytes.len()]) {
        if let Some(length) = head.read(&bytes[..had], &mut end, &LIMITS)? {
            return Ok(Some(length));
        }
    }
    Ok(None)
}
