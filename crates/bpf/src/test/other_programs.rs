//! For tests: what the programs at tc cost the packets of others, and another program at tc.

use std::path::Path;
use std::time::Duration;

use aya::Ebpf;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use typed_arena::Arena;

use crate::again::kernel_function;
use crate::load::{Loaded, Loader};
use crate::programs::of_tests::OTHER_PROGRAMS;
use crate::programs::{Object, SPLICE_IN, SPLICE_OUT};
use crate::splice::layout::SPLICE_LAYOUT;
use crate::{AttachError, Place};

/// The programs of `proxy --splice auto`, and one that does nothing.
pub const PROGRAMS: [&str; 3] = ["nothing", "splice_in", "splice_out"];

/// All of them, with empty tables.
pub struct Bystanders(Vec<(&'static str, Loaded)>);

impl Bystanders {
    /// Loads them with tables of their own at `pins`; needs CAP_BPF and CAP_NET_ADMIN.
    pub fn load(pins: &Path) -> Result<Self, AttachError> {
        let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
        place.make()?;
        let objects: [Object; 3] = [OTHER_PROGRAMS, SPLICE_IN, SPLICE_OUT];
        let globals = Arena::new();
        let mut loader = Loader::new(&place, &globals);
        let load = |(object, name): (Object, &'static str)| {
            let mut loaded = loader.load_calling(object, kernel_function())?;
            let program: Result<&mut SchedClassifier, _> = loaded.program(name).try_into();
            program.and_then(SchedClassifier::load).map_err(AttachError::attach(name, "the kernel"))?;
            Ok((name, loaded))
        };
        objects.into_iter().zip(PROGRAMS).map(load).collect::<Result<_, _>>().map(Self)
    }

    /// The time that each of [`PROGRAMS`] takes for a frame, averaged over so many runs.
    pub fn costs(&self, frame: &[u8], repeat: u32) -> Result<[Duration; 3], AttachError> {
        let mut costs = [Duration::ZERO; 3];
        for (cost, (name, loaded)) in costs.iter_mut().zip(&self.0) {
            let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
            let program: Result<&SchedClassifier, _> = loaded.shared(name).try_into();
            let result = program.and_then(|program| program.test_run(options));
            *cost = result.map_err(AttachError::attach(name, "BPF_PROG_TEST_RUN"))?.duration;
        }
        Ok(costs)
    }
}

impl std::fmt::Debug for Bystanders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bystanders")
    }
}

/// Another program at tc ingress, which gives packets a mark. Dropped, it is detached.
pub struct Marker(Ebpf);

impl Marker {
    /// Attaches it to devices of this network namespace, as the first where nothing is attached yet.
    pub fn attach(devices: &[&str]) -> Result<Self, AttachError> {
        const NAME: &str = "marks";
        let mut programs =
            Ebpf::load(OTHER_PROGRAMS.bytes()?).map_err(AttachError::load(OTHER_PROGRAMS.name))?;
        let mut attach = || -> Result<(), ProgramError> {
            let program: &mut SchedClassifier = programs.program_mut(NAME).expect("a program").try_into()?;
            program.load()?;
            for device in devices {
                let order = TcAttachOptions::TcxOrder(LinkOrder::default());
                program.attach_with_options(device, TcAttachType::Ingress, order)?;
            }
            Ok(())
        };
        attach().map_err(AttachError::attach(NAME, "the devices"))?;
        Ok(Self(programs))
    }
}

impl std::fmt::Debug for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Marker").field(&self.0.programs().count()).finish()
    }
}
