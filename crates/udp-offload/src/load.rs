//! Loading the programs, and attaching them to devices.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};

use aya::maps::MapError;
use aya::programs::tc::{SchedClassifierLinkId, TcAttachOptions};
use aya::programs::{LinkOrder, Program, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, EbpfLoader};
use truepeer_bpf::{AttachError, Device, has_tcx, index_of};

#[cfg(not(no_programs))]
const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/udp_offload.o"));
#[cfg(no_programs)]
const OBJECT: &[u8] = &[];

/// Why no flow can leave user space.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No clang.
    #[error("this truepeer was built without clang")]
    NotBuilt,
    /// Without links the programs would outlive a process that is killed.
    #[error("devices have no links before Linux 6.6")]
    OldKernel,
    /// The kernel refuses the object.
    #[error("can't load udp_offload")]
    Load(#[from] Box<EbpfError>),
    /// The kernel refuses a program.
    #[error("can't attach {program} to {device}")]
    Attach {
        /// Which.
        program: &'static str,
        /// Where.
        device: String,
        /// Why.
        source: Box<ProgramError>,
    },
    /// A device has gone.
    #[error(transparent)]
    Device(AttachError),
    /// A table.
    #[error("can't open {table}")]
    Table {
        /// Which.
        table: &'static str,
        /// Why.
        source: Box<MapError>,
    },
    /// A table can't be mapped.
    #[error("can't map tu_flows")]
    Map(#[from] std::io::Error),
}

const DIRECTIONS: [(&str, TcAttachType); 2] =
    [("udp_out", TcAttachType::Egress), ("udp_in", TcAttachType::Ingress)];

/// The programs, attached until this is dropped.
pub(crate) struct Programs {
    pub(crate) loaded: Ebpf,
    /// By device and program; `None`: another process holds it.
    links: BTreeMap<(u32, &'static str), Option<SchedClassifierLinkId>>,
}

/// Loads the programs.
pub(crate) fn load() -> Result<Programs, LoadError> {
    if OBJECT.is_empty() {
        return Err(LoadError::NotBuilt);
    }
    if !has_tcx() {
        return Err(LoadError::OldKernel);
    }
    let mark = random_mark();
    let mut loader = EbpfLoader::new();
    let loaded = loader.override_global("lap_mark", &mark, true).load(OBJECT).map_err(Box::new)?;
    let mut programs = Programs { loaded, links: BTreeMap::new() };
    for (name, _) in DIRECTIONS {
        programs.program(name)?.load().map_err(failed(name, "the kernel"))?;
    }
    Ok(programs)
}

impl Programs {
    fn program(&mut self, name: &'static str) -> Result<&mut SchedClassifier, LoadError> {
        let program = self.loaded.program_mut(name).ok_or(LoadError::NotBuilt)?;
        program.try_into().map_err(failed(name, "the kernel"))
    }

    /// Attaches them to those of these devices that lack them, and returns those.
    pub(crate) fn attach(&mut self, devices: &[Device]) -> Result<Vec<String>, LoadError> {
        let mut attached = Vec::new();
        for Device { name: device, .. } in devices {
            let index = index_of(device).map_err(LoadError::Device)?;
            for (name, direction) in DIRECTIONS {
                if self.links.contains_key(&(index, name)) {
                    continue;
                }
                let order = TcAttachOptions::TcxOrder(LinkOrder::default());
                let link = self.program(name)?.attach_with_options(device, direction, order);
                self.links.insert((index, name), Some(link.map_err(failed(name, device))?));
                attached.push(device.clone());
            }
        }
        attached.dedup();
        Ok(attached)
    }

    /// This device has gone.
    pub(crate) fn detach(&mut self, device: u32) {
        for (name, _) in DIRECTIONS {
            if let Some(Some(link)) = self.links.remove(&(device, name)) {
                // Err: it was detached by force.
                let _ = self.program(name).map(|program| program.detach(link));
            }
        }
    }

    /// The links so far are another process's: their descriptors are not open in this one.
    pub(crate) fn leave_links(&mut self) {
        for ((device, name), link) in std::mem::take(&mut self.links) {
            if let (Ok(program), Some(link)) = (self.program(name), link) {
                // Dropped, it would close another descriptor.
                let _ = program.take_link(link).map(std::mem::forget);
            }
            self.links.insert((device, name), None);
        }
    }

    /// The programs' descriptors.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let of = |(name, _): (&str, _)| match self.loaded.program(name)? {
            Program::SchedClassifier(program) => Some(program.fd().ok()?.as_fd().as_raw_fd()),
            _ => None,
        };
        DIRECTIONS.into_iter().filter_map(of).collect()
    }
}

fn failed(program: &'static str, device: &str) -> impl FnOnce(ProgramError) -> LoadError + use<> {
    let device = device.to_owned();
    move |source| LoadError::Attach { program, device, source: Box::new(source) }
}

/// Random, so that no other program marks its packets in the same way. Never 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).unwrap_or_default().max(1)
}
