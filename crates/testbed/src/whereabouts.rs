//! Finds programs: unpacked under `target/servers`, or the machine's own.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// In the bed the unpacked servers are mounted here, where every user can access them.
pub(crate) const EXPOSED_SERVERS: &str = "/run/testbed/servers";

/// The directories of the unpacked tree that contain programs. `bin` comes first, because it has the names of
/// an installation.
const PROGRAM_DIRS: [&str; 5] = ["bin", "root/usr/sbin", "root/usr/bin", "root/sbin", "root/bin"];
/// The directories of the unpacked tree that contain libraries, besides the architecture's.
const LIBRARY_DIRS: [&str; 2] = ["root/usr/lib", "root/lib"];
/// Directories that a plain user's PATH often lacks.
const SYSTEM_DIRS: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The workspace from which this test bed was built.
pub fn workspace_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The directory to which `scripts/servers.sh` unpacks; `TRUEPEER_SERVERS` changes it for both.
pub fn servers_dir() -> PathBuf {
    if Path::new(EXPOSED_SERVERS).exists() {
        return EXPOSED_SERVERS.into();
    }
    env::var_os("TRUEPEER_SERVERS").map_or_else(|| workspace_dir().join("target/servers"), PathBuf::from)
}

/// The file of a program by name, or `None` if the machine lacks it. A name with a slash is a path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(name.into()).filter(|path: &PathBuf| path.exists());
    }
    search_path().into_iter().map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// The directories to search, unpacked ones first.
fn search_path() -> Vec<PathBuf> {
    let servers = servers_dir();
    let unpacked = PROGRAM_DIRS.iter().map(|dir| servers.join(dir));
    let path = env::var_os("PATH").unwrap_or_default();
    let own: Vec<PathBuf> = env::split_paths(&path).chain(SYSTEM_DIRS.iter().map(PathBuf::from)).collect();
    versioned_postgres(&servers).chain(unpacked).chain(own).collect()
}

/// Debian installs PostgreSQL's programs by version, outside of any PATH. The scripts in the PATH work only
/// when installed, so these directories come first.
fn versioned_postgres(servers: &Path) -> impl Iterator<Item = PathBuf> {
    let versions = std::fs::read_dir(servers.join("root/usr/lib/postgresql"));
    versions.into_iter().flatten().flatten().map(|version| version.path().join("bin"))
}

/// The environment in which a program of the bed finds the others, and its libraries if it is unpacked.
pub(crate) fn environment(program: &Path) -> Vec<(&'static str, OsString)> {
    let servers = servers_dir();
    let mut environment = Vec::new();
    environment.extend(env::join_paths(search_path()).ok().map(|path| ("PATH", path)));
    // A shell is the machine's own, but the programs that it runs may be unpacked.
    let is_shell = program.file_name().is_some_and(|name| name == "sh" || name == "bash");
    if is_shell || program.starts_with(&servers) {
        let libraries = library_dirs(&servers);
        let extensions = libraries.iter().map(|dir| dir.join("xtables")).find(|dir| dir.is_dir());
        environment.extend(env::join_paths(&libraries).ok().map(|path| ("LD_LIBRARY_PATH", path)));
        environment.extend(extensions.map(|dir| ("XTABLES_LIBDIR", dir.into_os_string()))); // iptables' matches
    }
    environment
}

/// A program of a newer Debian, which `scripts/newer.sh` unpacks, with the loader and the libraries that it
/// needs.
pub(crate) struct Newer {
    pub(crate) file: PathBuf,
    pub(crate) loader: PathBuf,
    pub(crate) libraries: PathBuf,
}

/// `None`: it is not unpacked.
pub(crate) fn newer(program: &str) -> Option<Newer> {
    let root = servers_dir().join("newer/root/usr");
    let libraries = root.join(format!("lib/{}-linux-gnu", env::consts::ARCH));
    let mut files = std::fs::read_dir(&libraries).ok()?.flatten();
    let loader = files.find(|file| file.file_name().to_string_lossy().starts_with("ld-linux"))?.path();
    Some(Newer { file: root.join("sbin").join(program), loader, libraries })
        .filter(|found| found.file.exists())
}

pub(crate) fn library_dirs(servers: &Path) -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", env::consts::ARCH);
    let common = LIBRARY_DIRS.iter().flat_map(|dir| [servers.join(dir).join(&triplet), servers.join(dir)]);
    // Kamailio has libraries of its own there.
    common.chain([servers.join("root/usr/lib").join(&triplet).join("kamailio")]).collect()
}
