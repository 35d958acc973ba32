//! For tests: the programs' interpretation of a connection's first bytes, by BPF_PROG_TEST_RUN; and a full
//! cgroup.

use core::net::{Ipv6Addr, SocketAddr};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::{CgroupSockAddr, ProgramError, SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, Pod};
use truepeer_policy::Dialect;
use typed_arena::Arena;

use crate::error::AttachError;
use crate::layout::Address;
use crate::links::Hook;
use crate::load::Loader;
use crate::place::Place;
use crate::programs::of_tests::HEADER_CHECK;
use crate::programs::{PEER_NAME, UDP_SEND};
use crate::rules::RequiredSecret;
use crate::tables::ports::number_of;
use crate::tables::proofs;

/// The result; `enum verdict` in `c/proxy_header/header.h`, with the length checked as in `tcp_ingress`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Valid so far.
    NeedMore,
    /// A complete header of this length that names a client and a destination.
    Client(SocketAddr, SocketAddr, usize),
    /// A complete header that names no client.
    Itself(usize),
    /// No header, or an invalid one.
    Refused,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Answer {
    verdict: u32,
    client: Endpoint,
    destination: Endpoint,
    len: u32,
    client_version: u16,
    is_v1: u16,
    tlvs: u32,
}

/// `struct endpoint`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Endpoint {
    address: Address,
    port: [u8; 2],
    zero: [u8; 2],
}

const _: () = assert!(size_of::<Answer>() == 56);

// SAFETY: invariant of `Pod`: any bytes are a valid value, and none is padding (the size is the sum of the
// fields').
unsafe impl Pod for Answer {}

const STATES: &str = "piece_states";

/// `struct piece_state`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PieceState {
    walk: u32,
    before: u32,
    lacks: u32,
    unused: u32,
}

// SAFETY: invariant of `Pod`: any bytes are a valid value, and none is padding: four words.
unsafe impl Pod for PieceState {}

/// The loaded program.
pub struct HeaderCheck {
    programs: Ebpf,
    header_max: usize,
}

impl HeaderCheck {
    /// Loads it. Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.
    pub fn load(header_max: usize) -> Result<Self, AttachError> {
        let mut programs = Ebpf::load(HEADER_CHECK.bytes()?).map_err(AttachError::load(HEADER_CHECK.name))?;
        for name in [HEADER_CHECK.name, DATAGRAM_CHECK, PROOF_CHECK] {
            program(&mut programs, name)
                .and_then(SchedClassifier::load)
                .map_err(AttachError::attach(name, "the kernel"))?;
        }
        Ok(Self { programs, header_max })
    }

    /// Passes these bytes as the first of a connection.
    pub fn ask(&mut self, bytes: &[u8]) -> Result<Verdict, AttachError> {
        self.run(HEADER_CHECK.name, 0, bytes)?;
        Ok(self.verdict(self.answer()?, bytes.len()))
    }

    /// The same as a datagram: missing bytes will never come.
    pub fn ask_datagram(&mut self, dialect: Dialect, bytes: &[u8]) -> Result<Verdict, AttachError> {
        self.run(DATAGRAM_CHECK, number_of(dialect), bytes)?;
        Ok(match self.verdict(self.answer()?, bytes.len()) {
            Verdict::NeedMore => Verdict::Refused,
            verdict => verdict,
        })
    }

    /// Whether a header lacks what its sender must send. It comes in pieces: `ends` are where they end.
    ///
    /// # Errors
    /// The program can't be run.
    pub fn lacks_proof(
        &mut self,
        required: &RequiredSecret,
        bytes: &[u8],
        ends: &[usize],
    ) -> Result<bool, AttachError> {
        self.require(required)?;
        let (mut walk, mut before) = (0, 0);
        for end in ends {
            self.take_piece(walk, before, &bytes[..*end])?;
            let map = self.programs.map(STATES).ok_or(AttachError::NotBuilt)?;
            let states: Array<&MapData, PieceState> =
                map.try_into().map_err(AttachError::map("opening", STATES))?;
            let state = states.get(&0, 0).map_err(AttachError::map("reading", STATES))?;
            if state.lacks != 0 {
                return Ok(true);
            }
            (walk, before) = (state.walk, u32::try_from(*end).unwrap_or(u32::MAX));
        }
        Ok(false)
    }

    /// Sets the secret that all headers must have.
    ///
    /// # Errors
    /// The table can't be written.
    pub fn require(&mut self, required: &RequiredSecret) -> Result<(), AttachError> {
        let map = self.programs.map_mut("tp_proofs").ok_or(AttachError::NotBuilt)?;
        proofs::write_for_all(map, required)
    }

    /// How long the program takes to find what [`Self::require`] demands in a whole header.
    ///
    /// # Errors
    /// The program can't be run.
    pub fn time_of_proof(&mut self, bytes: &[u8]) -> Result<Duration, AttachError> {
        self.take_piece(0, 0, bytes)
    }

    fn take_piece(&mut self, walk: u32, before: u32, bytes: &[u8]) -> Result<Duration, AttachError> {
        let map = self.programs.map_mut(STATES).ok_or(AttachError::NotBuilt)?;
        let mut states: Array<&mut MapData, PieceState> =
            map.try_into().map_err(AttachError::map("opening", STATES))?;
        let state = PieceState { walk, before, lacks: 0, unused: 0 };
        states.set(0, state, 0).map_err(AttachError::map("writing", STATES))?;
        self.run(PROOF_CHECK, 0, bytes)
    }

    fn run(&mut self, name: &'static str, first: u8, bytes: &[u8]) -> Result<Duration, AttachError> {
        let mut packet = vec![first];
        packet.resize(14, 0);
        packet.extend(bytes);
        let options = TestRunOptions { data_in: Some(&packet), ..TestRunOptions::default() };
        let result = program(&mut self.programs, name).and_then(|program| program.test_run(options));
        result.map(|run| run.duration).map_err(AttachError::attach(name, "BPF_PROG_TEST_RUN"))
    }

    fn answer(&self) -> Result<Answer, AttachError> {
        let map = self.programs.map("answers").ok_or(AttachError::NotBuilt)?;
        let answers: Array<&MapData, Answer> =
            map.try_into().map_err(AttachError::map("opening", "answers"))?;
        answers.get(&0, 0).map_err(AttachError::map("reading", "answers"))
    }

    fn verdict(&self, answer: Answer, have: usize) -> Verdict {
        let len = answer.len as usize;
        match answer.verdict {
            3.. => Verdict::Refused,
            _ if len > self.header_max => Verdict::Refused,
            0 => Verdict::NeedMore,
            _ if have < len => Verdict::NeedMore,
            1 => {
                let address = |end: Endpoint| {
                    let ip = Ipv6Addr::from(end.address.0).to_canonical();
                    SocketAddr::new(ip, u16::from_be_bytes(end.port))
                };
                Verdict::Client(address(answer.client), address(answer.destination), len)
            }
            _ => Verdict::Itself(len),
        }
    }
}

const DATAGRAM_CHECK: &str = "datagram_check";
const PROOF_CHECK: &str = "proof_check";

fn program<'a>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, ProgramError> {
    // It was built with this crate, so it exists.
    let Some(program) = programs.program_mut(name) else {
        return Err(ProgramError::NotLoaded);
    };
    program.try_into()
}

/// Attaches this many hooks to a cgroup, of the kind that shows clients or of the one that redirects
/// datagrams, with their tables at `place`. They are removed when the result is dropped.
pub fn crowd_cgroup(
    place: &Place,
    cgroup: &Path,
    count: usize,
    shows_clients: bool,
) -> Result<Vec<impl Sized + use<>>, AttachError> {
    let (object, name) = if shows_clients { (PEER_NAME, "peer_name4") } else { (UDP_SEND, "udp_send4") };
    place.make()?;
    let mut names = Loader::new(place, &Arena::new()).load(object)?;
    let refused = |error: ProgramError| AttachError::attach(name, "the kernel")(error);
    let program: &mut CgroupSockAddr = names.program(name).try_into().map_err(refused)?;
    program.load().map_err(refused)?;
    let cgroup = File::open(cgroup).map_err(AttachError::file("open", cgroup))?;
    let link = |_| program.link(&cgroup).map_err(AttachError::hook(name, "the cgroup"));
    (0..count).map(link).collect()
}
