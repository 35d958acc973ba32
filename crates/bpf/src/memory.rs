//! How much kernel memory an attachment takes, by the kernel's own account.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::error::AttachError;
use crate::pinned_link::{Info, info_of, object_by_id, open};
use crate::place::{Place, entries};

/// `BPF_PROG_GET_FD_BY_ID` and `BPF_MAP_GET_FD_BY_ID` (linux/bpf.h).
const PROGRAM: libc::c_int = 13;
const MAP: libc::c_int = 14;
/// More than any of the programs has.
const MAPS_OF_A_PROGRAM: usize = 64;

/// Kernel memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The tables, with what is in them now.
    pub tables: u64,
    /// The programs with their constants. `None`: only CAP_SYS_ADMIN may look at them. Before Linux 6.6 those
    /// of devices are not counted.
    pub programs: Option<u64>,
}

/// The start of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    created_by: u32,
    map_count: u32,
    map_ids: u64,
}

const _: () = assert!(size_of::<ProgramInfo>() == 64);

// SAFETY: invariant of `Info`: `repr(C)` of integers only, so any bytes are a valid value. `map_ids` is an
// address that the kernel writes to: `of_program` sets it to an array of `map_count` numbers that outlives
// the call, and everybody else leaves it 0 with a count of 0.
unsafe impl Info for ProgramInfo {}

/// The start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
}

// SAFETY: invariant of `Info`: `repr(C)` of integers only, so any bytes are a valid value, and none is an
// address.
unsafe impl Info for MapInfo {}

/// The kernel memory of the tables and programs that are attached at a place.
pub(crate) fn memory(place: &Place) -> Result<Memory, AttachError> {
    let mut tables = BTreeMap::new();
    for pin in entries(&place.maps())? {
        let (id, bytes) = of_table(&pin).map_err(AttachError::file("reading the size of a table", &pin))?;
        tables.insert(id, bytes);
    }
    let programs = of_programs(entries(&place.links())?, &tables).ok();
    Ok(Memory { tables: tables.values().sum(), programs })
}

fn of_table(pin: &std::path::Path) -> io::Result<(u32, u64)> {
    let map = open(pin)?;
    let mut info = MapInfo::default();
    info_of(&map, &mut info)?;
    Ok((info.id, locked(&map)?))
}

/// Several links may have one program, and several programs one table.
fn of_programs(links: Vec<PathBuf>, tables: &BTreeMap<u32, u64>) -> io::Result<u64> {
    let (mut programs, mut constants) = (BTreeMap::new(), BTreeMap::new());
    for pin in links {
        let id = crate::pinned_link::program_id(&pin)?;
        if programs.contains_key(&id) {
            continue;
        }
        let (bytes, maps) = of_program(&object_by_id(PROGRAM, id)?)?;
        programs.insert(id, bytes);
        for map in maps.into_iter().filter(|map| !tables.contains_key(map)) {
            constants.insert(map, locked(&object_by_id(MAP, map)?)?);
        }
    }
    Ok(programs.values().chain(constants.values()).sum())
}

/// Its size, and the numbers of its tables.
fn of_program(program: &OwnedFd) -> io::Result<(u64, Vec<u32>)> {
    let mut ids = [0_u32; MAPS_OF_A_PROGRAM];
    let mut info = ProgramInfo {
        map_count: u32::try_from(ids.len()).unwrap_or_default(),
        map_ids: ids.as_mut_ptr() as u64,
        ..ProgramInfo::default()
    };
    info_of(program, &mut info)?;
    let count = (info.map_count as usize).min(ids.len());
    Ok((locked(program)? + u64::from(info.jited_len), ids[..count].to_vec()))
}

/// The kernel's figure of a table or a program (Documentation/bpf: `memlock`).
fn locked(object: &OwnedFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", object.as_raw_fd()))?;
    let value = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    value.and_then(|value| value.trim().parse().ok()).ok_or_else(|| io::Error::other("no memlock in fdinfo"))
}
