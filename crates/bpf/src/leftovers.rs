//! What attachments have left behind whose network namespace is gone. Programs on devices ended with those; hooks of the cgroup stay, and a
//! cgroup takes 64 of a kind.

use std::path::{Path, PathBuf};

use crate::place::{entries, rmdir, unlink};
use crate::{AttachError, Place, witness};

/// The directories of network namespaces, beside that of `place`, which are gone: see `witness` for how that is known.
pub fn left_behind(place: &Place) -> Result<Vec<PathBuf>, AttachError> {
    let all = entries(place.pins())?;
    Ok(all.into_iter().filter(|root| root != place.root() && is_gone(root)).collect())
}

/// Removes them; says how many there were. Several may do it at once.
pub fn sweep(place: &Place) -> Result<usize, AttachError> {
    let roots = left_behind(place)?;
    roots.iter().try_for_each(|root| remove(root))?;
    Ok(roots.len())
}

/// All layouts in it are of one namespace.
fn is_gone(root: &Path) -> bool {
    let links = |layout: &PathBuf| entries(&layout.join("links"));
    let pins: Result<Vec<_>, _> = entries(root).and_then(|layouts| layouts.iter().map(links).collect());
    pins.is_ok_and(|pins| witness::is_gone(&pins.concat()))
}

/// Witnesses last: whoever is interrupted leaves what can be swept again.
fn remove(root: &Path) -> Result<(), AttachError> {
    for layout in entries(root)? {
        let (links, maps) = (layout.join("links"), layout.join("maps"));
        let (witnesses, others): (Vec<_>, Vec<_>) =
            entries(&links)?.into_iter().partition(|pin| witness::is_witness(pin));
        unlink(others.into_iter().chain(entries(&maps)?).chain(witnesses))?;
        rmdir([links, maps, layout])?;
    }
    rmdir([root.to_owned()])
}
