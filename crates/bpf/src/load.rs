//! Loads programs with the tables pinned at a place, or creates those tables.

use aya::programs::Program;
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader};
use typed_arena::Arena;

use crate::again;
use crate::cgroup::Named;
use crate::error::AttachError;
use crate::place::Place;
use crate::programs::Object;

/// The programs of one object, ready to be attached. Its tables stay pinned when it is dropped.
pub(crate) struct Loaded {
    object: Object,
    programs: Ebpf,
}

/// A variable of a program, set before loading. Programs without the variable ignore it.
#[derive(Debug, Clone)]
pub(crate) enum Global {
    /// The length of the link header.
    LinkHeaderLen(u32),
    /// Whether rp_filter is strict on the device.
    HasStrictRpFilter(u32),
    /// The cookie of the network namespace.
    NetnsCookie(u64),
    /// A bit for each TCP port that is certainly not attached (`c/attach/ports.h`).
    OtherPorts(Box<[u64; PORT_WORDS]>),
    /// Whether a UDP port is attached.
    HasUdp(u32),
    /// How many slots there are for answers (`c/attach/udp_slots.h`).
    Slots(u32),
    /// Whose connections are meant (`c/attach/cgroup.h`).
    Named(Box<Named>),
    /// Whether hooks are below the root of the cgroups.
    HasHooksInside(u32),
    /// On copies that come in once more (`c/offload/tail.h`).
    CopyMark(u32),
}

/// Of 64 bits.
const PORT_WORDS: usize = 1024;

impl Global {
    /// All ports but these.
    pub(crate) fn other_ports(attached: impl IntoIterator<Item = u16>) -> Self {
        let mut others = Box::new([u64::MAX; PORT_WORDS]);
        for port in attached {
            others[usize::from(port / 64)] &= !(1 << (port % 64));
        }
        Self::OtherPorts(others)
    }

    fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        match self {
            Self::LinkHeaderLen(len) => loader.override_global("link_header_len", len, false),
            Self::HasStrictRpFilter(is) => loader.override_global("has_strict_rp_filter", is, false),
            Self::NetnsCookie(cookie) => loader.override_global("netns_cookie", cookie, false),
            Self::OtherPorts(bits) => loader.override_global("other_ports", &bits[..], false),
            Self::HasUdp(has) => loader.override_global("has_udp", has, false),
            Self::Slots(count) => loader.override_global("slots", count, false),
            Self::Named(named) => loader
                .override_global("named_cgroups", &named.way[..], false)
                .override_global("named_levels", &named.levels, false)
                .override_global("youngest_cgroup", &named.youngest, false),
            Self::HasHooksInside(has) => loader.override_global("has_hooks_inside", has, false),
            Self::CopyMark(mark) => loader.override_global("copy_mark", mark, false),
        };
    }
}

/// Loads the objects of one attachment. Making it reads the kernel's types, some 20 ms of CPU: as long as an
/// object takes.
pub(crate) struct Loader<'a> {
    loader: EbpfLoader<'a>,
    /// The values that `loader` points to.
    globals: &'a Arena<Global>,
}

impl<'a> Loader<'a> {
    /// For objects with their tables at `place`.
    pub(crate) fn new(place: &Place, globals: &'a Arena<Global>) -> Self {
        let mut loader = EbpfLoader::new();
        loader.default_map_pin_directory(place.maps());
        Self { loader, globals }
    }

    /// Sets a variable of all objects that are loaded from now on.
    pub(crate) fn set(&mut self, global: Global) {
        self.globals.alloc(global).set(&mut self.loader);
    }

    /// The sizes of tables that are not there yet.
    pub(crate) fn size(&mut self, sizes: impl IntoIterator<Item = (&'static str, u32)>) {
        for (table, size) in sizes {
            self.loader.map_max_entries(table, size);
        }
    }

    /// Loads an object, and creates those of its tables that are not there yet.
    pub(crate) fn load(&mut self, object: Object) -> Result<Loaded, AttachError> {
        self.load_calling(object, None)
    }

    /// Likewise, with the number of the kernel's function in its call (`again.rs`).
    pub(crate) fn load_calling(
        &mut self,
        object: Object,
        function: Option<u32>,
    ) -> Result<Loaded, AttachError> {
        if object.has_gro_splits() {
            let cpus =
                nr_cpus().map_err(|(_, error)| AttachError::file("reading", "the processors")(error))?;
            self.size([("tp_gro_splits", u32::try_from(cpus).unwrap_or(u32::MAX))]);
        }
        let bytes = again::with_call(object.bytes()?, function);
        let programs = self.loader.load(&bytes).map_err(AttachError::load(object.name))?;
        Ok(Loaded { object, programs })
    }
}

impl Loaded {
    /// Like [`Self::program`], but shared by several threads.
    ///
    /// # Panics
    /// Likewise.
    #[cfg(test_programs)]
    pub(crate) fn shared(&self, name: &'static str) -> &Program {
        let object = self.object.name;
        self.programs.program(name).unwrap_or_else(|| panic!("no program {name} in {object}"))
    }

    /// A program of the object, by its function's name.
    ///
    /// # Panics
    /// If there is none: the objects are built with this crate.
    pub(crate) fn program(&mut self, name: &'static str) -> &mut Program {
        let object = self.object.name;
        self.programs.program_mut(name).unwrap_or_else(|| panic!("no program {name} in {object}"))
    }
}
