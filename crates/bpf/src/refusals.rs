//! Who was refused, as the programs tell it (`c/attach/refusals.h`).

use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use aya::maps::{Map, MapData, RingBuf};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::counters::{COUNTERS, PortCounter};
use crate::error::AttachError;
use crate::layout::Address;
use crate::place::Place;

const TABLE: &str = "tp_refusals";
/// IPPROTO_UDP.
const UDP: u8 = 17;

/// A connection or a datagram that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// When, by the clock that runs since the boot (CLOCK_MONOTONIC).
    pub time: Duration,
    /// Who sent it; port 0: unknown.
    pub sender: SocketAddr,
    /// The client that its header claims, where that is the reason.
    pub client: Option<SocketAddr>,
    /// To which port it was sent.
    pub port: u16,
    /// Whether it is a datagram.
    pub is_udp: bool,
    /// The counter of the reason.
    pub reason: &'static PortCounter,
    /// It, and how many of the same reason were refused since the one before it and are not told.
    pub count: u32,
}

/// The refusals of one network namespace. Each is given to one reader only, so there is one at a time.
pub struct Refusals {
    ring: RingBuf<MapData>,
    inode: u64,
    _lock: File,
}

impl Refusals {
    /// Begins to read. The oldest that nobody has read come first: some 230 are kept. `None`: somebody else
    /// reads them.
    pub fn open(place: &Place) -> Result<Option<Self>, AttachError> {
        let pin = place.maps().join(TABLE);
        let lock = File::open(place.maps()).map_err(AttachError::file("open", place.maps()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(AttachError::file("flock", place.maps())(error.into())),
        }
        let inode = inode(place).map_err(AttachError::file("stat", &pin))?;
        let map = MapData::from_pin(&pin).map_err(AttachError::map("opening", TABLE))?;
        let ring = Map::RingBuf(map).try_into().map_err(AttachError::map("opening", TABLE))?;
        Ok(Some(Self { ring, inode, _lock: lock }))
    }

    /// Whether what it reads is what is attached now.
    pub fn is_current(&self, place: &Place) -> bool {
        inode(place).is_ok_and(|inode| inode == self.inode)
    }

    /// The next one, if there is one. Poll it for more.
    pub fn read(&mut self) -> Option<Refusal> {
        loop {
            let item = self.ring.next()?;
            if let Some(refusal) = parse(&item) {
                return Some(refusal);
            }
        }
    }
}

impl AsFd for Refusals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}

fn inode(place: &Place) -> std::io::Result<u64> {
    Ok(std::fs::metadata(place.maps().join(TABLE))?.ino())
}

/// `struct refusal`.
fn parse(bytes: &[u8]) -> Option<Refusal> {
    let part = |at: usize, len: usize| bytes.get(at..at + len);
    let address = |at: usize| {
        Some(IpAddr::from(Ipv6Addr::from(Address(part(at, 16)?.try_into().ok()?).0)).to_canonical())
    };
    let port = |at: usize| Some(u16::from_be_bytes(part(at, 2)?.try_into().ok()?));
    let version = *bytes.get(52)?;
    Some(Refusal {
        time: Duration::from_nanos(u64::from_ne_bytes(part(0, 8)?.try_into().ok()?)),
        sender: SocketAddr::new(address(8)?, port(44)?),
        client: if version == 0 { None } else { Some(SocketAddr::new(address(24)?, port(46)?)) },
        count: u32::from_ne_bytes(part(40, 4)?.try_into().ok()?),
        port: port(48)?,
        reason: COUNTERS.get(usize::from(*bytes.get(50)?))?,
        is_udp: *bytes.get(51)? == UDP,
    })
}
