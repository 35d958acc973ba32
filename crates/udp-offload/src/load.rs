//! Loading the programs, and attaching them to devices.

use std::hash::{BuildHasher, RandomState};

use aya::maps::MapError;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, EbpfLoader};
use truepeer_bpf::{Device, has_tcx};

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

/// The loaded programs are attached until this is dropped.
pub(crate) fn load(devices: &[Device]) -> Result<Ebpf, LoadError> {
    if OBJECT.is_empty() {
        return Err(LoadError::NotBuilt);
    }
    if !has_tcx() {
        return Err(LoadError::OldKernel);
    }
    let mark = random_mark();
    let mut loader = EbpfLoader::new();
    let mut programs = loader.override_global("lap_mark", &mark, true).load(OBJECT).map_err(Box::new)?;
    let directions = [("udp_out", TcAttachType::Egress), ("udp_in", TcAttachType::Ingress)];
    for (name, direction) in directions {
        let failed = |device: &str| {
            let device = device.to_owned();
            move |source| LoadError::Attach { program: name, device, source: Box::new(source) }
        };
        let program: &mut SchedClassifier = programs
            .program_mut(name)
            .ok_or(LoadError::NotBuilt)?
            .try_into()
            .map_err(failed("the kernel"))?;
        program.load().map_err(failed("the kernel"))?;
        for Device { name, .. } in devices {
            let order = TcAttachOptions::TcxOrder(LinkOrder::default());
            program.attach_with_options(name, direction, order).map_err(failed(name))?;
        }
    }
    Ok(programs)
}

/// Random, so that no other program marks its packets in the same way. Never 0.
fn random_mark() -> u32 {
    let random = RandomState::new().hash_one(std::process::id());
    u32::try_from(random >> 32).unwrap_or_default().max(1)
}
