//! For tests: runs the TCP programs by BPF_PROG_TEST_RUN, with the test's answers in place of the kernel's
//! (`c/test/fake_kernel.h`).

use aya::Pod;
use aya::maps::{Array, HashMap, Map, MapData, MapError};
use aya::programs::{ProgramError, SchedClassifier, TestRun, TestRunOptions};
use typed_arena::Arena;

use crate::counters::COUNTERS;
use crate::error::AttachError;
use crate::layout::{self, Address};
use crate::load::{Global, Loaded, Loader};
use crate::place::Place;
use crate::programs::UDP_SEND;
use crate::programs::of_tests::{TCP_EGRESS_TEST, TCP_END_TEST, TCP_INGRESS_TEST};
use crate::rules::{Others, Rules};
use crate::sizes::Sizes;
use crate::tables::Tables;

/// Larger than any packet of a test.
const LONGEST: usize = 4096;

/// The kernel's state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Socket {
    /// No listener.
    None,
    /// Only a listener.
    Listens,
    /// A request socket.
    HalfOpen,
    /// A socket that accept() can return.
    Open,
}

/// The kernel's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answers {
    /// The time in nanoseconds since boot.
    pub now_ns: u64,
    /// The result of a socket lookup.
    pub socket: Socket,
    /// AF_INET or AF_INET6.
    pub family: u32,
    /// Whether the route leads to this host.
    pub is_here: bool,
    /// SYN cookies that were sent: the sequence and acknowledgement numbers of the segments that answer them.
    pub cookies: [(u32, u32); 2],
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct FakeKernel {
    now_ns: u64,
    has_socket: u32,
    is_here: u32,
    cookies: [[u32; 2]; 2],
    clones: u32,
    clone_flags: u32,
    clone_len: u32,
    unused: u32,
    clone: [u8; 128],
    key: layout::FlowKey,
    /// `struct bpf_sock`: the family is its second word, the state its second to last.
    sk: [u32; 20],
    unused_too: u32,
}

const _: () = assert!(size_of::<FakeKernel>() == 296);

// SAFETY: invariant of `Pod`: any bytes are a valid value, and none is padding. It is `repr(C)`, of integers
// and byte arrays only, and its size (asserted above) is the sum of its fields'.
unsafe impl Pod for FakeKernel {}

/// A connection as the tables identify it; IPv4 as `::ffff:a.b.c.d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// The sender's address.
    pub sender: [u8; 16],
    /// This host's.
    pub local: [u8; 16],
    /// The sender's port.
    pub sender_port: u16,
    /// This host's.
    pub local_port: u16,
}

/// A flow, as stored in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// The client's address.
    pub client: [u8; 16],
    /// Its port.
    pub client_port: u16,
    /// 4 or 6; 0: the sender is the client.
    pub client_version: u8,
    /// Its header names a client, which may not be showable.
    pub is_named: bool,
    /// By how much sequence numbers are shifted.
    pub delta: i32,
    /// A silent sender's: the number of its first byte, and how many bytes of a signature have passed (and 16
    /// of version 2's).
    pub late: Option<[u32; 2]>,
}

/// A pending connection, as far as tests need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// When it was created.
    pub born_ns: u64,
    /// The sender's initial sequence number.
    pub isn: u32,
    /// The guessed length of the header.
    pub guess: u32,
    /// The number of header bytes received.
    pub have: u32,
    /// The sender's newest timestamp.
    pub ts_recent: u32,
    /// Whether this host's SYN-ACK was sent.
    pub answer: Option<SynAnswer>,
    /// The sender has acknowledged our SYN-ACK.
    pub is_proved: bool,
    /// Its header is off: what it will be.
    pub flow: Option<Flow>,
    /// Data that was acknowledged while it could be a header's start.
    pub replay: Vec<u8>,
}

/// The contents of this host's SYN-ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynAnswer {
    /// Its initial sequence number.
    pub isn: u32,
    /// Whether it was a cookie.
    pub is_cookie: bool,
    /// It came from a socket of the very port.
    pub is_ours: bool,
    /// Timestamps: of the first SYN-ACK, of the newest, of the newest packet of all.
    pub tsvals: Option<[u32; 3]>,
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The packet goes on to the kernel.
    pub passes: bool,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// Another packet that was sent: into this host again (true), or out. At most its first 128 bytes.
    pub sent: Option<(bool, Vec<u8>)>,
}

/// The programs and their tables.
pub struct Programs {
    ingress: Loaded,
    egress: Loaded,
    end: Loaded,
    tables: Tables,
    harness: Array<MapData, FakeKernel>,
    pending: HashMap<MapData, layout::FlowKey, layout::RawPending>,
    flows: HashMap<MapData, layout::FlowKey, layout::RawFlow>,
    ended: HashMap<MapData, layout::FlowKey, layout::RawFlow>,
    guesses: HashMap<MapData, Address, u32>,
    state: FakeKernel,
}

macro_rules! open {
    ($place:expr, $kind:ident, $name:literal) => {{
        let pinned =
            MapData::from_pin($place.maps().join($name)).map_err(AttachError::map("opening", $name))?;
        Map::$kind(pinned).try_into().map_err(AttachError::map("opening", $name))?
    }};
}

impl Programs {
    /// Loads them with their own tables at `place`. Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.
    pub fn load(place: &Place, rules: &Rules) -> Result<Self, AttachError> {
        place.make()?;
        // This creates the tables.
        let globals = Arena::new();
        let mut loader = Loader::new(place, &globals);
        loader.size(Sizes::of(rules, true)?.all());
        drop(loader.load(UDP_SEND)?);
        loader.set(Global::other_ports(rules.tcp_ports.iter().copied()));
        let mut programs = Self {
            ingress: loader.load(TCP_INGRESS_TEST)?,
            egress: loader.load(TCP_EGRESS_TEST)?,
            end: loader.load(TCP_END_TEST)?,
            tables: Tables::open(place)?,
            harness: open!(place, Array, "tp_fake_kernel"),
            pending: open!(place, LruHashMap, "tp_pending"),
            flows: open!(place, HashMap, "tp_flows"),
            ended: open!(place, LruHashMap, "tp_ended"),
            guesses: open!(place, LruHashMap, "tp_guesses"),
            state: FakeKernel {
                now_ns: 0,
                has_socket: 0,
                is_here: 0,
                cookies: [[0; 2]; 2],
                clones: 0,
                clone_flags: 0,
                clone_len: 0,
                unused: 0,
                clone: [0; 128],
                key: layout::FlowKey {
                    remote: Address([0; 16]),
                    local: Address([0; 16]),
                    remote_port: [0; 2],
                    local_port: [0; 2],
                },
                sk: [0; 20],
                unused_too: 0,
            },
        };
        ready(&mut programs.ingress, INGRESS)?;
        ready(&mut programs.egress, EGRESS)?;
        ready(&mut programs.end, MADE)?;
        ready(&mut programs.end, ENDED)?;
        programs.tables.apply(rules, true, Others::Leave)?;
        Ok(programs)
    }

    /// Sets the kernel's answers from now on.
    pub fn answer(&mut self, answers: Answers) -> Result<(), AttachError> {
        let state = &mut self.state;
        state.now_ns = answers.now_ns;
        state.is_here = answers.is_here.into();
        state.cookies = answers.cookies.map(|(seq, ack)| [seq, ack]);
        state.has_socket = u32::from(answers.socket != Socket::None);
        state.sk[1] = answers.family;
        // include/net/tcp_states.h
        state.sk[18] = match answers.socket {
            Socket::None => 0,
            Socket::Listens => 10,
            Socket::HalfOpen => 12,
            Socket::Open => 1,
        };
        self.write_fake_kernel()
    }

    fn write_fake_kernel(&mut self) -> Result<(), AttachError> {
        self.harness.set(0, self.state, 0).map_err(AttachError::map("writing", "tp_fake_kernel"))
    }

    /// Passes a frame to tcp_ingress.
    pub fn comes_in(&mut self, frame: &[u8]) -> Result<Made, AttachError> {
        let made = run(&mut self.ingress, INGRESS, frame)?;
        self.with_clone(made)
    }

    /// Passes a frame to tcp_egress.
    pub fn goes_out(&mut self, frame: &[u8]) -> Result<Made, AttachError> {
        let made = run(&mut self.egress, EGRESS, frame)?;
        self.with_clone(made)
    }

    fn with_clone(&mut self, made: Made) -> Result<Made, AttachError> {
        let found = self.harness.get(&0, 0).map_err(AttachError::map("reading", "tp_fake_kernel"))?;
        if found.clones == 0 {
            return Ok(made);
        }
        self.write_fake_kernel()?; // without copies
        let len = (found.clone_len as usize).min(found.clone.len());
        Ok(Made { sent: Some((found.clone_flags == 1, found.clone[..len].to_vec())), ..made })
    }

    /// The kernel has created the socket. Returns whether a flow started.
    pub fn socket_made(&mut self, tuple: &Tuple) -> Result<bool, AttachError> {
        self.tell(MADE, tuple).map(|answer| answer == 0)
    }

    /// The kernel's socket has ended.
    pub fn socket_ended(&mut self, tuple: &Tuple) -> Result<(), AttachError> {
        self.tell(ENDED, tuple).map(drop)
    }

    fn tell(&mut self, name: &'static str, tuple: &Tuple) -> Result<u32, AttachError> {
        self.state.key = key(tuple);
        self.write_fake_kernel()?;
        let options = TestRunOptions { data_in: Some(&[0; 64]), ..TestRunOptions::default() };
        let result = classifier(&mut self.end, name).and_then(|program| program.test_run(options));
        Ok(result.map_err(AttachError::attach(name, "BPF_PROG_TEST_RUN"))?.return_value)
    }

    /// The entry of a pending connection.
    pub fn pending(&self, tuple: &Tuple) -> Result<Option<Pending>, AttachError> {
        let found = optional(self.pending.get(&key(tuple), 0), "tp_pending")?;
        Ok(found.map(|pending| {
            let mut flow = [0; 24];
            flow.copy_from_slice(&pending.start[..24]);
            Pending {
                born_ns: pending.born_ns,
                isn: pending.isn,
                guess: pending.guess,
                have: pending.have,
                ts_recent: pending.ts_recent,
                answer: (pending.is_answered != 0).then(|| SynAnswer {
                    isn: pending.our_isn,
                    is_cookie: pending.is_by_cookie != 0,
                    is_ours: pending.is_ours != 0,
                    tsvals: (pending.has_timestamps != 0).then_some([
                        pending.tsval_first,
                        pending.tsval_synack,
                        pending.tsval_newest,
                    ]),
                }),
                is_proved: pending.is_proved != 0,
                flow: (pending.stage != 0).then(|| flow_in(&flow)),
                replay: if pending.stage == 0 { Vec::new() } else { owed_in(&pending.start) },
            }
        }))
    }

    /// Turns a pending connection's SYN-ACK into a cookie. Test runs give each packet a socket, from which
    /// tcp_egress concludes that it is none.
    pub fn answer_was_a_cookie(&mut self, tuple: &Tuple) -> Result<(), AttachError> {
        self.change(tuple, |pending| {
            pending.is_by_cookie = 1;
            pending.is_proved = 0;
            pending.tsval_first = pending.tsval_synack;
        })
    }

    /// Makes a pending connection's SYN-ACK the answer of a socket of the very port: that of test runs has
    /// none.
    pub fn answer_was_ours(&mut self, tuple: &Tuple) -> Result<(), AttachError> {
        self.change(tuple, |pending| pending.is_ours = 1)
    }

    fn change(
        &mut self,
        tuple: &Tuple,
        how: impl FnOnce(&mut layout::RawPending),
    ) -> Result<(), AttachError> {
        let Some(mut pending) = optional(self.pending.get(&key(tuple), 0), "tp_pending")? else {
            return Ok(());
        };
        how(&mut pending);
        self.pending.insert(key(tuple), pending, 0).map_err(AttachError::map("writing", "tp_pending"))
    }

    /// The flow of a connection.
    pub fn flow(&self, tuple: &Tuple) -> Result<Option<Flow>, AttachError> {
        Ok(optional(self.flows.get(&key(tuple), 0), "tp_flows")?.map(|flow| flow_of(&flow)))
    }

    /// The remains of an ended flow.
    pub fn ended(&self, tuple: &Tuple) -> Result<Option<Flow>, AttachError> {
        Ok(optional(self.ended.get(&key(tuple), 0), "tp_ended")?.map(|flow| flow_of(&flow)))
    }

    /// The guessed length of a sender's next header.
    pub fn guess(&self, sender: [u8; 16]) -> Result<Option<u32>, AttachError> {
        optional(self.guesses.get(&Address(sender), 0), "tp_guesses")
    }

    /// Forgets a connection and its sender.
    pub fn forget(&mut self, tuple: &Tuple) -> Result<(), AttachError> {
        let key = key(tuple);
        removed(self.pending.remove(&key), "tp_pending")?;
        removed(self.flows.remove(&key), "tp_flows")?;
        removed(self.ended.remove(&key), "tp_ended")?;
        removed(self.guesses.remove(&Address(tuple.sender)), "tp_guesses")
    }

    /// A counter of the first port, by name.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, AttachError> {
        let values = self.tables.counters(0)?;
        Ok(COUNTERS.iter().map(|counter| counter.name).zip(values).collect())
    }
}

const INGRESS: &str = "tcp_ingress";
const EGRESS: &str = "tcp_egress";
const MADE: &str = "socket_made";
const ENDED: &str = "socket_ended";

fn classifier<'a>(
    loaded: &'a mut Loaded,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, ProgramError> {
    loaded.program(name).try_into()
}

fn ready(loaded: &mut Loaded, name: &'static str) -> Result<(), AttachError> {
    classifier(loaded, name).and_then(SchedClassifier::load).map_err(AttachError::attach(name, "the kernel"))
}

fn run(loaded: &mut Loaded, name: &'static str, frame: &[u8]) -> Result<Made, AttachError> {
    let mut packet = vec![0; LONGEST];
    let options =
        TestRunOptions { data_in: Some(frame), data_out: Some(&mut packet), ..TestRunOptions::default() };
    let result = classifier(loaded, name).and_then(|program| program.test_run(options));
    let result = result.map_err(AttachError::attach(name, "BPF_PROG_TEST_RUN"))?;
    packet.truncate(result.data_size_out as usize);
    // PASS is TC_ACT_UNSPEC, -1; DROP is TC_ACT_SHOT, 2.
    Ok(Made { passes: result.return_value == u32::MAX, packet, sent: None })
}

fn key(tuple: &Tuple) -> layout::FlowKey {
    layout::FlowKey {
        remote: Address(tuple.sender),
        local: Address(tuple.local),
        remote_port: tuple.sender_port.to_be_bytes(),
        local_port: tuple.local_port.to_be_bytes(),
    }
}

fn flow_of(flow: &layout::RawFlow) -> Flow {
    let late = (flow.header == MAY_COME_LATE).then(|| late_of(&flow.client.0));
    Flow {
        client: if late.is_some() { [0; 16] } else { flow.client.0 },
        late,
        client_port: u16::from_be_bytes(flow.client_port),
        client_version: flow.client_version,
        is_named: flow.header == NAMES_A_CLIENT,
        delta: flow.delta,
    }
}

/// `enum flow_header`.
const NAMES_A_CLIENT: u8 = 1;
const MAY_COME_LATE: u8 = 2;

fn late_of(bytes: &[u8]) -> [u32; 2] {
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// `struct flow`, in a pending connection.
fn flow_in(bytes: &[u8; 24]) -> Flow {
    let mut flow = Flow::default();
    match bytes[23] {
        MAY_COME_LATE => flow.late = Some(late_of(bytes)),
        _ => flow.client.copy_from_slice(&bytes[..16]),
    }
    flow.delta = i32::from_ne_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    flow.client_port = u16::from_be_bytes([bytes[20], bytes[21]]);
    flow.client_version = bytes[22];
    flow.is_named = bytes[23] == NAMES_A_CLIENT;
    flow
}

/// `replay` and `replay_len`, behind that.
fn owed_in(start: &[u8; 108]) -> Vec<u8> {
    let len = u32::from_ne_bytes([start[36], start[37], start[38], start[39]]);
    start[24..36].iter().copied().take(len as usize).collect()
}

fn optional<T>(found: Result<T, MapError>, name: &'static str) -> Result<Option<T>, AttachError> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(AttachError::map("reading", name)(error)),
    }
}

fn removed(outcome: Result<(), MapError>, name: &'static str) -> Result<(), AttachError> {
    match outcome {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(AttachError::map("removing from", name)(error)),
    }
}
