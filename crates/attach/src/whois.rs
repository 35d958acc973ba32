//! Who is behind an address of an attached port.

use std::path::Path;

use anyhow::Result;
use truepeer_bpf::{Connection, connections};
use truepeer_policy::AskedAddress;

use crate::bans::places;

/// What the kernel's tables of this machine know.
#[derive(Debug)]
pub enum Looked {
    /// Nothing is attached.
    Nothing,
    /// This user may not look.
    Hidden,
    /// The connections and flows with this client or sender, of every network namespace.
    Found(Vec<Connection>),
}

/// Looks.
///
/// # Errors
/// A table can't be read.
pub fn connections_with(pins: Option<&Path>, asked: AskedAddress) -> Result<Looked> {
    let Some(places) = places(pins)? else { return Ok(Looked::Hidden) };
    let (mut all, mut is_attached) = (Vec::new(), false);
    for place in places {
        let found = connections(&place, asked)?;
        is_attached |= found.is_some();
        all.extend(found.into_iter().flatten());
    }
    Ok(if is_attached { Looked::Found(all) } else { Looked::Nothing })
}
