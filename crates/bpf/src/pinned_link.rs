//! Reads from the kernel what aya doesn't provide about a pinned link.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `BPF_OBJ_GET` (linux/bpf.h).
const OBJ_GET: libc::c_int = 7;
/// `BPF_OBJ_GET_INFO_BY_FD` (linux/bpf.h).
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
/// `BPF_LINK_TYPE_NETNS` (linux/bpf.h).
const TYPE_NETNS: u32 = 5;
/// `BPF_LINK_TYPE_TCX` (linux/bpf.h).
const TYPE_TCX: u32 = 11;

/// The object that a link is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// A device or a network namespace that exists.
    Something,
    /// A device or network namespace that is gone.
    Nothing,
    /// A cgroup, or another object whose end is not reported.
    Other,
}

/// The part of `union bpf_attr` that `BPF_OBJ_GET` reads.
#[repr(C)]
struct ObjGet {
    path: u64,
    fd: u32,
    flags: u32,
}

/// The part of `union bpf_attr` that `BPF_OBJ_GET_INFO_BY_FD` reads.
#[repr(C)]
struct ObjGetInfo {
    fd: u32,
    info_len: u32,
    info: u64,
}

/// The start of `struct bpf_link_info`. In both kinds that are read, the identifier of the object comes
/// first: `tcx.ifindex` and `netns.netns_ino`; 0 if it is gone (tcx_link_fill_info in kernel/bpf/tcx.c,
/// bpf_netns_link_fill_info in kernel/bpf/net_namespace.c).
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    unused: u32,
    attached_to: u32,
    attach_type: u32,
}

impl LinkInfo {
    const LEN: u32 = 24;
}

const _: () = assert!(size_of::<LinkInfo>() == LinkInfo::LEN as usize);

// SAFETY: invariant of `Info`: `repr(C)` of integers only, so any bytes are a valid value, and none is an
// address.
unsafe impl Info for LinkInfo {}

/// The part of `union bpf_attr` that `BPF_*_GET_FD_BY_ID` reads.
#[repr(C)]
struct GetFdById {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// The start of one of the kernel's `struct bpf_*_info`.
///
/// # Safety
/// Any bytes must be a valid value. Fields that hold addresses must be 0, or point to as much writable memory
/// as the fields beside them say.
pub(crate) unsafe trait Info {}

/// The object that the link pinned here is attached to.
pub(crate) fn holds(pin: &Path) -> io::Result<Holds> {
    let info = link_info(pin)?;
    Ok(match (info.kind, info.attached_to) {
        (TYPE_NETNS | TYPE_TCX, 0) => Holds::Nothing,
        (TYPE_NETNS | TYPE_TCX, _) => Holds::Something,
        _ => Holds::Other,
    })
}

/// Whether the link pinned here has attached this program to this device.
pub(crate) fn is_at(pin: &Path, device: u32, program: u32) -> bool {
    link_info(pin)
        .is_ok_and(|info| (info.kind, info.attached_to, info.program) == (TYPE_TCX, device, program))
}

/// The number of the program that the link pinned here has attached.
pub(crate) fn program_id(pin: &Path) -> io::Result<u32> {
    Ok(link_info(pin)?.program)
}

/// The number of the cgroup that the link pinned here is attached to; 0: it is gone.
pub(crate) fn cgroup_id(pin: &Path) -> io::Result<u64> {
    let info = link_info(pin)?;
    // `cgroup.cgroup_id` (64 bits) stands where the others have two of 32.
    let (first, second) = (info.attached_to.to_ne_bytes(), info.attach_type.to_ne_bytes());
    Ok(u64::from_ne_bytes([
        first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3],
    ]))
}

fn link_info(pin: &Path) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    info_of(&open(pin)?, &mut info)?;
    Ok(info)
}

/// Fills in what the kernel says of an object.
pub(crate) fn info_of<T: Info>(object: &OwnedFd, info: &mut T) -> io::Result<()> {
    let mut request = ObjGetInfo {
        fd: object.as_raw_fd().unsigned_abs(),
        info_len: u32::try_from(size_of::<T>()).unwrap_or_default(),
        info: (&raw mut *info) as u64,
    };
    // SAFETY: `info` outlives the call. The kernel writes no more than `info_len` bytes, which is its size,
    // and any bytes are a valid `T`, by the invariant of `Info`; so are the addresses in it.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut request) }?;
    Ok(())
}

/// An object by its number: a program or a map, by the command for its kind.
pub(crate) fn object_by_id(command: libc::c_int, id: u32) -> io::Result<OwnedFd> {
    let mut request = GetFdById { id, next_id: 0, open_flags: 0 };
    // SAFETY: the request is what `BPF_PROG_GET_FD_BY_ID` and `BPF_MAP_GET_FD_BY_ID` read, and has no
    // addresses.
    let fd = unsafe { bpf(command, &mut request) }?;
    // SAFETY: the kernel has just created this descriptor for this process, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens what is pinned here.
pub(crate) fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut request = ObjGet { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path ends with a zero byte and outlives the call, which only reads it.
    let fd = unsafe { bpf(OBJ_GET, &mut request) }?;
    // SAFETY: the kernel has just created this descriptor for this process, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Safety
/// `T` must start as `union bpf_attr` does for this command, and the addresses in it must be valid for what
/// the command does with them.
unsafe fn bpf<T>(command: libc::c_int, request: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `request`, and takes missing fields as zero. The
    // caller guarantees that `T` starts as `union bpf_attr` does for this command, and that the addresses in
    // it are valid for it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *request, size_of::<T>()) };
    match libc::c_int::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
