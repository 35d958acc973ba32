//! Prepends a part to a message's parts.

use libc::iovec;
use rustix::io::Errno;

/// Up to this many parts need no allocation.
const FEW: usize = 16;
/// The kernel's UIO_MAXIOV, minus the header's part.
const MOST: usize = 1023;

/// Prepends a part.
///
/// # Errors
/// EMSGSIZE for more parts than the kernel accepts.
pub(crate) fn with_first<T>(
    first: iovec,
    parts: &[iovec],
    work: impl FnOnce(&mut [iovec]) -> T,
) -> Result<T, Errno> {
    if parts.len() > MOST {
        return Err(Errno::MSGSIZE);
    }
    let mut few = [first; FEW + 1];
    let mut many = Vec::new();
    Ok(if parts.len() <= FEW {
        few[1..=parts.len()].copy_from_slice(parts);
        work(&mut few[..=parts.len()])
    } else {
        many.push(first);
        many.extend_from_slice(parts);
        work(&mut many)
    })
}
