//! Removes pins of network namespaces that no longer exist. Programs on devices ended with the namespace.
//! Hooks of the cgroup stay, and a cgroup can hold 64 of a kind.

use std::path::{Path, PathBuf};

use crate::error::AttachError;
use crate::place::{Place, entries, rmdir, unlink};
use crate::{trust, witness};

/// The directories of vanished network namespaces beside that of `place`. `witness` explains how they are
/// recognised.
pub fn left_behind(place: &Place) -> Result<Vec<PathBuf>, AttachError> {
    Ok(gone(place.pins())?.into_iter().filter(|root| root != place.root()).collect())
}

/// The directories of all vanished network namespaces.
pub fn gone(pins: &Path) -> Result<Vec<PathBuf>, AttachError> {
    trust::check(pins)?;
    let is_trusted = |root: &PathBuf| trust::check(root).is_ok();
    Ok(entries(pins)?.into_iter().filter(|root| is_trusted(root) && is_gone(root)).collect())
}

impl Place {
    /// The places of all network namespaces that exist and have something attached by this version, by their
    /// cookies.
    pub fn all(pins: &Path) -> Result<Vec<Self>, AttachError> {
        let mut all = Self::of_each_version(pins)?;
        all.retain(|place| place.exists().unwrap_or(true));
        Ok(all)
    }

    /// Those where another version has attached something.
    pub fn of_other_versions(pins: &Path) -> Result<Vec<Self>, AttachError> {
        let mut all = Self::of_each_version(pins)?;
        all.retain(|place| matches!(place.check_version(), Err(AttachError::OtherLayout { .. })));
        Ok(all)
    }

    fn of_each_version(pins: &Path) -> Result<Vec<Self>, AttachError> {
        let gone = gone(pins)?;
        let is_trusted = |root: &PathBuf| trust::check(root).is_ok();
        let roots = entries(pins)?.into_iter().filter(|root| !gone.contains(root) && is_trusted(root));
        let cookies = roots.filter_map(|root| root.file_name()?.to_str()?.parse().ok());
        let mut cookies: Vec<u64> = cookies.collect();
        cookies.sort_unstable();
        Ok(cookies.into_iter().map(|cookie| Self::of(pins, cookie)).collect())
    }
}

/// Removes them and returns how many there were. Several processes may do so at the same time.
pub fn sweep(place: &Place) -> Result<usize, AttachError> {
    let roots = left_behind(place)?;
    roots.iter().try_for_each(|root| remove(root))?;
    Ok(roots.len())
}

/// All layouts in it belong to one namespace.
fn is_gone(root: &Path) -> bool {
    let links = |layout: &PathBuf| entries(&layout.join("links"));
    let pins: Result<Vec<_>, _> = entries(root).and_then(|layouts| layouts.iter().map(links).collect());
    pins.is_ok_and(|pins| witness::is_gone(&pins.concat()))
}

/// Witnesses last: after an interruption the rest can still be recognised.
fn remove(root: &Path) -> Result<(), AttachError> {
    for layout in entries(root)? {
        let (links, maps) = (layout.join("links"), layout.join("maps"));
        let (witnesses, others): (Vec<_>, Vec<_>) =
            entries(&links)?.into_iter().partition(|pin| witness::is_witness(pin));
        unlink(others.into_iter().chain(entries(&maps)?).chain(witnesses))?;
        let shares = layout.join("shares");
        rmdir(entries(&shares)?.into_iter().chain([shares, links, maps, layout]))?;
    }
    rmdir([root.to_owned()])
}
