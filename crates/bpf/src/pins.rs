//! Where pins are: on a BPF file system that every truepeer of this machine finds, whatever mounts it sees.
//!
//! Pins live as long as their file system is mounted somewhere. `ip netns exec` and containers have mounts of
//! their own, which end with them. So the file system of process 1 counts as well, and where there is none,
//! one is mounted there, in a directory of truepeer's own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, mount};
use truepeer_sys::netns::in_mount_namespace_of;

use crate::error::AttachError;
use crate::place::Place;
use crate::trust;

/// The default directory of all pins.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/truepeer";

/// Where truepeer mounts a BPF file system if there is none. Not below /run/truepeer, which a service manager
/// removes with its service.
const OWN: &str = "/run/truepeer-attach";
/// The root directory of process 1, as everybody may name it who may attach.
const OF_FIRST: &str = "/proc/1/root";
const FIRST: u32 = 1;

/// The directory of all pins. truepeer's own mount comes first: a file system that somebody mounts later must
/// not hide what is attached.
pub fn find_pins() -> PathBuf {
    let default = Path::new(DEFAULT_PINS);
    let own = Path::new(OWN).join("truepeer");
    let of_first = |path: &Path| Path::new(OF_FIRST).join(path.strip_prefix("/").unwrap_or(path));
    let all = [own.clone(), of_first(&own), default.to_owned(), of_first(default)];
    all.into_iter().find(|pins| Place::can_be_at(pins)).unwrap_or(default.to_owned())
}

/// A directory apart from that of `attach`, which lists all pins that it finds in its own.
const SPLICE: &str = "truepeer-splice";

/// The directory of the tables of sessions that leave user space (`proxy --splice`), among the mounts of this
/// process. Those of process 1 do not count: the pins keeper, who removes the tables, may not name them.
pub fn find_splice_pins() -> PathBuf {
    let (own, default) = (Path::new(OWN).join(SPLICE), Path::new(DEFAULT_PINS).with_file_name(SPLICE));
    if Place::can_be_at(&own) { own } else { default }
}

/// The same; mounts a BPF file system if process 1 has the same mounts and none.
pub fn make_splice_pins() -> PathBuf {
    let found = find_splice_pins();
    // If it fails, the found one is missing, too.
    if !Place::can_be_at(&found) && is_with_first() {
        let _ = mount_own();
    }
    find_splice_pins()
}

/// Whether it is certain that nothing is attached if [`find_pins`] has nothing: a BPF file system was found,
/// or at least looked for among the mounts of process 1.
pub fn can_look() -> bool {
    Place::can_be_at(&find_pins()) || fs::metadata(OF_FIRST).is_ok()
}

/// The same; mounts a BPF file system if there is none.
pub fn make_pins() -> Result<PathBuf, AttachError> {
    let found = find_pins();
    if Place::can_be_at(&found) {
        return Ok(found);
    }
    if is_with_first() {
        mount_own()
    } else {
        in_mount_namespace_of(FIRST, mount_own).map_err(AttachError::mount("BPF"))?
    }?;
    Ok(find_pins())
}

fn mount_own() -> Result<(), AttachError> {
    trust::make(Path::new(OWN))?;
    // Two may come here at once: a second file system would hide what is pinned on the first.
    let directory = fs::File::open(OWN).map_err(AttachError::file("open", OWN))?;
    flock(&directory, FlockOperation::LockExclusive)
        .map_err(|error| AttachError::file("flock", OWN)(error.into()))?;
    if Place::can_be_at(Path::new(OWN)) {
        return Ok(());
    }
    let mode = Some(c"mode=0700");
    mount("bpf", OWN, "bpf", MountFlags::empty(), mode).map_err(AttachError::mount("BPF"))
}

/// Whether this thread has the mounts of process 1.
fn is_with_first() -> bool {
    mount_namespace("thread-self").is_some_and(|own| Some(own) == mount_namespace("1"))
}

fn mount_namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|found| found.ino())
}
