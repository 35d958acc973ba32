//! The open listeners of an engine, as its owner sees them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::counters::Counters;
use crate::engine::{EngineError, ListenerSnapshot, Snapshot};
use crate::settings::{ListenerId, ListenerSettings};

/// All of them. `T` is what the engine keeps for each.
#[derive(Debug, Default)]
pub struct Listeners<T>(BTreeMap<ListenerId, OpenListener<T>>);

#[derive(Debug)]
struct OpenListener<T> {
    settings: ListenerSettings,
    addresses: Vec<SocketAddr>,
    kept: T,
}

impl<T> Listeners<T> {
    /// Checks before a listener is opened.
    ///
    /// # Errors
    /// [`EngineError::IsOpen`].
    pub fn check_vacant(&self, id: ListenerId) -> Result<(), EngineError> {
        if self.0.contains_key(&id) { Err(EngineError::IsOpen(id)) } else { Ok(()) }
    }

    /// Adds an open listener.
    pub fn add(&mut self, id: ListenerId, settings: ListenerSettings, addresses: Vec<SocketAddr>, kept: T) {
        self.0.insert(id, OpenListener { settings, addresses, kept });
    }

    /// Removes a listener that is about to close.
    ///
    /// # Errors
    /// [`EngineError::NotOpen`].
    pub fn remove(&mut self, id: ListenerId) -> Result<T, EngineError> {
        self.0.remove(&id).map(|listener| listener.kept).ok_or(EngineError::NotOpen(id))
    }

    /// What the engine keeps for a listener.
    ///
    /// # Errors
    /// [`EngineError::NotOpen`].
    pub fn kept(&self, id: ListenerId) -> Result<&T, EngineError> {
        self.0.get(&id).map(|listener| &listener.kept).ok_or(EngineError::NotOpen(id))
    }

    /// What it keeps for all.
    pub fn all_kept(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut().map(|listener| &mut listener.kept)
    }

    /// Gives a listener other settings, which its sockets can provide.
    ///
    /// # Errors
    /// [`EngineError::NotOpen`] or [`EngineError::OtherSockets`].
    pub fn set_settings(&mut self, id: ListenerId, settings: &ListenerSettings) -> Result<(), EngineError> {
        let listener = self.0.get_mut(&id).ok_or(EngineError::NotOpen(id))?;
        if let Some(what) = settings.needs_other_sockets(&listener.settings) {
            return Err(EngineError::OtherSockets { id, what });
        }
        listener.settings = settings.clone();
        Ok(())
    }

    /// The listeners, with the open sessions that `counters` know.
    #[must_use]
    pub fn snapshot(&self, counters: &Counters) -> Snapshot {
        let listeners = self.0.iter().map(|(&id, listener)| ListenerSnapshot {
            id,
            addresses: listener.addresses.clone(),
            open: counters.open(id),
        });
        Snapshot { listeners: listeners.collect() }
    }
}
