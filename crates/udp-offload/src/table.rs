//! The tables of the flows that have left.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aya::Ebpf;
use aya::maps::{HashMap, Map, MapData, MapError, SkStorage};
use truepeer_bpf::{Device, Mapped};

use crate::free::FreePlaces;
use crate::layout::{BACKEND, Header, Key, LISTENER, MOST, Offloaded, Pair, Path, SENDER, key_of, pair_of};
use crate::load::{LoadError, Programs, load};

/// Of `BPF_MAP_UPDATE_ELEM`: fails if the key is there.
const NO_EXIST: u64 = 1;

/// The ends of a flow, IPv4 or IPv6 throughout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The sender.
    pub sender: SocketAddr,
    /// The address that its datagrams are sent to.
    pub listener: SocketAddr,
    /// The address that the backend sees: the upstream socket's.
    pub client: SocketAddr,
    /// The backend.
    pub backend: SocketAddr,
    /// The device that the sender's datagrams come in by.
    pub sender_by: u32,
}

/// Why a flow can't leave.
#[derive(Debug, thiserror::Error)]
pub enum NotBegun {
    /// As many flows as the table holds.
    #[error("the table of flows is full")]
    Full,
    /// Another flow has these addresses.
    #[error("another flow has these addresses")]
    Taken,
    /// The kernel.
    #[error("a table can't be written")]
    Failed(#[from] MapError),
}

/// The programs of a network namespace and their tables.
pub struct FlowTable {
    flows: Mapped<Offloaded>,
    tables: Mutex<Tables>,
    /// Attached until this is dropped.
    programs: Mutex<Programs>,
}

struct Tables {
    keys: HashMap<MapData, Key, u32>,
    sockets: SkStorage<MapData, u32>,
    senders: HashMap<MapData, Pair, u32>,
    ports: HashMap<MapData, u32, u8>,
    free: FreePlaces,
}

impl std::fmt::Debug for FlowTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FlowTable")
    }
}

impl FlowTable {
    /// Loads the programs, and attaches them to these devices, which have an Ethernet header or are loopback.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub fn attach(devices: &[Device]) -> Result<Arc<Self>, LoadError> {
        let mut programs = load()?;
        programs.attach(devices)?;
        let failed = |table| move |source| LoadError::Table { table, source: Box::new(source) };
        let loaded = &mut programs.loaded;
        let flows = match take(loaded, "tu_flows")? {
            Map::Array(flows) => Mapped::map(flows.fd(), MOST as usize)?,
            _ => return Err(LoadError::NotBuilt),
        };
        let tables = Tables {
            keys: take(loaded, "tu_keys")?.try_into().map_err(failed("tu_keys"))?,
            sockets: take(loaded, "tu_sockets")?.try_into().map_err(failed("tu_sockets"))?,
            senders: take(loaded, "tu_senders")?.try_into().map_err(failed("tu_senders"))?,
            ports: take(loaded, "tu_ports")?.try_into().map_err(failed("tu_ports"))?,
            free: FreePlaces::new(MOST),
        };
        Ok(Arc::new(Self { flows, tables: Mutex::new(tables), programs: Mutex::new(programs) }))
    }

    /// Of the programs: a process that is forked to [follow devices](Self::attach_later) keeps them.
    pub fn descriptors(&self) -> Vec<RawFd> {
        lock(&self.programs).descriptors()
    }

    /// Only in a forked process: from now on it follows the devices.
    pub fn begin_to_follow(&self) {
        lock(&self.programs).leave_links();
    }

    /// Attaches the programs to those of these devices that lack them, until this process ends. Returns
    /// those.
    ///
    /// # Errors
    /// If the kernel refuses a step.
    pub fn attach_later(&self, devices: &[Device]) -> Result<Vec<String>, LoadError> {
        lock(&self.programs).attach(devices)
    }

    /// The device with this number has gone: another one may get it.
    pub fn leave(&self, device: u32) {
        lock(&self.programs).detach(device);
    }

    /// Has the programs learn by which devices answers of this socket leave.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn add_listener(&self, socket: BorrowedFd<'_>) -> Result<(), MapError> {
        self.lock().sockets.insert(&socket.as_raw_fd(), LISTENER, 0)
    }

    /// Begins a flow. Until it is [sent on](Offload::send_on) it stays in user space. `header`: of each of
    /// the sender's datagrams; `None`: they are bare. `upstream`: the socket that is connected to the
    /// backend.
    ///
    /// # Errors
    /// Why it stays in user space. Nothing has changed then.
    pub fn begin(
        self: &Arc<Self>,
        ends: &Ends,
        header: Option<&Header<'_>>,
        upstream: BorrowedFd<'_>,
    ) -> Result<Offload, NotBegun> {
        let keys = [key_of(ends.sender, ends.listener), key_of(ends.backend, ends.client)];
        let entered = [header.map_or(keys[SENDER], |header| header.key(ends.listener)), keys[BACKEND]];
        let mut tables = self.lock();
        let place = tables.free.take(Instant::now()).ok_or(NotBegun::Full)?;
        self.flows.at(place).begin(keys, header, ends.sender_by);
        if let Err(failed) = tables.enter(place, &entered, upstream) {
            tables.free.give_back(place, Instant::now());
            return Err(failed);
        }
        drop(tables);
        Ok(Offload { table: Arc::clone(self), place, keys: entered })
    }

    /// What the backend sends to these addresses passes to user space: the kernel chooses among sockets.
    pub fn recall_answers(&self, backend: SocketAddr, client: SocketAddr) {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        // Err: no flow has them.
        let _ = self.lock().keys.remove(&key_of(canonical(backend), canonical(client)));
    }

    /// The device by which answers to this sender leave is learnt again.
    pub fn forget_sender(&self, listener: IpAddr, sender: IpAddr) {
        // Err: there is none.
        let _ = self.lock().senders.remove(&pair_of(listener, sender));
    }

    /// Likewise, to all senders.
    pub fn forget_senders(&self) {
        let senders = &mut self.lock().senders;
        let known: Vec<_> = senders.keys().flatten().collect();
        known.iter().for_each(|pair| _ = senders.remove(pair));
    }

    /// These devices are ports of others by now. Nothing leaves by them from now on, once each flow has been
    /// [recalled](Offload::recall) or [sent on](Offload::send_on) again.
    pub fn leave_out(&self, devices: &[u32]) {
        let ports = &mut self.lock().ports;
        let before: Vec<_> = ports.keys().flatten().collect();
        before.iter().filter(|port| !devices.contains(port)).for_each(|port| _ = ports.remove(port));
        // Err: so many can't be there.
        devices.iter().for_each(|device| _ = ports.insert(device, 1, 0));
    }

    fn at(&self, place: u32) -> &Offloaded {
        self.flows.at(place)
    }

    fn end(&self, place: u32, keys: &[Key; 2]) {
        let mut tables = self.lock();
        tables.remove(place, keys);
        tables.free.give_back(place, Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    fn enter(&mut self, place: u32, keys: &[Key; 2], upstream: BorrowedFd<'_>) -> Result<(), NotBegun> {
        for (side, key) in (0_u32..).zip(keys) {
            if let Err(error) = self.keys.insert(key, place << 1 | side, NO_EXIST) {
                self.remove(place, &keys[..side as usize]);
                return Err(if exists(&error) { NotBegun::Taken } else { NotBegun::Failed(error) });
            }
        }
        self.sockets.insert(&upstream.as_raw_fd(), place, 0).map_err(|error| {
            self.remove(place, keys);
            NotBegun::Failed(error)
        })
    }

    /// Another flow may have one of them by now.
    fn remove(&mut self, place: u32, keys: &[Key]) {
        for key in keys {
            if self.keys.get(key, 0).is_ok_and(|bits| bits >> 1 == place) {
                // Err: it is gone.
                let _ = self.keys.remove(key);
            }
        }
    }
}

/// EEXIST.
fn exists(error: &MapError) -> bool {
    matches!(error, MapError::SyscallError(call) if call.io_error.kind() == std::io::ErrorKind::AlreadyExists)
}

fn take(programs: &mut Ebpf, table: &'static str) -> Result<Map, LoadError> {
    programs.take_map(table).ok_or(LoadError::NotBuilt)
}

/// Datagrams of one end that the kernel has sent on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many.
    pub datagrams: u64,
    /// Their payloads, without headers.
    pub bytes: u64,
}

/// A flow in the tables. Dropped, it is user space's again, and forgotten here.
#[derive(Debug)]
pub struct Offload {
    table: Arc<FlowTable>,
    place: u32,
    keys: [Key; 2],
}

impl Offload {
    /// From now on the kernel sends datagrams on, as soon as the next ones through the sockets have shown by
    /// which devices. `paths`: to sender and backend.
    pub fn send_on(&self, paths: [Path; 2]) {
        let flow = self.table.at(self.place);
        for (end, path) in flow.ends.iter().zip(paths) {
            end.device.store(0, Ordering::Relaxed);
            end.set_path(path);
        }
        flow.merged.store(0, Ordering::Relaxed);
        flow.is_here.store(1, Ordering::Release);
    }

    /// All further datagrams pass to user space.
    pub fn recall(&self) {
        self.table.at(self.place).is_here.store(0, Ordering::Release);
    }

    /// Whether the kernel may send datagrams on.
    #[must_use]
    pub fn is_sent_on(&self) -> bool {
        self.table.at(self.place).is_here.load(Ordering::Acquire) != 0
    }

    /// Whether it has done so with any.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.is_sent_on() && self.moved().iter().any(|moved| moved.datagrams > 0)
    }

    /// What it has sent on: from the sender, from the backend.
    #[must_use]
    pub fn moved(&self) -> [Moved; 2] {
        self.table.at(self.place).moved.each_ref().map(|moved| Moved {
            datagrams: moved.datagrams.load(Ordering::Relaxed),
            bytes: moved.bytes.load(Ordering::Relaxed),
        })
    }

    /// Aggregates of datagrams that have or need headers, since it was [sent on](Offload::send_on). They came
    /// to user space, where later datagrams overtake them.
    #[must_use]
    pub fn merged(&self) -> u32 {
        self.table.at(self.place).merged.load(Ordering::Relaxed)
    }

    /// The port that the sender used last.
    #[must_use]
    pub fn sender_port(&self) -> u16 {
        self.table.at(self.place).ends[SENDER].remote_port()
    }

    /// The sender has used another port, in a datagram that passed to user space.
    pub fn set_sender_port(&self, port: u16) {
        self.table.at(self.place).ends[SENDER].set_remote_port(port);
    }

    /// The path to the sender is another one.
    pub fn set_sender_path(&self, path: Path) {
        self.table.at(self.place).ends[SENDER].set_path(path);
    }

    /// The path to the backend is another one.
    pub fn set_backend_path(&self, path: Path) {
        self.table.at(self.place).ends[BACKEND].set_path(path);
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.recall();
        self.table.end(self.place, &self.keys);
    }
}
