//! Loading programs against the tables that are pinned at a place, or making those.

use aya::programs::Program;
use aya::{Ebpf, EbpfLoader};

use crate::programs::Object;
use crate::{AttachError, Place};

/// Programs of one object, ready to be attached; its tables stay pinned when it is dropped.
pub(crate) struct Loaded {
    object: Object,
    programs: Ebpf,
}

/// A variable of a program, set before it is loaded.
pub(crate) struct Global<T> {
    pub(crate) name: &'static str,
    pub(crate) value: T,
}

/// Loads an object with its tables at `place`.
pub(crate) fn load<T: aya::Pod>(
    object: Object,
    place: &Place,
    global: Option<Global<T>>,
) -> Result<Loaded, AttachError> {
    let mut loader = EbpfLoader::new();
    loader.default_map_pin_directory(place.maps());
    if let Some(global) = &global {
        loader.override_global(global.name, &global.value, true);
    }
    let programs = loader.load(object.bytes()?).map_err(AttachError::load(object.name))?;
    Ok(Loaded { object, programs })
}

impl Loaded {
    /// A program of the object, by its function's name.
    ///
    /// # Panics
    /// If there is none: the objects are built with this crate.
    pub(crate) fn program(&mut self, name: &'static str) -> &mut Program {
        let object = self.object.name;
        self.programs.program_mut(name).unwrap_or_else(|| panic!("no program {name} in {object}"))
    }
}
