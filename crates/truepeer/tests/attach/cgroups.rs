//! Which cgroup is taken for the root: mounts that show a part of the hierarchy only, as in containers.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use truepeer_testbed::{Bed, Behaviour, Test, client, skip, tests, wait_for};

use crate::kit::{BACKEND, attach, command, header, session};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_container_that_sees_its_own_cgroup_only_is_refused,
        the_root_is_found_behind_a_mount_of_a_part,
        a_directory_of_cgroup_v1_is_refused,
    ]
}

/// A cgroup of the test's own.
pub(crate) struct Cgroup(pub(crate) PathBuf);

impl Cgroup {
    pub(crate) fn make(name: &str) -> Result<Cgroup> {
        let root = truepeer_bpf::cgroup_root()?;
        // Other runs have theirs beside it, and a killed one leaves its own. A process id is no name: in its
        // namespace each run has the same.
        for number in 0.. {
            let path = root.join(format!("truepeer-{name}-{number}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Cgroup(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(_) => break,
            }
        }
        skip("no cgroup can be made here")
    }

    /// One below it. Drop it first.
    pub(crate) fn below(&self, name: &str) -> Result<Cgroup> {
        let path = self.0.join(name);
        fs::create_dir(&path)?;
        Ok(Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = wait_for("the cgroup to be let go", || !self.0.exists() || fs::remove_dir(&self.0).is_ok());
    }
}

/// As Docker starts containers on cgroup v2: `--cgroupns private`, with /sys/fs/cgroup mounted inside.
fn a_container_that_sees_its_own_cgroup_only_is_refused(bed: &Bed) -> Result<()> {
    let cgroup = Cgroup::make("inside")?;
    let root = truepeer_bpf::cgroup_root()?;
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let own = bed.write("own/mount", "")?;
    let shell = format!(
        "echo $$ > {part}/cgroup.procs && exec unshare --cgroup --mount /bin/sh -c \
         'umount -l {root} && mount -t cgroup2 none {own} && exec \"$@\"' sh \"$@\"",
        part = cgroup.0.display(),
        root = root.display(),
        own = own.parent().unwrap_or(Path::new("/")).display()
    );
    let attaching =
        command(bed, &["--port", "80"])?.launched_by("/bin/sh", &["-c", &shell, "sh"]).start(bed)?;
    let has_succeeded = attaching.wait_end()?.success();
    let said = attaching.stderr();
    ensure!(!has_succeeded && said.contains("is not the root of the cgroup v2 hierarchy"), "{said}");
    ensure!(said.contains("docker run -v /sys/fs/cgroup:/host/cgroup"), "{said}");
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    Ok(())
}

fn the_root_is_found_behind_a_mount_of_a_part(bed: &Bed) -> Result<()> {
    let cgroup = Cgroup::make("part")?;
    let root = truepeer_bpf::cgroup_root()?;
    let (part, whole) = (bed.dir().join("a part"), bed.dir().join("the whole"));
    fs::create_dir(&part)?;
    fs::create_dir(&whole)?;
    mount_bind(&cgroup.0, &part)?;
    unmount(&root, UnmountFlags::DETACH)?;
    mount("none", &whole, "cgroup2", MountFlags::empty(), None)?;
    let cgroup = Cgroup(whole.join(cgroup.0.file_name().unwrap_or_default()));

    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    attach(bed, &["--port", "80"])?;
    let seen = client::ask(&mut session(&header("203.0.113.1:1001")?)?, b"")?;
    ensure!(seen.trim() == "203.0.113.1:1001", "{seen}");
    drop(cgroup);
    Ok(())
}

fn a_directory_of_cgroup_v1_is_refused(bed: &Bed) -> Result<()> {
    let dir = bed.write("v1/cgroup.procs", "")?;
    let path = dir.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let attaching = command(bed, &["--port", "80", "--cgroup", &path])?.start(bed)?;
    ensure!(!attaching.wait_end()?.success());
    ensure!(attaching.stderr().contains("not a cgroup v2 directory"), "{}", attaching.stderr());
    Ok(())
}
