//! A message's parts, with one of ours in front.

use libc::iovec;
use rustix::io::Errno;

/// So many parts of a message need no memory.
const FEW: usize = 16;
/// The kernel's UIO_MAXIOV, less the header's part.
const MOST: usize = 1023;

/// Puts a part before others.
///
/// # Errors
/// EMSGSIZE for more parts than the kernel takes.
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
