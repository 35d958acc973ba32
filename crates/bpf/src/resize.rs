//! Gives tables another size, when something is attached again.
//!
//! A table can't grow, so another one takes its place under the same name, and all programs are loaded with
//! it and replaced. What old programs wrote into the old table would be lost. So the tables of TCP are only
//! exchanged while no connection needs them; SYNs are dropped meanwhile, and their senders repeat them. A
//! forgotten UDP flow is learnt again from its client's next datagram.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Map, MapData};

use crate::error::AttachError;
use crate::layout::{FlowKey, RawFlow, RawPending};
use crate::place::{Place, entries, unlink};
use crate::sizes::{Sizes, size_of};
use crate::status;

/// The pins of tables that are about to be replaced. A dot is not allowed there.
const ASIDE: &str = "-aside";

/// The old tables of a place, under other names.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    tcp: Vec<PathBuf>,
    udp: Vec<PathBuf>,
}

impl Aside {
    /// Puts the tables aside that have another size. The programs that are attached go on with them.
    pub(crate) fn put(place: &Place, sizes: &Sizes) -> Result<Self, AttachError> {
        put_back_all(place)?;
        let mut aside = Self::default();
        for (name, size) in sizes.tcp() {
            move_aside(place, name, *size, &mut aside.tcp)?;
        }
        for (name, size) in sizes.udp() {
            move_aside(place, name, *size, &mut aside.udp)?;
        }
        Ok(aside)
    }

    /// Whether any table has been put aside.
    pub(crate) fn is_any(&self) -> bool {
        !self.tcp.is_empty() || !self.udp.is_empty()
    }

    /// Whether tables of TCP are among them.
    pub(crate) fn has_tcp(&self) -> bool {
        !self.tcp.is_empty()
    }

    /// Whether connections need the tables of TCP that are to be replaced.
    pub(crate) fn are_needed(&self) -> Result<bool, AttachError> {
        for pin in &self.tcp {
            let map = || MapData::from_pin(pin).map_err(AttachError::map("opening", "a table aside"));
            let is_needed = match name_of(pin) {
                "tp_flows" => {
                    let flows: aya::maps::HashMap<_, FlowKey, RawFlow> =
                        Map::HashMap(map()?).try_into().map_err(AttachError::map("opening", "tp_flows"))?;
                    flows.keys().next().is_some()
                }
                "tp_pending" => {
                    let pending: aya::maps::HashMap<_, FlowKey, RawPending> = Map::LruHashMap(map()?)
                        .try_into()
                        .map_err(AttachError::map("opening", "tp_pending"))?;
                    !status::live(pending.iter().flatten().collect()).is_empty()
                }
                _ => false,
            };
            if is_needed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The tables of TCP stay as they were. Load the programs again.
    pub(crate) fn put_tcp_back(&mut self) -> Result<(), AttachError> {
        self.tcp.drain(..).try_for_each(put_back)
    }

    /// All stay as they were.
    pub(crate) fn put_back(mut self) -> Result<(), AttachError> {
        self.put_tcp_back()?;
        self.udp.drain(..).try_for_each(put_back)
    }

    /// No program needs them any more.
    pub(crate) fn remove(self) -> Result<(), AttachError> {
        unlink(self.tcp.into_iter().chain(self.udp))
    }
}

/// After an interruption. Until programs are attached, the old tables are those in use.
fn put_back_all(place: &Place) -> Result<(), AttachError> {
    let left = entries(&place.maps())?;
    left.into_iter().filter(|pin| is_aside(pin)).try_for_each(put_back)
}

fn move_aside(place: &Place, name: &str, size: u32, aside: &mut Vec<PathBuf>) -> Result<(), AttachError> {
    let pin = place.maps().join(name);
    if !pin.try_exists().unwrap_or(true) {
        return Ok(());
    }
    if size_of(place, name)? == size {
        return Ok(());
    }
    let other = place.maps().join(format!("{name}{ASIDE}"));
    fs::rename(&pin, &other).map_err(AttachError::file("rename", &pin))?;
    aside.push(other);
    Ok(())
}

fn put_back(aside: PathBuf) -> Result<(), AttachError> {
    let pin = aside.with_file_name(name_of(&aside));
    match fs::rename(&aside, &pin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(AttachError::file("rename", &aside)(error))
        }
        _ => Ok(()),
    }
}

fn file_name(pin: &Path) -> &str {
    pin.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn name_of(aside: &Path) -> &str {
    file_name(aside).trim_end_matches(ASIDE)
}

fn is_aside(pin: &Path) -> bool {
    file_name(pin).ends_with(ASIDE)
}
