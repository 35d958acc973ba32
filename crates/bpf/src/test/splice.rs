//! For tests: `splice_in` run by BPF_PROG_TEST_RUN on one flow that the test makes up.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::programs::{SchedClassifier, TestRun, TestRunOptions, TestRunResult};
use typed_arena::Arena;

use crate::layout::FlowKey;
use crate::load::{Global, Loaded, Loader};
use crate::programs::SPLICE_IN;
use crate::splice::keys::Keys;
use crate::splice::layout::{Face, SPLICE_LAYOUT, Spliced, Stage, key_of, low};
use crate::splice::mapped::Mapped;
use crate::{AttachError, Place};

const COPY_MARK: u32 = 0x1357_9bdf;
/// More than any packet of a test.
const LONGEST: usize = 4096;
const NAME: &str = "splice_in";

/// Makes [`FaceState`] of a face's words, so that they are listed only once.
macro_rules! face_state {
    ($($word:ident)*) => {
        /// `struct face`, without its key and the counters that nothing depends on.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[expect(missing_docs, reason = "c/offload/layout.h explains the fields")]
        pub struct FaceState {
            $(pub $word: u32,)*
            pub peer_scale: u8,
            pub own_scale: u8,
            pub has_timestamps: bool,
            pub end: u64,
            pub segments: u64,
        }

        impl FaceState {
            /// The number behind the peer's last byte.
            pub fn end_number(&self) -> u32 {
                low(self.end)
            }

            /// Raises it to this number.
            pub fn raise_end(&mut self, number: u32) {
                let more = number.wrapping_sub(self.end_number()).cast_signed();
                self.end += u64::try_from(more).unwrap_or(0);
            }

            fn of(face: &Face) -> Self {
                Self {
                    $($word: face.$word.load(Ordering::Relaxed),)*
                    peer_scale: face.peer_scale.load(Ordering::Relaxed),
                    own_scale: face.own_scale.load(Ordering::Relaxed),
                    has_timestamps: face.has_timestamps.load(Ordering::Relaxed) != 0,
                    end: face.end.load(Ordering::Relaxed),
                    segments: face.segments.load(Ordering::Relaxed),
                }
            }

            fn write(&self, face: &Face, key: &FlowKey) {
                face.begin(key, self.peer_scale, self.own_scale, self.has_timestamps);
                $(face.$word.store(self.$word, Ordering::Relaxed);)*
                face.end.store(self.end, Ordering::Relaxed);
                face.segments.store(self.segments, Ordering::Relaxed);
            }
        }
    };
}

face_state! {
    shift nxt ack edge tsval una first max_window said_edge fin kept own_nxt clock ts_shift device known said_clock cut
}

/// What became of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What the program returned: -1 pass, 2 drop, 7 redirect.
    pub verdict: i32,
    /// The frame as it goes on.
    pub frame: Vec<u8>,
}

/// The loaded program with one flow.
pub struct SpliceHarness {
    program: Loaded,
    flows: Mapped<Spliced>,
    keys: Keys,
}

impl SpliceHarness {
    /// Loads it with tables of its own at `pins`; needs CAP_BPF and CAP_NET_ADMIN.
    pub fn load(pins: &std::path::Path) -> Result<Self, AttachError> {
        let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
        place.make()?;
        let globals = Arena::new();
        let mut loader = Loader::new(&place, &globals);
        loader.size([("ts_flows", 1), ("ts_keys", 1)]);
        loader.set(Global::CopyMark(COPY_MARK));
        let mut program = loader.load(SPLICE_IN)?;
        let refused = AttachError::attach(NAME, "the kernel");
        let loaded: Result<&mut SchedClassifier, _> = program.program(NAME).try_into();
        loaded.and_then(SchedClassifier::load).map_err(refused)?;
        let flows = Mapped::open(&place, "ts_flows")?;
        let keys = Keys::open(&place)?;
        keys.begin()?;
        Ok(Self { program, flows, keys })
    }

    /// The flow is this one from now on. `tuples`: the peer's address and ours, of each side.
    pub fn set(
        &mut self,
        stage: Stage,
        tuples: [(SocketAddr, SocketAddr); 2],
        faces: [FaceState; 2],
    ) -> Result<(), AttachError> {
        let flow = self.flows.at(0);
        for (side, face) in (0_u32..).zip(&flow.faces) {
            self.keys.remove(&face.key(), side);
        }
        for (side, ((peer, own), state)) in (0_u32..).zip(tuples.into_iter().zip(faces)) {
            let key = key_of(peer, own);
            state.write(&flow.faces[side as usize], &key);
            let entered = self.keys.enter(&key, side, |bits| flow.faces[bits as usize & 1].key());
            entered.unwrap_or_else(|failed| panic!("{key:?}: {failed:?}"));
        }
        flow.stage.store(stage as u32, Ordering::Release);
        Ok(())
    }

    /// The flow as it is.
    pub fn state(&self) -> (Stage, [FaceState; 2]) {
        let flow = self.flows.at(0);
        (Stage::of(flow.stage.load(Ordering::Acquire)), flow.faces.each_ref().map(FaceState::of))
    }

    /// Whether the flow can still be found.
    pub fn has_keys(&self) -> bool {
        self.keys.count() == 2
    }

    /// Shows a frame to the program, as if it came in by the device of this number, or as a copy for the
    /// socket.
    pub fn comes_in(&mut self, frame: &[u8], device: u32, is_copy: bool) -> Result<Outcome, AttachError> {
        let mut packet = vec![0; LONGEST];
        // `struct __sk_buff`: the mark is its third word, the device's number its eleventh.
        let mut context = [0_u8; 192];
        context[40..44].copy_from_slice(&device.to_ne_bytes());
        if is_copy {
            context[8..12].copy_from_slice(&COPY_MARK.to_ne_bytes());
        }
        let result = self.run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut packet),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        })?;
        packet.truncate(result.data_size_out as usize);
        Ok(Outcome { verdict: result.return_value.cast_signed(), frame: packet })
    }

    /// The time that the program takes for a frame, averaged over so many runs.
    pub fn cost(&mut self, frame: &[u8], repeat: u32) -> Result<Duration, AttachError> {
        let options = TestRunOptions { data_in: Some(frame), repeat, ..TestRunOptions::default() };
        Ok(self.run(options)?.duration)
    }

    fn run(&mut self, options: TestRunOptions<'_>) -> Result<TestRunResult, AttachError> {
        let program: Result<&mut SchedClassifier, _> = self.program.program(NAME).try_into();
        let result = program.and_then(|program| program.test_run(options));
        result.map_err(AttachError::attach(NAME, "BPF_PROG_TEST_RUN"))
    }
}
