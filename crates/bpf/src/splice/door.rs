//! For tests: `splice_in` run by BPF_PROG_TEST_RUN on one flow that the test makes up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use aya::maps::{HashMap, Map, MapData};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};

use super::layout::{Face, SPLICE_LAYOUT, Stage, key_of};
use super::mapped::Mapped;
use crate::layout::FlowKey;
use crate::load::{Global, Loaded, load_sized};
use crate::programs::SPLICE_IN;
use crate::{AttachError, Place};

const COPY_MARK: u32 = 0x1357_9bdf;
/// More than any packet of a test.
const LONGEST: usize = 4096;
const NAME: &str = "splice_in";

/// `struct face`, without its key and its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "c/splice_layout.h explains the fields")]
pub struct FaceState {
    pub shift: u32,
    pub nxt: u32,
    pub ack: u32,
    pub edge: u32,
    pub tsval: u32,
    pub una: u32,
    pub end: u32,
    pub max_window: u32,
    pub said_edge: u32,
    pub fin: u32,
    pub kept: u32,
    pub own_nxt: u32,
    pub clock: u32,
    pub ts_shift: u32,
    pub device: u32,
    pub peer_scale: u8,
    pub own_scale: u8,
    pub has_timestamps: bool,
    pub known: u32,
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
pub struct SpliceDoor {
    program: Loaded,
    flows: Mapped,
    keys: HashMap<MapData, FlowKey, u32>,
}

impl SpliceDoor {
    /// Loads it with tables of its own at `pins`; needs CAP_BPF and CAP_NET_ADMIN.
    pub fn load(pins: &std::path::Path) -> Result<Self, AttachError> {
        let place = Place::of_layout(pins, SPLICE_LAYOUT)?;
        place.make()?;
        let sizes = [("ts_flows", 1), ("ts_keys", 16)];
        let mut program = load_sized(SPLICE_IN, &place, &[Global::CopyMark(COPY_MARK)], &sizes)?;
        let refused = AttachError::attach(NAME, "the kernel");
        let loaded: Result<&mut SchedClassifier, _> = program.program(NAME).try_into();
        loaded.and_then(SchedClassifier::load).map_err(refused)?;
        let open = |name: &'static str| {
            MapData::from_pin(place.maps().join(name)).map_err(AttachError::map("opening", name))
        };
        let table = open("ts_flows")?;
        let flows = Mapped::map(table.fd(), 1).map_err(AttachError::file("mmap", "ts_flows"))?;
        let keys =
            Map::HashMap(open("ts_keys")?).try_into().map_err(AttachError::map("opening", "ts_keys"))?;
        Ok(Self { program, flows, keys })
    }

    /// The flow is this one from now on. `tuples`: the peer's address and ours, of each side.
    pub fn set(
        &mut self,
        stage: Stage,
        tuples: [(SocketAddr, SocketAddr); 2],
        faces: [FaceState; 2],
    ) -> Result<(), AttachError> {
        let old: Vec<FlowKey> = self.keys.keys().flatten().collect();
        for key in &old {
            self.keys.remove(key).map_err(AttachError::map("removing from", "ts_keys"))?;
        }
        let flow = self.flows.at(0);
        for (side, ((peer, own), state)) in (0_u32..).zip(tuples.into_iter().zip(faces)) {
            let key = key_of(peer, own);
            let face = &flow.faces[side as usize];
            face.begin(&key, state.peer_scale, state.own_scale, state.has_timestamps);
            fields(face)
                .into_iter()
                .zip(values(&state))
                .for_each(|(field, value)| field.store(value, Ordering::Relaxed));
            self.keys.insert(key, side, 0).map_err(AttachError::map("writing", "ts_keys"))?;
        }
        flow.stage.store(stage as u32, Ordering::Release);
        Ok(())
    }

    /// The flow as it is.
    pub fn state(&self) -> (Stage, [FaceState; 2]) {
        let flow = self.flows.at(0);
        (Stage::of(flow.stage.load(Ordering::Acquire)), flow.faces.each_ref().map(state_of))
    }

    /// Whether the flow can still be found.
    pub fn has_keys(&self) -> bool {
        self.keys.keys().flatten().count() == 2
    }

    /// Shows a frame to the program, as it comes in, or as a copy for the socket.
    pub fn comes_in(&mut self, frame: &[u8], is_copy: bool) -> Result<Outcome, AttachError> {
        let mut packet = vec![0; LONGEST];
        // `struct __sk_buff`: the mark is its third word.
        let mut context = [0_u8; 192];
        if is_copy {
            context[8..12].copy_from_slice(&COPY_MARK.to_ne_bytes());
        }
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut packet),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let program: Result<&mut SchedClassifier, _> = self.program.program(NAME).try_into();
        let result = program.and_then(|program| program.test_run(options));
        let result = result.map_err(AttachError::attach(NAME, "BPF_PROG_TEST_RUN"))?;
        packet.truncate(result.data_size_out as usize);
        Ok(Outcome { verdict: result.return_value.cast_signed(), frame: packet })
    }
}

fn fields(face: &Face) -> [&AtomicU32; 16] {
    [
        &face.shift,
        &face.nxt,
        &face.ack,
        &face.edge,
        &face.tsval,
        &face.una,
        &face.end,
        &face.max_window,
        &face.said_edge,
        &face.fin,
        &face.kept,
        &face.own_nxt,
        &face.clock,
        &face.ts_shift,
        &face.device,
        &face.known,
    ]
}

fn values(state: &FaceState) -> [u32; 16] {
    [
        state.shift,
        state.nxt,
        state.ack,
        state.edge,
        state.tsval,
        state.una,
        state.end,
        state.max_window,
        state.said_edge,
        state.fin,
        state.kept,
        state.own_nxt,
        state.clock,
        state.ts_shift,
        state.device,
        state.known,
    ]
}

fn state_of(face: &Face) -> FaceState {
    let [
        shift,
        nxt,
        ack,
        edge,
        tsval,
        una,
        end,
        max_window,
        said_edge,
        fin,
        kept,
        own_nxt,
        clock,
        ts_shift,
        device,
        known,
    ] = fields(face).map(|field| field.load(Ordering::Relaxed));
    FaceState {
        shift,
        nxt,
        ack,
        edge,
        tsval,
        una,
        end,
        max_window,
        said_edge,
        fin,
        kept,
        own_nxt,
        clock,
        ts_shift,
        device,
        peer_scale: face.peer_scale.load(Ordering::Relaxed),
        own_scale: face.own_scale.load(Ordering::Relaxed),
        has_timestamps: face.has_timestamps.load(Ordering::Relaxed) != 0,
        known,
    }
}
